"""The only file that knows where YAML lives: folders of the package, or a path of the user's own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from llmviewer.errors import UserError, shown, unknown

ROOT = Path(__file__).resolve().parent.parent
ALIASES = "aliases.yaml"
#: A config or a spec is a few kilobytes; anything far larger is not one.
MAX_FILE_BYTES = 4 * 2**20


def folder(name: str) -> Path:
    """A data folder: it stands beside the package, in a checkout as in an installation."""
    return ROOT / name


def stems(name: str) -> list[str]:
    """Names of the YAML files of a data folder, sorted."""
    return sorted(path.stem for path in folder(name).glob("*.yaml") if path.name != ALIASES)


def aliases(name: str) -> dict[str, list[str]]:
    """stem -> other names, from the folder's one index."""
    path = folder(name) / ALIASES
    return {str(stem): [str(a) for a in listed] for stem, listed in read_yaml(path).items()}


def _folded(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def own(name: str) -> Path | None:
    """The user's file or folder called `name` (`~` is their home), None where there is none."""
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, an unknown user's home, a null character
        return None


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml", ".json")) or name.startswith((".", "/", "~"))


def find(where: str, name: str, what: str) -> tuple[Path, str, tuple[str, ...]]:
    """(file, stem, aliases) of the data file called `name`: a stem, an alias, or a path to a file of one's own."""
    wanted = _folded(name)
    index = aliases(where)
    for stem in (wanted, *(s for s, listed in index.items() if wanted in map(_folded, listed))):
        path = folder(where) / f"{stem}.yaml"
        if stem == Path(stem).name and stem != Path(ALIASES).stem and own(str(path)):
            return path, stem, tuple(index.get(stem, ()))
    path = own(name) or Path(name)
    if own(name) or _is_path(name):
        return path, path.stem, ()
    known = [*stems(where), *(a for listed in index.values() for a in listed)]
    listing = "hardware" if what == "chip" else "models"
    raise unknown(what, name, known, hint=f"see `llmviewer {listing} list`, or pass the path of a file")


def shown_path(path: Path) -> str:
    """A path as provenance prints it: inside the package relative to it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def read_text(path: Path) -> str:
    """The text of a file, or one clear line why not."""
    try:
        if path.is_dir():
            raise UserError(f"'{shown(path)}' is a directory; expected a file")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"'{shown(path)}' is larger than {MAX_FILE_BYTES // 2**20} MiB; not a config or a spec")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"'{shown(path)}' is not text (UTF-8)") from error
    except OSError as error:
        raise UserError(f"cannot read '{shown(path)}': {error.strerror or error}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, by the C loader where present."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        content = yaml.load(read_text(path), Loader=loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UserError(f"'{shown(path)}' is not valid YAML{line}: {_reason(error)}") from error
    return _as_mapping(content, path)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    import json

    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{shown(path)}' is not valid JSON: {_reason(error)}") from error
    return _as_mapping(content, path)


def _reason(error: Exception) -> str:
    return shown(getattr(error, "problem", None) or str(error).split("\n")[0] or type(error).__name__, 100)


def _as_mapping(content: object, path: Path) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise UserError(f"'{shown(path)}' holds {type(content).__name__}, expected a mapping of fields")
    return content


def check_keys(spec: Mapping[str, Any], known: Collection[str], required: Iterable[str], where: str) -> None:
    """Raise for a key nobody reads and for a needed one that is missing."""
    for key in spec:
        if key not in known:
            raise unknown(f"key in {where}", key, known)
    missing = [key for key in required if key not in spec]
    if missing:
        raise UserError(f"{where}: missing {', '.join(missing)}")

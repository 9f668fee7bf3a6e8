"""The only file that knows where YAML lives: folders of the package, or a path of the user's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from llmviewer.core import parsing
from llmviewer.core.errors import UserError, quoted, shown, unknown

ROOT = Path(__file__).resolve().parent.parent
ALIASES = "aliases.yaml"
#: What to do about a name we do not know.
HINTS = {
    "model": "see `llmviewer models list`, or download its config.json and pass the path",
    "chip": "see `llmviewer hardware list`, or pass the path of a YAML file of your own",
}
#: A config or a spec is a few kilobytes; anything far larger is not one.  YAML takes 30 times as long to read.
MOST_BYTES_OF_JSON = 4 * 2**20
MOST_BYTES_OF_YAML = 2**19


def folder(name: str) -> Path:
    """A data folder of the package."""
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
    raise unknown(what, name, known, hint=HINTS[what])


def shown_path(path: Path) -> str:
    """A path as provenance prints it: inside the package relative to it."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def read_text(path: Path, most_bytes: int) -> str:
    """The text of a file, or one clear line why not.  Devices and pipes are refused: they may have no end."""
    try:
        if path.is_dir():
            raise UserError(f"'{shown(path)}' is a directory; expected a file")
        if path.exists() and not path.is_file():
            raise UserError(f"'{shown(path)}' is a device or a pipe; expected a file")
        with open(path, "rb", opener=_without_waiting) as stream:
            content: bytes = stream.read(most_bytes + 1) or b""  # None where it would have waited
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise UserError(f"cannot read '{shown(path)}': {getattr(error, 'strerror', None) or error}") from error
    if len(content) > most_bytes:
        raise UserError(f"'{shown(path)}' is larger than {most_bytes // 2**10:,} KiB; not a config or a spec")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"'{shown(path)}' is not text (UTF-8)") from error


def _without_waiting(path: str, flags: int) -> int:
    """Open a file that may, behind its name, wait for data for ever (/proc/kmsg)."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    return _mapping(path, "YAML", parsing.from_yaml, MOST_BYTES_OF_YAML)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    return _mapping(path, "JSON", parsing.from_json, MOST_BYTES_OF_JSON)


def _mapping(path: Path, language: str, parse: Callable[[str], object], most_bytes: int) -> dict[str, Any]:
    text = read_text(path, most_bytes)
    if not text.strip():
        raise UserError(f"'{shown(path)}' is empty")
    try:
        content = parse(text)
    except ValueError as error:
        raise UserError(f"'{shown(path)}' cannot be read as {language}: {shown(error, 160)}") from error
    if not isinstance(content, dict):
        raise UserError(f"'{shown(path)}' holds {quoted(content)}; expected a mapping of fields")
    return content


def check_keys(spec: Mapping[str, Any], known: Collection[str], required: Iterable[str], where: str) -> None:
    """Raise for a key nobody reads and for a needed one that is missing."""
    for key in spec:
        if key not in known:
            raise unknown("key", key, known, where=where)
    missing = [key for key in required if key not in spec]
    if missing:
        raise UserError(f"{where}: missing {', '.join(missing)}")

"""Reading data files: YAML files in folders of the package, and files at the user's own paths."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from llmviewer.core import files, parsing
from llmviewer.core.errors import UserError, printable, told, unknown

ROOT = Path(__file__).resolve().parent.parent
ALIASES = "aliases.yaml"
#: Key of an index of aliases that is no name of a file.
SOURCES = "sources"
#: Hint in the error for an unknown name.
HINTS = {
    "model": "`llmviewer models list`; `llmviewer models fetch ID`, or download its config.json and pass the path",
    "chip": "see `llmviewer hardware list`, or pass the path of your own YAML file",
}
#: Size limits [byte]: a config or spec has a few kilobytes.  YAML takes 30 times as long to read as JSON.
MAX_JSON_BYTES = 4 * 2**20
MAX_YAML_BYTES = 2**19
#: Indices of aliases by path; every name of a model or a chip is looked up in one.
_INDICES: files.CacheOfFiles[Mapping[str, tuple[str, ...]]] = files.CacheOfFiles()
_ITEMS: files.CacheOfFiles[tuple[tuple[str, str, Any], ...]] = files.CacheOfFiles()
_PARSED: files.CacheOfFiles[bytes] = files.CacheOfFiles(512)
_STEMS: files.CacheOfFiles[Mapping[str, str]] = files.CacheOfFiles()
#: Names of files by folder, read again after a file has come or gone.
_LISTS: files.CacheOfFiles[tuple[str, ...]] = files.CacheOfFiles()


def folder(name: str) -> Path:
    """The path of a data folder of the package, or of a file in one; without symbolic links some stand beside it."""
    return _folder(ROOT, name)


@cache
def _folder(root: Path, name: str) -> Path:
    return (root if (root / Path(name).parts[0]).is_dir() else root.parent) / name


def stems(name: str) -> list[str]:
    """Names of the YAML files of a data folder, sorted."""
    where = folder(name)

    def build() -> tuple[str, ...]:
        files.record(where)
        return tuple(sorted(path.stem for path in where.glob("*.yaml") if path.name != ALIASES))

    return list(_LISTS.get(str(where), build))


def aliases(name: str) -> Mapping[str, tuple[str, ...]]:
    """The folder's index of aliases: stem -> other names."""

    def build() -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for stem, alias, _ in alias_items(name):
            found[stem] = (*found.get(stem, ()), alias)
        return found

    return _INDICES.get(str(folder(name) / ALIASES), build)


def alias_items(name: str) -> tuple[tuple[str, str, Any], ...]:
    """(stem, alias, what the index states of it) of every alias of a folder; {} of a plain name.

    SOURCES names pages that several entries refer to.
    """
    path = folder(name) / ALIASES
    return _ITEMS.get(str(path), lambda: tuple(_items(read_yaml(path))))


def _items(index: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for stem, others in index.items():
        for other in others if stem != SOURCES else ():
            yield from (
                (str(stem), str(a), own) for a, own in (other if isinstance(other, Mapping) else {other: {}}).items()
            )


def _stem_of_alias(name: str) -> Mapping[str, str]:
    """Alias, as it is compared -> stem."""

    def build() -> dict[str, str]:
        return {normalized(other): stem for stem, others in aliases(name).items() for other in others}

    return _STEMS.get(str(folder(name)), build)


def normalized(name: str) -> str:
    """The name as it is compared: lower case, with hyphens."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def user_path(name: str) -> Path | None:
    """The file or folder at the path `name` (`~` is the user's home); None if there is none, or it may not be read."""
    if files.is_restricted():
        return None
    try:
        path = Path(name).expanduser()
        return path if name and path.exists() else None
    except (OSError, RuntimeError, ValueError):  # name too long, home of an unknown user, null character
        return None


def is_path(name: str) -> bool:
    """Whether a name can only be a path."""
    return name.endswith((".yaml", ".yml", ".json")) or name.startswith((".", "/", "~"))


def find(directory: str, name: str, noun: str) -> tuple[Path, str, bool]:
    """(file, stem, True) for a stem or alias in the data folder `directory`; False for a path to the user's own file.

    The index of aliases, which takes longer to read than a file, is read for a name that is no stem.
    """
    stem = normalized(name)
    if not _is_stem(directory, stem):
        stem = _stem_of_alias(directory).get(stem, "")
    if _is_stem(directory, stem):
        return folder(directory) / f"{stem}.yaml", stem, True
    path = user_path(name) or Path(name)
    if user_path(name) or is_path(name):
        files.refuse_named(name)
        return path, path.stem, False
    known = [*stems(directory), *(alias for others in aliases(directory).values() for alias in others)]
    raise unknown(noun, name, known, hint=HINTS[noun])


def _is_stem(directory: str, stem: str) -> bool:
    """Whether the package has a file of this stem in a data folder."""
    path = folder(directory) / f"{stem}.yaml"
    return stem == Path(stem).name and stem != Path(ALIASES).stem and is_there(path)


def is_there(path: Path) -> bool:
    """Whether there is such a file or folder; names may be of any length."""
    try:
        return path.exists()
    except (OSError, ValueError):  # name too long, null character
        return False


def display_path(path: Path) -> str:
    """The path as provenance prints it; relative to the package if it is of it."""
    root = next((root for root in (ROOT, *map(Path, files.BESIDE)) if path.is_relative_to(root)), None)
    if root is None:
        return str(path)
    return str(path.relative_to(ROOT if root == ROOT else ROOT.parent))


def read_text(path: Path, max_bytes: int, kind: str = "not a config or a spec") -> str:
    """The text of a file; UserError if it cannot be read.  kind: contents expected, for the error of a larger file."""
    files.record(path)
    found = files.content(path, max_bytes, kind)
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"'{printable(path)}' is not text (UTF-8)") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    return mapping(_filled(path, MAX_YAML_BYTES), path, "YAML")


def read_known_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, a copy for each caller; the file is parsed once until it changes."""
    made: dict[str, Any] = pickle.loads(_PARSED.get(str(path), lambda: pickle.dumps(read_yaml(path))))
    return made


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    return mapping(_filled(path, MAX_JSON_BYTES), path, "JSON")


def _filled(path: Path, max_bytes: int) -> str:
    text = read_text(path, max_bytes)
    if not text.strip():
        raise UserError(f"'{printable(path)}' is empty")
    return text


def mapping(text: str, path: Path | str, language: str) -> dict[str, Any]:
    """The fields in a text of JSON or YAML.  path: the file in error messages."""
    try:
        content = parsing.from_json(text) if language == "JSON" else parsing.from_yaml(text)
    except ValueError as error:
        raise UserError(f"'{printable(path)}' cannot be read as {language}: {printable(error, 160)}") from error
    if not isinstance(content, dict):
        raise UserError(f"'{printable(path)}' holds {told(content)}; expected a mapping of fields")
    return content

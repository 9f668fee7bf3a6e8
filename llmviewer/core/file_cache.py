"""Files that a value was read from, and a cache of values that are read again after such a file has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from llmviewer.core import files

#: Time of the last change [ns], size [byte] and inode of a file; None if there is no such file.
State: TypeAlias = "tuple[int, int, int] | None"
Value = TypeVar("Value")

#: States of the files that were read since `recording` began.
_recorded: ContextVar[dict[str, State] | None] = ContextVar("recorded", default=None)


def state(path: str) -> State:
    """The state of a file, equal as long as its content is."""
    try:
        found = os.stat(path)  # noqa: PTH116 (a Path costs more than the call)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def record(path: str | Path) -> None:
    """Note that the value under construction depends on a file, which need not exist; no output may replace it."""
    if files.is_restricted() and not files.is_of_package(path):
        return  # reading it is refused
    files.remember_input(Path(path))
    found = _recorded.get()
    if found is not None:
        full = os.path.abspath(path)  # noqa: PTH100 (links are followed by `state`)
        found.setdefault(full, state(full))


@contextmanager
def recording() -> Iterator[dict[str, State]]:
    """Collect the files that are read within the block, in an enclosing block too."""
    found: dict[str, State] = {}
    token = _recorded.set(found)
    try:
        yield found
    finally:
        _recorded.reset(token)
        for path in found:
            record(path)


class CacheOfFiles(Generic[Value]):
    """Values by key, each valid while the files it was read from are unchanged.

    most: number of values that are kept.  A key may hold texts, numbers, objects (compared by identity unless they
    define equality), and JSON-like mappings.  A text that is an absolute path means the same in any folder.
    """

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._entries: dict[object, tuple[Value, tuple[tuple[str, State], ...]]] = {}

    def get(self, key: object, build: Callable[[], Value]) -> Value:
        """The value of a key: a cached one, or that of `build`, which may raise; then nothing is kept."""
        try:
            fixed = isinstance(key, str) and os.path.isabs(key)  # noqa: PTH117 (relative paths mean other files elsewhere)
            where = files.is_restricted() or fixed or os.getcwd()  # noqa: PTH109
            hashable = (_hashable(key), where)
            entry = self._entries.get(hashable)
        except (TypeError, ValueError, OSError):  # not hashable, or no current directory
            return build()
        if entry is not None and all(state(path) == known for path, known in entry[1]):
            if files.is_remembering() or _recorded.get() is not None:  # a Path costs more than the rest
                for path, _ in entry[1]:
                    record(path)
            return entry[0]
        with recording() as read:
            value = build()
        for old in list(self._entries)[: len(self._entries) + 1 - self._most]:
            self._entries.pop(old, None)  # another thread may have removed it
        self._entries[hashable] = value, tuple(read.items())
        return value


def _hashable(value: object) -> object:
    """A key that is equal for equal content."""
    if type(value) is tuple:
        return tuple(map(_hashable, value))
    if isinstance(value, Mapping):
        return _canonical(value)
    hash(value)
    return type(value), value


def _canonical(fields: Mapping[Any, Any]) -> object:
    """A key for a mapping: its items where they are plain, else its JSON text."""
    items = tuple(sorted(fields.items()))
    try:
        hash(items)
    except TypeError:
        return json.dumps(fields, sort_keys=True)
    return tuple((name, type(value), value) for name, value in items)

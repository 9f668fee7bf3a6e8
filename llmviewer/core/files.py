"""Opening files that the user names, and what was read from them.

Files are regular and of bounded size.  Every file that is read goes through `open_bounded`, so that nothing that was
read can be written over.  Within `only_package_data`, as in a server, names of visitors are never paths: nothing but
data of the package is touched.  Values that were made from files are read again after such a file has changed.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedReader
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from llmviewer.core.errors import UserError, printable

#: (device, inode) of the files that the running command has read; None outside a command.
_READ: ContextVar[set[tuple[int, int]] | None] = ContextVar("read", default=None)
#: Whether only data of the package may be read.
_RESTRICTED: ContextVar[bool] = ContextVar("restricted", default=False)
#: Folder of the package, whose data are read by names of the catalogue.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 (read at each start)


def _beside() -> tuple[str, ...]:
    """Folders of the package that stand beside it; none but in a clone without symbolic links."""
    if os.path.isdir(f"{PACKAGE}/calibrate"):  # noqa: PTH112
        return ()
    folders = (os.path.join(os.path.dirname(PACKAGE), name) for name in os.listdir(PACKAGE))  # noqa: PTH118, PTH120, PTH208
    return tuple(folder for folder in folders if os.path.isdir(folder))  # noqa: PTH112


BESIDE = _beside()


@contextmanager
def only_package_data() -> Iterator[None]:
    """Refuse, within this context, every file that a visitor of a server may name.

    A path is refused alike whether it exists or not, and before it is looked at.
    """
    token = _RESTRICTED.set(True)
    try:
        yield
    finally:
        _RESTRICTED.reset(token)


def is_restricted() -> bool:
    """Whether nothing but data of the package may be read."""
    return _RESTRICTED.get()


def refuse_named(path: object) -> None:
    """Raise UserError where visitors name files, whatever the path.  path: as it was given."""
    if _RESTRICTED.get():
        raise _refusal(path)


def check_allowed(path: str | Path) -> None:
    """Raise UserError, where visitors name files, for a path that is outside the package."""
    if _RESTRICTED.get() and not is_of_package(path):
        raise _refusal(path)


def is_of_package(path: str | Path) -> bool:
    """Whether a path leads into the package, by its text alone: nothing is looked up on the disk."""
    return os.path.abspath(path).startswith(tuple(folder + os.sep for folder in (PACKAGE, *BESIDE)))  # noqa: PTH100


def _refusal(path: object) -> UserError:
    return UserError(f"'{printable(path)}' would be read as a file; here only names of the catalogue are allowed")


def open_bounded(path: Path, max_bytes: int, kind: str) -> BufferedReader:
    """A regular file of at most `max_bytes`, opened for reading.  kind: contents expected, for the error.

    Devices and pipes are refused: they may never end.  Raises UserError.
    """
    check_allowed(path)
    try:
        _check_regular(path, path.stat())  # before opening, which may act on a device
        stream = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115
        try:
            found = os.fstat(stream.fileno())
            _check_regular(path, found)
            if found.st_size > max_bytes:
                raise UserError(f"'{printable(path)}' is larger than {_size(max_bytes)}; {kind}")
        except BaseException:
            stream.close()
            raise
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise UserError(f"cannot read '{printable(path)}': {getattr(error, 'strerror', None) or error}") from error
    _remember(found)
    return stream


def content(path: Path, max_bytes: int, kind: str) -> bytes:
    """All bytes of a regular file.  Raises UserError if there are more than `max_bytes`."""
    with open_bounded(path, max_bytes, kind) as stream:
        try:
            read: bytes = stream.read(max_bytes + 1) or b""  # None if reading would block
        except OSError as error:
            raise UserError(f"cannot read '{printable(path)}': {error.strerror or error}") from error
    if len(read) > max_bytes:  # files of /proc state no size
        raise UserError(f"'{printable(path)}' is larger than {_size(max_bytes)}; {kind}")
    return read


def head(path: Path, count: int) -> bytes:
    """The first bytes of a regular file, by which formats are told apart; empty for one that cannot be read."""
    check_allowed(path)
    try:
        if not path.is_file():  # devices and pipes may never end
            return b""
        with path.open("rb") as stream:
            return stream.read(count)
    except (OSError, ValueError):
        return b""


@contextmanager
def remembering_inputs() -> Iterator[None]:
    """Remember the files that are read in this context, which is one command."""
    token = _READ.set(set())
    try:
        yield
    finally:
        _READ.reset(token)


def is_remembering() -> bool:
    """Whether a command runs that remembers the files it reads."""
    return _READ.get() is not None


def remember_input(path: str | Path) -> None:
    """Count a file as read by this command, although its content came from a cache."""
    try:
        _remember(os.stat(path))  # noqa: PTH116 (a Path costs more than the call)
    except (OSError, ValueError):
        return  # reading it raises the error with its reason


def forget_input(path: Path) -> None:
    """Let this command write over a file that it has read itself."""
    found = path.stat()
    (_READ.get() or set()).discard((found.st_dev, found.st_ino))


def is_input(path: Path) -> bool:
    """Whether the running command has read the file at `path`, by whatever name."""
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) in (_READ.get() or ())


def _remember(found: os.stat_result) -> None:
    read = _READ.get()
    if read is not None:
        read.add((found.st_dev, found.st_ino))


def _check_regular(path: Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise UserError(f"'{printable(path)}' is a directory; expected a file")
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"'{printable(path)}' is a device or a pipe; expected a file")


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without blocking: a special file (/proc/kmsg) may wait for data for ever."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _size(count: int) -> str:
    return f"{count // 2**20:,} MiB" if count >= 2**24 else f"{count // 2**10:,} KiB"


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
    if is_restricted() and not is_of_package(path):
        return  # reading it is refused
    remember_input(path)
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
            where = is_restricted() or fixed or os.getcwd()  # noqa: PTH109
            hashable = (_hashable(key), where)
            entry = self._entries.get(hashable)
        except (TypeError, ValueError, OSError):  # not hashable, or no current directory
            return build()
        if entry is not None and all(state(path) == known for path, known in entry[1]):
            if is_remembering() or _recorded.get() is not None:  # a Path costs more than the rest
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

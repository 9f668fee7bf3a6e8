"""Runs that do not depend on each other, on all cores."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

One = TypeVar("One")
Answer = TypeVar("Answer")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(function: Callable[[One], Answer], values: Sequence[One]) -> list[Answer]:
    """`function` of every value, in their order; one after the other where processes cannot be forked,
    as on a thread of a worker of Dask.

    Each process but this one answers its share of the values and sends the answers through a pipe.  No thread runs in
    any of them, so that none can hold a lock while another is forked.
    """
    workers = min(cores(), len(values))
    if workers < 2 or not hasattr(os, "fork") or threading.current_thread() is not threading.main_thread():
        return [function(value) for value in values]
    children = [_forked(function, values[at::workers]) for at in range(1, workers)]
    answers: list[Any] = [None] * len(values)
    try:
        answers[0::workers] = [function(value) for value in values[0::workers]]
        for at, (_, pipe) in enumerate(children, 1):
            answers[at::workers] = _received(pipe)
    finally:
        for child, pipe in children:
            _ended(child, pipe)
    return answers


def _forked(function: Callable[[One], Answer], values: Sequence[One]) -> tuple[int, int]:
    """A process that answers these values, and the pipe from which its answers can be read."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    status = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(_answered(function, values), pipe)
        status = 0
    finally:
        os._exit(status)  # without what the parent does when it ends


def _answered(function: Callable[[One], Answer], values: Sequence[One]) -> list[Answer] | Exception:
    """The answers, or the error that one of them raised."""
    try:
        return [function(value) for value in values]
    except Exception as error:
        return error


def _received(pipe: int) -> list[Any]:
    """The answers of a process; raises its error."""
    with os.fdopen(os.dup(pipe), "rb") as stream:
        sent = stream.read()
    found = pickle.loads(sent) if sent else RuntimeError("a process that simulates ended early")
    if isinstance(found, Exception):
        raise found
    answers: list[Any] = found
    return answers


def _ended(child: int, pipe: int) -> None:
    """Stop a process if it still runs, as after an interrupt, and wait for its end."""
    os.close(pipe)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)

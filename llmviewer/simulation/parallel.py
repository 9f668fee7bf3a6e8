"""Runs that do not depend on each other, on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

One = TypeVar("One")
Answer = TypeVar("Answer")

#: What the worker processes call; they inherit it when they are forked, so that nothing but numbers is sent to them.
_CALLED: list[Callable[[Any], Any]] = []


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(function: Callable[[One], Answer], values: Sequence[One]) -> list[Answer]:
    """`function` of every value, in their order; one after the other where processes cannot be forked."""
    workers = min(cores(), len(values))
    if workers < 2 or "fork" not in multiprocessing.get_all_start_methods() or multiprocessing.current_process().daemon:
        return [function(value) for value in values]
    _CALLED.append(function)
    try:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            return pool.map(_call, values, chunksize=1)
    finally:
        _CALLED.pop()


def _call(value: Any) -> Any:
    return _CALLED[-1](value)

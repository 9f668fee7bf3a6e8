"""A progress bar on stderr for commands that take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress(total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr after one second, if it is a terminal.

    Yields a function that takes the number of new points.
    """
    import time

    started = time.monotonic()
    bar: Any = None
    done = 0

    def advance(points: int) -> None:
        nonlocal bar, done
        done += points
        if bar is None and time.monotonic() - started > 1.0:
            bar = _bar(total)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done)

    try:
        yield advance
    except BaseException:
        if bar is not None:
            bar.live.transient = True  # the line of an error stands alone
        raise
    finally:
        if bar is not None:
            bar.stop()


def _bar(total: int) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    bar.add_task("points", total=total)
    bar.start()
    return bar

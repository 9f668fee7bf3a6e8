"""A progress bar on stderr for commands that take long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Advance(Protocol):
    """The function that moves a bar."""

    def __call__(self, points: int, text: str = "") -> None:
        """Take the number of new points, and what to say beside the bar from now on; empty: as before."""


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """Show a progress bar on stderr after one second, if it is a terminal."""
    import time

    started = time.monotonic()
    bar: Any = None
    done, said = 0, ""

    def advance(points: int, text: str = "") -> None:
        nonlocal bar, done, said
        done, said = done + points, text or said
        if bar is None and time.monotonic() - started > 1.0:
            bar = _bar(total)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, description=said)

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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    bar.add_task("", total=total)
    bar.start()
    return bar

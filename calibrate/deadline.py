"""Time of a calibration: its phases end at shares of it, whatever they are doing."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn


class OutOfTimeError(BaseException):
    """Raised in a phase whose time is over.  No Exception: a kernel that fails is skipped, and this ends the phase."""


class Budget:
    """Seconds of a calibration since it was made."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock, self._started_at = seconds, clock, clock()

    @property
    def spent_s(self) -> float:
        """Time since the start [s]."""
        return self._clock() - self._started_at

    def left_s(self, share: float = 1.0) -> float:
        """Time until this share of the budget is spent [s], 0 afterwards."""
        return max(share * self.seconds - self.spent_s, 0.0)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the body after so many seconds, as soon as a call of torch or scipy returns to Python.

    Without timers of the operating system (Windows), and outside the main thread, the body only ends by itself.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(*_: object) -> NoReturn:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, over)
    try:
        if seconds < math.inf:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))  # zero would stop the timer
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)

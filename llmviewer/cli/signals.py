"""Signals: Ctrl-C before a command starts ends the process at once; SIGTERM and a closed terminal clean up first."""

from __future__ import annotations

import os
import signal
from types import FrameType

#: Signals that end the process, and by default leave its temporary files behind.
_TERMINATING = ("SIGTERM", "SIGHUP")


def install() -> None:
    """Set the handlers of a process that runs the command line; a signal that is ignored (nohup) stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    for name in _TERMINATING:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _terminate)


def command_starts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on, so that the command removes what it has half written."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit without unwinding: an exception inside an import prints a traceback or is lost."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Unwind the stack once, which removes temporary files; 128 + number is the status that a shell reports."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)

"""The process of the command line: signals that clean up, and no warnings of libraries on stderr."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from types import FrameType

#: Signals that end the process, and by default leave its temporary files behind.
_TERMINATING = ("SIGTERM", "SIGHUP")
#: Thresholds of the garbage collector: an answer makes hundreds of thousands of objects that last and few cycles.
_GARBAGE = (50_000, 20, 20)


def set_up() -> None:
    """Set signal handlers, silence warnings and choose how plots are drawn; called before other modules load."""
    gc.set_threshold(*_GARBAGE)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    for name in _TERMINATING:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _terminate)
    os.environ["MPLBACKEND"] = "agg"  # plots go to files; a notebook exports a backend that this process may not have
    if not sys.warnoptions and not os.environ.get("LLMVIEWER_DEBUG"):
        warnings.simplefilter("ignore")


def command_starts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt from here on, so that the command removes what it has half written."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def silence_matplotlib() -> None:
    """Silence matplotlib's log: caches that it cannot write, fonts that it lacks, settings that it does not know."""
    import logging  # only plots need it

    if not os.environ.get("LLMVIEWER_DEBUG"):
        logging.getLogger("matplotlib").setLevel(logging.CRITICAL)


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit without unwinding: an exception inside an import prints a traceback or is lost."""
    os.write(2, b"interrupted\n")
    os._exit(128 + number)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Unwind the stack once, which removes temporary files; 128 + number is the status that a shell reports."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)

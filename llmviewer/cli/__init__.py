"""The command line: words -> values -> Result -> a view.  One command per file; heavy imports stand in its body."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# No matrix algebra is done here; the thread pool that numpy's BLAS starts on import would cost 50 ms of CPU.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: The options of `llmviewer.cli.completion`, which is imported for them and for a tab of the shell only.
COMPLETION_OPTIONS = ("--install-completion", "--show-completion")

#: command -> (module, what it is for).  Only the module of the command asked for is imported.
COMMANDS: dict[str, tuple[str, str]] = {
    "analyze": ("llmviewer.cli.analyze", "One model on one chip, operator by operator."),
    "sweep": ("llmviewer.cli.sweep", "Many batch sizes and lengths, one row per point."),
    "compare": ("llmviewer.cli.compare", "Several chips, models or quantizations side by side."),
    "crossover": ("llmviewer.cli.crossover", "Which configuration wins where, over batch and context."),
    "plot": ("llmviewer.cli.plot.command", "Roofline, curves, memory, winners as a picture."),
    "survey": ("llmviewer.cli.survey", "The figures of the survey arXiv 2402.16363 by our counts."),
    "report": ("llmviewer.cli.report", "All of it in one file: HTML, Markdown, CSV, JSON, Excel."),
    "trace": ("llmviewer.cli.trace", "The predicted timeline, for Perfetto and chrome://tracing."),
    "calibrate": (
        "llmviewer.cli.calibrate.group",
        "Measure kernels, fit a profile, check it: run, fit, validate, ledger.",
    ),
    "models": ("llmviewer.cli.models", "Models we know: list, show."),
    "hardware": ("llmviewer.cli.hardware", "Chips we know: list, show."),
    "techniques": ("llmviewer.cli.techniques", "What can be switched on, and what it changes: list, show."),
}


def run(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 fine, 1 answered with no, 2 wrong input, 70 a fault of ours (one line on
    stderr)."""
    words = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:  # started with stdout closed
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.exit(_run_guarded(words))


def _run_guarded(words: list[str]) -> int:
    """What nobody foresaw, in one line: a fault of ours, which the input has found."""
    try:
        return main(words)
    except Exception as error:
        if os.environ.get("LLMVIEWER_DEBUG"):
            raise
        from llmviewer.core.errors import printable

        found = printable(f"{type(error).__name__}: {error}", 200)
        said = f"error: a fault in llmviewer, please report it: {found} (LLMVIEWER_DEBUG=1 shows where)"
        print(said, file=sys.stderr)  # noqa: T201
        return 70  # EX_SOFTWARE of sysexits.h


def main(words: list[str]) -> int:
    """Run one command; the exit status."""
    from llmviewer.core.errors import UserError

    try:
        if _is_completion(words):
            from llmviewer.cli import completion

            return completion.run(words, COMMANDS)
        from llmviewer.cli.app import command_for

        return command_for(words, COMMANDS)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except BrokenPipeError:
        return 0  # the reader (head, less) has seen enough
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 130


def _is_completion(words: list[str]) -> bool:
    """True for a tab of the shell, and for the options that install or print its script."""
    return "_LLMVIEWER_COMPLETE" in os.environ or (bool(words) and words[0].partition("=")[0] in COMPLETION_OPTIONS)

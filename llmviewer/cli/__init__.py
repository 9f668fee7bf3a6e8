"""The command line: arguments -> Result -> view.  One command per file; heavy imports are in function bodies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from llmviewer.questions import QUESTIONS

# No linear algebra is done here; the thread pool that numpy's BLAS starts on import would cost 50 ms of CPU.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: Options of `llmviewer.cli.completion`, which is imported only for them and for a completion request of the shell.
COMPLETION_OPTIONS = ("--install-completion", "--show-completion")

#: command -> (module, summary); questions without a module are made from their declaration.  Only the module of the
#: requested command is imported.
COMMANDS: dict[str, tuple[str, str]] = {
    **{name: (one.command, one.summary) for name, one in QUESTIONS.items()},
    "plot": ("llmviewer.cli.plot.command", "Rooflines, curves, memory, Pareto and crossover plots."),
    "survey": ("llmviewer.cli.survey", "Figures of the survey arXiv 2402.16363, recomputed."),
    "report": ("llmviewer.cli.report", "Full report in one file: HTML, Markdown, CSV, JSON, Excel."),
    "page": ("llmviewer.cli.page", "One file that answers further questions without a server."),
    "trace": ("llmviewer.cli.trace", "Predicted timeline for Perfetto and chrome://tracing."),
    "serve": ("llmviewer.cli.serve", "Pages in a browser and a JSON API, for one user or many."),
    "mcp": ("llmviewer.cli.mcp", "Tools for assistants: the Model Context Protocol over stdio."),
    "calibrate": ("llmviewer.cli.calibrate.group", "Measure kernels, fit and validate profiles."),
    "models": ("llmviewer.cli.models", "Known models: list, show; fetch others."),
    "hardware": ("llmviewer.cli.hardware", "Known chips: list, show; their prices."),
    "techniques": ("llmviewer.cli.techniques", "Techniques and their effects: list, show."),
}


def run(arguments: list[str] | None = None) -> None:
    """Run the command line and exit.

    Status: 0 success, 1 negative answer (does not fit), 2 wrong input, 70 internal error (one line on stderr)."""
    from llmviewer.cli import process

    process.set_up()
    words = sys.argv[1:] if arguments is None else arguments
    if sys.stdout is None:  # started with stdout closed
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    try:
        status = _run_guarded(words)
    finally:
        process.command_starts()
    sys.exit(status)


def _run_guarded(words: list[str]) -> int:
    """Exit status of `main`; an unexpected exception becomes one line on stderr that asks for a report."""
    try:
        return main(words)
    except Exception as error:
        if os.environ.get("LLMVIEWER_DEBUG"):
            raise
        from llmviewer.core.errors import printable

        message = printable(f"{type(error).__name__}: {error}", 200)
        hint = "LLMVIEWER_DEBUG=1 prints the traceback"
        print(f"error: internal error in llmviewer, please report it: {message} ({hint})", file=sys.stderr)  # noqa: T201
        return 70  # EX_SOFTWARE of sysexits.h


def main(words: list[str]) -> int:
    """Run one command and return its exit status."""
    from llmviewer.core.errors import UserError
    from llmviewer.core.files import remembering_inputs

    try:
        with remembering_inputs():
            status = _answer(words)
        sys.stdout.flush()  # while an error of the terminal can still be told
        return status
    except UserError as error:
        print(f"error: {error.marked}", file=sys.stderr)  # noqa: T201
        return 2
    except BrokenPipeError:
        _discard_stdout()
        return 0  # the reader of the pipe (head, less) has exited
    except OSError as error:
        _discard_stdout()
        what = f"read or write '{error.filename}'" if error.filename else "write the output"
        print(f"error: {UserError(f'cannot {what}: {error.strerror or error}').marked}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        return 130


def _answer(words: list[str]) -> int:
    """Exit status of the command, or of a request for completion."""
    if _is_completion(words):
        from llmviewer.cli import completion

        return completion.run(words, COMMANDS)
    from llmviewer.cli.app import command_for

    return command_for(words, COMMANDS)


def _discard_stdout() -> None:
    """Redirect stdout to the null device, because the interpreter flushes it once more on exit."""
    from llmviewer.cli.views import discard_stdout

    discard_stdout()


def _is_completion(words: list[str]) -> bool:
    """True for a completion request of the shell and for the options that install or print its script."""
    return "_LLMVIEWER_COMPLETE" in os.environ or (bool(words) and words[0].partition("=")[0] in COMPLETION_OPTIONS)

"""Measures of the house, reported and held to no limit: `python -m tests.house` prints them as tables."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.imports import FILES, ROOT, room_of, tree_of

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 50
#: The command whose start is measured; `--efficiency ideal` beside it loads no calibration.
ANALYZE = ("analyze", "llama-3.1-8b", "--hardware", "h100", "--format", "json")
#: What the start of a command is measured against.
BASE = "import numpy, yaml, typer"
RUNS = 9
#: Prints the number of files of ours that a function was called in, and of modules of ours that were imported.
TRACED = """
import inspect, os, sys
entered = set()
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # no module and no body of a class
        entered.add(frame.f_code.co_filename)
out, sys.stdout = sys.stdout, open(os.devnull, "w")
from llmviewer.cli import main
sys.setprofile(note)
main(sys.argv[1:])
sys.setprofile(None)
ours = {os.path.realpath(name) for name in entered if os.path.realpath(name).startswith(os.getcwd() + os.sep)}
print(len([name for name in ours if "/.venv/" not in name]), file=out)
print(len([name for name in sys.modules if name.split(".")[0] == "llmviewer"]), file=out)
"""
#: Prints the peak of resident memory [KiB] where /proc has it; what getrusage says includes the parent's.
PEAK = """
import os, sys
out, sys.stdout = sys.stdout, open(os.devnull, "w")
from llmviewer.cli import main
main(sys.argv[1:])
if os.path.exists("/proc/self/status"):
    print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=out)
"""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    yield from (node for node in ast.walk(tree) if isinstance(node, Function))


def long_functions(tree: ast.AST) -> dict[str, int]:
    """Functions above the limit with their lines, without those of a command, whose parameters are its options."""
    lengths = {
        one.name: (one.end_lineno or one.lineno) - one.lineno + 1 for one in functions(tree) if not _command(one)
    }
    return {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}


def _command(function: Function) -> bool:
    return function.name == "command" or "format" in {argument.arg for argument in function.args.args}


def private_calls(tree: ast.AST) -> dict[str, int]:
    """Private functions and methods of a file with how often it names them, beside their definitions."""
    names = Counter(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    names.update(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    private = {one.name for one in functions(tree) if one.name.startswith("_") and not one.name.endswith("__")}
    return {name: names[name] for name in private}


def too_large() -> list[str]:
    """Files and functions above the limits, the largest first."""
    lines = {_path(module): _lines(module) for module in FILES}
    found = {name: number for name, number in lines.items() if number > MAX_FILE_LINES}
    for module in FILES:
        found |= {f"{_path(module)}::{name}": number for name, number in long_functions(tree_of(module)).items()}
    return [f"{number:5} lines  {name}" for name, number in sorted(found.items(), key=lambda pair: -pair[1])]


def _lines(module: str) -> int:
    return len(FILES[module].read_text(encoding="utf-8").splitlines())


def _path(module: str) -> str:
    return FILES[module].relative_to(ROOT).as_posix()


def rooms() -> Iterator[tuple[str, int, int]]:
    """Room, lines and files, and their sum."""
    lines, files = Counter[str](), Counter[str]()
    for module in FILES:
        room = room_of(module) if module.count(".") > 1 or FILES[module].name == "__init__.py" else "llmviewer"
        lines[room] += _lines(module)
        files[room] += 1
    yield from ((room, lines[room], files[room]) for room in sorted(files))
    yield "sum", lines.total(), files.total()


def environment(folder: str) -> dict[str, str]:
    """The variables of processes that keep their bytecode in a folder, so that all but the first find it."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | {"PYTHONPYCACHEPREFIX": folder}


def cpu_seconds(words: Iterable[str], folder: str) -> float:
    """Least CPU time of python with these words, over some processes after a first one that writes bytecode."""
    found = []
    for _ in range(1 + RUNS):
        with subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.DEVNULL, cwd=ROOT, env=environment(folder)
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        found.append(used.ru_utime + used.ru_stime)
    return min(found[1:])


def peak_mib(folder: str) -> str:
    """Peak memory of the command, as Linux tells it of the process itself."""
    command = [sys.executable, "-c", PEAK, *ANALYZE]
    peak = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, env=environment(folder)).stdout
    return f"{int(peak) / 1024:.1f} MiB" if peak else "unknown here"


def traced(*words: str) -> tuple[int, int]:
    """Files of ours entered, and modules of ours imported, by a command."""
    command = [sys.executable, "-c", TRACED, *words]
    entered, imported = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return int(entered), int(imported)


def starts() -> Iterator[tuple[str, str]]:
    """Costs of the start of a command."""
    for name, words in (("analyze", ANALYZE), ("ideal", (*ANALYZE, "--efficiency", "ideal"))):
        entered, imported = traced(*words)
        yield f"files entered by {name}", str(entered)
        yield f"modules of ours imported by {name}", str(imported)
    with tempfile.TemporaryDirectory() as folder:
        base, seconds = (cpu_seconds(words, folder) for words in (("-c", BASE), ("-m", "llmviewer", *ANALYZE)))
        yield f"CPU of a cold analyze, times that of `{BASE}`", f"{seconds / base:.2f} ({seconds:.3f} s)"
        yield "its peak memory", peak_mib(folder)


def main() -> None:
    """Print all measures."""
    print(f"{'room':12} {'lines':>7} {'files':>5}")
    for room, lines, files in rooms():
        print(f"{room:12} {lines:7,} {files:5}")
    large = too_large()
    counts = [number for module in FILES for number in private_calls(tree_of(module)).values()]
    once = counts.count(1)
    print(f"\nfiles above {MAX_FILE_LINES} lines: {len([one for one in large if '::' not in one])}")
    print(f"functions above {MAX_FUNCTION_LINES} lines: {len([one for one in large if '::' in one])}")
    print(*large, sep="\n")
    print(f"private functions: {len(counts):,}; called once: {once:,} ({once / len(counts):.0%})")
    for name, value in starts():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()

"""Checks of arguments from Python or the command line: each returns the value, or raises a one-line UserError."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

from llmviewer.core.errors import UserError, quoted, unknown

if TYPE_CHECKING:
    import numpy as np

    from llmviewer.core.counts import Array

Sizes: TypeAlias = "int | str | Sequence[int] | np.ndarray[tuple[int, ...], np.dtype[np.float64]]"

#: A larger size is a typing error.
MAX_WHOLE_NUMBER = 10**9
#: Suffixes of sizes and of other numbers on the command line.
SUFFIXES = {"k": 1024, "m": 1024**2, "b": 10**9}
OF_COUNTS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
#: Programs whose recordings, and whose results, a measured run may be.
RECORDERS = "torch.profiler, Nsight Systems, rocprofv3"
BENCHMARKS = "vLLM, SGLang, genai-perf, AIPerf, inference-perf, guidellm, llmperf, llama-bench, Prometheus"


def whole_number(name: str, value: Any, *, minimum: int = 1) -> int:
    """`value` as an int from `minimum` to MAX_WHOLE_NUMBER."""
    if is_number(value) and minimum <= value <= MAX_WHOLE_NUMBER and value == int(value):
        return int(value)
    text = f"{value:g}" if isinstance(value, float) else quoted(value)
    raise UserError(f"{name} is {text}; allowed: whole numbers from {minimum} to {MAX_WHOLE_NUMBER:,}")


def shell_words(line: str, *, comments: bool = False) -> list[str]:
    """The words of a command line as a shell divides it.  comments: what follows a # is left out.  Raises UserError."""
    try:
        return shlex.split(line, comments=comments)
    except ValueError as error:
        raise UserError(f"{quoted(line)} cannot be read: {str(error).lower()}") from error


def sizes(name: str, value: object) -> Array:
    """Whole numbers from 1 as an array of float64 (length 1 for a single number, which may be a text: 4k)."""
    import numpy as np  # --help and --version take no arrays

    if isinstance(value, (str, Real)):
        number = parse_size(value) if isinstance(value, str) else value
        return np.array([whole_number(name, number)], dtype=np.float64)
    try:
        numbers = np.asarray(value)
    except (ValueError, TypeError, OverflowError):  # nested sequences of unequal lengths
        numbers = np.empty(0)
    numbers = np.atleast_1d(numbers) if numbers.dtype.kind in "iuf" else numbers
    if numbers.ndim != 1 or not numbers.size:
        raise UserError(f"{name} is {quoted(value)}; allowed: a whole number, or a flat sequence of them")
    if numbers.dtype.kind not in "iuf":  # strings, booleans, or integers beyond 64 bits
        entries = value if isinstance(value, (list, tuple)) else numbers.tolist()
        return np.array([whole_number(name, number) for number in entries], dtype=np.float64)
    numbers = numbers.astype(np.float64)
    for number in numbers[~((numbers >= 1) & (numbers <= MAX_WHOLE_NUMBER) & (numbers == np.floor(numbers)))][:1]:
        whole_number(name, float(number))
    return numbers


def fraction(name: str, value: Any) -> float:
    """`value` as a float above 0 and at most 1."""
    if is_number(value) and 0 < value <= 1:
        return float(value)
    raise UserError(f"{name} is {quoted(value)}; allowed: above 0, at most 1")


def is_number(value: object) -> bool:
    """Whether `value` is a number and not a boolean."""
    return isinstance(value, Real) and not isinstance(value, bool)


def parse_number(text: str) -> float | int | str:
    """The number in a command-line argument, or the text itself if it is not a number."""
    plain = text.strip()
    if not plain.isascii() or "_" in plain:  # numbers only to Python
        return text
    for parse in (int, float):
        try:
            return parse(plain)
        except ValueError:
            continue
    return text


def parse_count(text: str) -> float | int | str:
    """The number in a command-line argument that may end in k, m, b or t: 1.5b is 1.5e9; else the text itself."""
    plain = text.strip()
    factor = OF_COUNTS.get(plain[-1:].lower())
    number = parse_number(plain[:-1] if factor else plain)
    return text if isinstance(number, str) else number * factor if factor else number


def parse_size(text: str) -> float | int | str:
    """The number in a command-line argument that may end in k (1024), m (1024²) or b (10⁹), or a sum: 4096+512.

    Powers of two because context lengths have these names: 4k is 4096, 128k is 131,072, 1m is 1,048,576.
    """
    plain = text.strip()
    factor = SUFFIXES.get(plain[-1:].lower(), 1)
    number = parse_number(plain[:-1] if factor > 1 else plain)
    if not isinstance(number, str):
        return number * factor
    parts = [parse_size(part) for part in plain.split("+")] if "+" in plain else []
    numbers = [part for part in parts if not isinstance(part, str)]
    return sum(numbers) if numbers and len(numbers) == len(parts) else text


def word(name: str, value: object, allowed: Iterable[str] = (), *, hint: str = "") -> str:
    """`value` if it is a string, and one of `allowed` if these are given."""
    if not isinstance(value, str):
        raise UserError(f"{name} is {quoted(value)}; expected a string")
    if allowed and value not in allowed:
        raise unknown(name, value, allowed, hint=hint)
    return value


def switch(name: str, value: object) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, bool):
        raise UserError(f"{name} is {quoted(value)}; expected True or False")
    return value


def words(name: str, value: object) -> tuple[str, ...]:
    """A tuple of strings; a single string becomes a tuple of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise UserError(f"{name} is {quoted(value)}; expected a sequence of strings")
    return tuple(word(name, entry) for entry in value)


def path_or_name(what: str, value: object) -> str:
    """A name or path as text; pathlib objects are converted."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        lists = "; for lists use compare or sweep" if isinstance(value, (list, tuple)) else ""
        raise UserError(
            f"{what} is {quoted(value)}; expected a name, a path, a dict of fields, or a loaded Model or Chip{lists}"
        )
    return value

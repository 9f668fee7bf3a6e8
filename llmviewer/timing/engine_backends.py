"""Backends of llama.cpp: the libraries by which its builds run on a chip, and the fields of a preset that are of one.

Source of the builds: https://github.com/ggml-org/llama.cpp/blob/master/docs/build.md
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from llmviewer.core.errors import UserError, unknown
from llmviewer.hardware.chip import Chip
from llmviewer.language import record

#: Name of a backend -> other spellings, of which some stand in results of llama-bench.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("cublas",),
    "rocm": ("hip", "hipblas"),
    "vulkan": ("vk",),
    "metal": ("mtl",),
    "sycl": ("oneapi",),
    "cpu": (),
}
#: Name of a backend -> its name in a sentence.
TITLES = {"cuda": "CUDA", "rocm": "ROCm", "vulkan": "Vulkan", "metal": "Metal", "sycl": "SYCL", "cpu": "its CPU code"}
#: Generation of chips, or maker of others -> backends, the default first, as presets state them.
TABLE = record.mapped(record.listed(record.choice("backend", tuple(SPELLINGS))))
#: Backend by every spelling.
NAMES = {word: name for name, others in SPELLINGS.items() for word in (name, *others)}


def spelled(text: str) -> str:
    """The backend that a text names; "" for an empty text.  Raises UserError for an unknown one."""
    if text and text.lower() not in NAMES:
        raise unknown("value of --backend", text, tuple(SPELLINGS), elsewhere=NAMES)
    return NAMES[text.lower()] if text else ""


def suffix(backend: str) -> str:
    """The words that follow the name of an engine in a sentence: ` with Vulkan`; "" where no backend is known."""
    return f" with {TITLES[backend]}" if backend else ""


def of_results(text: str) -> str:
    """The backend in the field `backends` of llama-bench (`CUDA`, `MTL,BLAS`); "" where it names none of ours."""
    words = (word.strip().lower() for word in text.split(","))
    return next((NAMES[word] for word in words if word in NAMES), "")


def of_chip(known: Mapping[str, Sequence[str]], chip: Chip) -> Sequence[str]:
    """Backends of a chip, the default first; none where they are unknown.  known: generation or maker -> backends."""
    return known.get(chip.generation, known.get(chip.maker, ()))


def chosen(asked: str, known: Mapping[str, Sequence[str]], chip: Chip, engine: str) -> str:
    """The backend that was asked for, else the default on the chip.  Raises UserError for one that it has not."""
    allowed = of_chip(known, chip)
    if asked and not known:
        other = "state its engine, as in --engine llama.cpp" if engine == "kernels" else f"--engine {engine} has none"
        raise UserError(f"--backend is an option of llama.cpp; {other}")
    if asked and asked not in allowed:
        has = f"allowed: {', '.join(allowed)}" if allowed else "none is known here"
        raise UserError(f"--backend {asked}: {engine} has it not on {chip.name}; {has}")
    return asked or next(iter(allowed), "")


def key_of(chip: Chip, backend: str, own: Collection[str]) -> str:
    """The name of the fields of a preset for a backend that is not the default one: `rdna3/vulkan`, `NVIDIA/vulkan`.

    Of the chip, its generation or its maker, the first in `own`; else of its generation.
    """
    names = [f"{name}/{backend}" for name in (chip.name, chip.generation, chip.maker)]
    return next((name for name in names if name in own), names[1])

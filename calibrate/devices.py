"""The chip that rows were measured on: names in the column `device` -> chip specs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, printable
from llmviewer.hardware import names, specs
from llmviewer.hardware.chip import Chip


@lru_cache(maxsize=256)
def known_chip(word: str) -> str:
    """Spec name of the chip that a table calls `word`; empty if there is no spec."""
    folded = word.replace("_", "-")
    if folded.endswith((".yaml", ".yml")) or folded.startswith((".", "/", "~")):
        return ""
    try:
        return names.find(folded)[1]
    except UserError:
        return ""


@lru_cache(maxsize=256)
def is_processor(chip: str) -> bool:
    """Whether a spec of this name is of a processor: a host has it as its CPU."""
    hosts = (specs.host(name)[0] for name in specs.host_names())
    return any(host.cpu is not None and host.cpu.name == chip for host in hosts)


def rows_by_device(frames: Any) -> dict[str, int]:
    """Names in the column `device` -> number of rows."""
    found: dict[str, int] = {}
    for frame in frames:
        for word, rows in frame["device"].astype(str).value_counts().items():
            found[word] = found.get(word, 0) + int(rows)
    return found


def choose_chip(devices: Mapping[str, int], wanted: str) -> tuple[Chip | None, tuple[str, ...]]:
    """The chip to fit and the device names that mean it; None for a single device without a spec.

    devices: device name -> rows.  wanted: a chip by name or path; empty for the only device of the samples.
    """
    if not devices:
        raise UserError("no measured rows of kernels: the samples contain only skipped shapes, or the device itself")
    if not wanted:
        names = {known_chip(word) or word for word in devices}
        if len(names) > 1:
            raise UserError(f"samples of several devices: {_listed(devices)}; choose one with --hardware")
        name = known_chip(next(iter(devices)))
        return (specs.load(name) if name else None), tuple(devices)
    chip = specs.load(wanted)
    matching = tuple(word for word in devices if known_chip(word) == chip.name or word == chip.name)
    if matching:
        return chip, matching
    only = next(iter(devices))
    if len(devices) == 1 and (not known_chip(only) or data.user_path(wanted)):
        return chip, (only,)  # the user's own spec describes this device
    raise UserError(f"no rows of {chip.name}; the samples are of {_listed(devices)}")


def _listed(devices: Mapping[str, int]) -> str:
    return ", ".join(f"{printable(word)} ({rows:,} rows)" for word, rows in devices.items())

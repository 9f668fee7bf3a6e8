"""Campaigns of the commands: their questions, checked and cut into chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmviewer import api
from llmviewer.api import build
from llmviewer.core.errors import UserError
from llmviewer.core.file_cache import recording
from llmviewer.planning.campaign import Campaign, Chunk
from llmviewer.planning.campaign_inputs import Inputs, inputs_of
from llmviewer.planning.campaign_rows import grid_of
from llmviewer.planning.options import question
from llmviewer.result.sweep import Candidate, Grid, Sweep
from llmviewer.simulation import options as load
from llmviewer.techniques.options import OPTIONS

#: A chunk of a sweep takes a second or a few of a core, so that handing it over costs little: at most so many forward
#: passes, and points, which the worker holds in memory; or points that are answered one by one.
CHUNK_PASSES, CHUNK_POINTS, SINGLE_POINTS = 2**19, 2**16, 2**8
#: Chunks of one campaign; the scheduler and the folder hold them all.
MAX_CHUNKS = 10**6
#: Options that a row states anyway.
STATED = ("model", "hardware", "engine", "efficiency", "seed", "replications", "request_rate")
DEFAULTS = {name: one.default for name, one in OPTIONS.items()} | {n: one.default for n, one in load.LOAD.items()}

Options = Mapping[str, Any]


def sweep_campaign(
    configurations: Sequence[Options], sizes: Mapping[str, str], most_points: int = CHUNK_POINTS
) -> tuple[Campaign, tuple[str, ...]]:
    """The campaign of a sweep, and its warnings.

    configurations: options of each, with model and hardware.  sizes: batch_size, input_len and output_len as typed.
    most_points: of a chunk.  Raises UserError.
    """
    texts = (sizes["batch_size"], sizes["input_len"], sizes["output_len"])
    with recording() as read:
        candidates = [api.configuration(**chosen) for chosen in configurations]
        sweep = Sweep(configurations=tuple(candidates), grid=grid_of(*texts))
        warnings, names = sweep.checked()
    chunks = []
    for chosen, one in zip(configurations, candidates, strict=True):
        shared = {"configuration": dict(chosen), "grid": texts, "columns": names}
        size = _size(sweep.grid, one, most_points)
        for start in range(0, len(sweep.grid), size):
            stop = min(start + size, len(sweep.grid))
            chunks.append(Chunk(words={**shared, "points": (start, stop)}, rows=stop - start))
    asked = {**_asked(configurations), **sizes}
    return _checked(Campaign(kind="sweep", asked=asked, inputs=inputs_of(read), chunks=tuple(chunks))), warnings


def _size(grid: Grid, one: Candidate, most_points: int) -> int:
    """Points of a chunk; it does not depend on the number of workers, which may differ when a run resumes."""
    together = SINGLE_POINTS if np.isfinite(one.most_points) else CHUNK_PASSES // grid.passes(one.token_budget)
    return max(1, min(together, most_points))


def simulation_campaign(simulations: Sequence[Options]) -> Campaign:
    """The campaign of some simulations.  simulations: options of each, as of `simulate`.  Raises UserError."""
    checked: dict[str, None] = {}
    with recording() as read:
        for options in simulations:
            _check_simulation(options, checked)
    return one_row_each("simulate", simulations, inputs_of(read))


def size_campaign(sizings: Sequence[Options]) -> Campaign:
    """The campaign of some sizings of one chip each.  sizings: options of each, as of `size`.  Raises UserError."""
    with recording() as read:
        for options in sizings:
            asked = {name: value for name, value in options.items() if name not in ("model", "hardware")}
            question(options["model"], (options["hardware"],), asked)
            build.chip_of(options["hardware"])
            build.model_of(options["model"], build.options_of({}))
    return one_row_each("size", sizings, inputs_of(read))


def one_row_each(kind: str, questions: Sequence[Options], inputs: Inputs) -> Campaign:
    """The campaign of questions that have one row each, which states the options that differ from their defaults."""
    asked = _asked(questions)
    shown = [name for name in asked if name not in STATED]
    chunks = (Chunk(words={"options": dict(one), "shown": shown}, rows=1) for one in questions)
    return _checked(Campaign(kind=kind, asked=asked, inputs=inputs, chunks=tuple(chunks)))


def _check_simulation(options: Options, known: dict[str, None]) -> None:
    """Read what a simulation reads.  known: texts of loads that were checked.  Raises UserError."""
    words = load.checked({name: value for name, value in options.items() if name in load.LOAD})
    if str(words) not in known:
        load.traffic_of(words)
        load.limits_of(words)
        known[str(words)] = None
    if words["pools"] is None:
        api.configuration(**{name: value for name, value in options.items() if name not in load.LOAD})


def _asked(configurations: Sequence[Options]) -> dict[str, str]:
    """Options that are not at their defaults everywhere, with their values in the order in which they first occur."""
    values = {name: list(dict.fromkeys(str(one[name]) for one in configurations)) for name in configurations[0]}
    return {name: "; ".join(found) for name, found in values.items() if found != [str(DEFAULTS.get(name))]}


def _checked(campaign: Campaign) -> Campaign:
    if len(campaign.chunks) > MAX_CHUNKS:
        raise UserError(f"the campaign has {len(campaign.chunks):,} chunks; allowed: at most {MAX_CHUNKS:,}")
    return campaign

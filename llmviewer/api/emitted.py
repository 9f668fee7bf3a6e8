"""Recorded configurations as the data of a page, which `reports/offline/templates/engine.js` runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from llmviewer.api.recorded import MEMORY, OTHERS, ROW, TOTALS, Recorded, Row
from llmviewer.core.scalars import OPERATIONS, Pool, Scalars
from llmviewer.timing.roofline import BOUNDS

#: Operation -> its place among all, and the number of its operands.
CODES = {
    name: (at, function.nin if hasattr(function, "nin") else 3)
    for at, (name, function) in enumerate(OPERATIONS.items())
}
INTERVALS = ("prefill.low", "prefill.high", "decode.low", "decode.high")


def text(pool: Pool, recorded: Sequence[Recorded], facts: Sequence[Mapping[str, Any]]) -> str:
    """JSON of configurations whose operations are in a pool.  facts: what else a page shows of each."""
    kept = {number for one in recorded for way in one.programs for number in way.needed}
    operations = {number: pool.operations[number - pool.inputs] for number in kept}
    ordered = sorted(kept, key=lambda number: (operations[number][0] != "", number))  # constants first
    place = {**{at: at for at in range(pool.inputs)}, **{n: pool.inputs + at for at, n in enumerate(ordered)}}
    code: list[int] = []
    for number in ordered:
        name, *operands = operations[number]
        if name:
            code += [CODES[name][0], *(place[one] for one in operands)]
    document = {
        "inputs": pool.inputs,
        "memory": MEMORY,
        "bounds": BOUNDS,
        "operations": [(name, operands) for name, (_, operands) in CODES.items()],
        "constants": [operations[number][1] for number in ordered if not operations[number][0]],
        "code": code,
        "configurations": [{**_configuration(one, place), **own} for one, own in zip(recorded, facts, strict=True)],
    }
    # JSON has no infinity, but a number that is read as one
    return (
        json.dumps(document, separators=(",", ":"), default=float).replace("Infinity", "1e999").replace("NaN", "null")
    )


def _configuration(one: Recorded, place: Mapping[int, int]) -> dict[str, Any]:
    system, budget = one.configuration.system, one.configuration.token_budget
    return {
        "data": system.parallelism.data,
        "microbatches": system.parallelism.microbatches,
        "budget": budget if math.isfinite(budget) else None,
        "request_s": float(system.engine.request_s),
        "late_steps": float(system.engine.late_steps) * (system.generation.verifies == 0.0),
        "tokens": float(system.generation.tokens),
        "engine_terms": [name if name == OTHERS else f"engine: {name}" for name in one.engine],
        "programs": [_program(*pair, one.engine, place) for pair in zip(one.programs, one.rows, strict=True)],
    }


def _program(way: Scalars, rows: tuple[Row, ...], engine: tuple[str, ...], place: Mapping[int, int]) -> dict[str, Any]:
    """Places of the guards and figures of a page among the operations."""
    found = {name: place[number] for name, number in way.results.items()}
    return {
        "guards": [(place[number], value) for number, value in way.guards.items()],
        "time": found["time_s"],
        "others": found["others_s"],
        "totals": [found[name] for name in TOTALS],
        "names": [(row.name, row.block, row.kind, row.layers) for row in rows],
        "rows": [[found[f"{name}.{number}"] for name in ROW] for number in range(len(rows))],
        "engine": [found[f"engine.{name}"] for name in engine],
        "memory": [found[f"memory.{name}"] for name in MEMORY],
        "interval": [found[name] for name in INTERVALS if name in found],
    }

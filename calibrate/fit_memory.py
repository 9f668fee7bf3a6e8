"""Fit what an engine takes beside weights and KV cache to a table of start-up logs, and rewrite its preset.

python -m llmviewer.calibrate.fit_memory FILE [PRESET]; the rows are not stored.  Constants stay as they are where a
version has no rows for them.  Errors are those of rows whose model was left out of the fit.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from llmviewer.analysis.engine_parts import EngineParts, engine_parts
from llmviewer.analysis.limits import graph_of_engine
from llmviewer.calibrate.cells import number
from llmviewer.calibrate.engine_logs import Started, started
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.log_scores import optimism
from llmviewer.core import data
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph
from llmviewer.timing import engine
from llmviewer.timing.engine_memory import PCIE, EngineMemory

#: Constants of the sampler, of a layer and of CUDA graphs: each group is fitted by least squares.
SAMPLER = ("logit_bytes", "token_hidden", "sampler_gib")
LAYER = ("layer_hidden", "exchange_hidden")
GRAPHS = ("graph_gib", "graph_layer_gib", "graph_expert_gib")
#: Fewest rows for more than the first constant of a group; rounds of choosing the part that sets a row's peak.
FEWEST, ROUNDS = 6, 4
#: Rows further off than this have settings that their source does not state; they are left out and counted.
UNSTATED = 0.15
#: Quantities whose errors are stored.
SCORED = ("activation_gib", "non_torch_gib", "kv_available_gib")
GIB = 2.0**30


@frozen(eq=False)
class Observation:
    """An engine that was started, with the graph of one device.  logged: quantity -> value."""

    one: Started
    graph: Graph
    logged: Mapping[str, float]

    @property
    def model(self) -> str:
        """Name of its model."""
        return self.one.configuration.model.name

    @property
    def tensor(self) -> int:
        """Devices of its tensor group."""
        return self.one.configuration.system.parallelism.tensor

    @property
    def is_over_pcie(self) -> bool:
        """Whether its devices are connected by PCIe."""
        return self.one.configuration.chip.default_link in PCIE

    def parts(self, constants: EngineMemory) -> EngineParts:
        """Its parts under other constants, with the limits of its own run."""
        own = self.one.configuration.system.engine.memory
        assert own is not None
        limited = replace(constants, tokens=own.tokens, sequences=own.sequences)
        return engine_parts(self.one.configuration.model, self.one.configuration.system, self.graph, limited)

    def predicted(self, constants: EngineMemory) -> dict[str, float]:
        """SCORED under other constants [GiB]."""
        parts, memory = self.parts(constants), self.one.memory
        inside = constants.graphs_in_budget * constants.graph_estimate * parts.graphs
        budget = float(np.max(memory.utilization_bytes - memory.weights_bytes))
        left = budget - parts.activations - parts.outside_torch - inside
        return {
            "activation_gib": parts.activations / GIB,
            "non_torch_gib": parts.outside_torch / GIB,
            "kv_available_gib": left / GIB,
        }


def observations(rows: Iterable[Mapping[Any, Any]], preset: str) -> dict[str, list[Observation]]:
    """Engines of a preset by the version from which their constants hold; pipelines log figures of several stages."""
    cache: dict[Hashable, Started | UserError] = {}
    logged: dict[int, dict[str, float]] = {}
    seen: dict[int, Started] = {}
    for row in rows:
        with suppress(UserError):  # `calibrate validate` reports them with the reason
            one, value = started(row, cache), number("value", row["value"])
            system = one.configuration.system
            if system.engine.name == preset and system.engine.memory and system.parallelism.pipeline == 1:
                seen[id(one)] = one
                logged.setdefault(id(one), {})[str(row["quantity"])] = value
    found: dict[str, list[Observation]] = {}
    for key, one in seen.items():
        constants = one.configuration.system.engine.memory
        assert constants is not None
        graph = graph_of_engine(one.configuration.model, one.configuration.system)
        found.setdefault(constants.first, []).append(Observation(one=one, graph=graph, logged=logged[key]))
    return found


def solve(start: EngineMemory, rows: Sequence[Observation]) -> EngineMemory:
    """The constants that fit the rows.  start: constants that stay where rows are too few."""
    found = start
    for _ in range(ROUNDS):
        peaks = [row for row in rows if "activation_gib" in row.logged and is_stated(row, found)]
        plain = [row for row in peaks if not row.one.configuration.model.vision_parameters]
        by_sampler = [row for row in plain if row.parts(found).sampler >= row.parts(found).layer]
        by_layer = [row for row in plain if row not in by_sampler]
        found = fitted(found, by_sampler, SAMPLER, "sampler", "activation_gib")
        found = fitted(found, by_layer, LAYER, "layer", "activation_gib")
        beyond = [row.logged["activation_gib"] - _text_peak(row, found) for row in peaks if row not in plain]
        found = replace(found, vision_gib=max(beyond)) if beyond else found
    graphs = [row for row in rows if "cuda_graph_gib" in row.logged]
    return _estimated(fitted(_outside_torch(found, rows), graphs, GRAPHS, "graphs", "cuda_graph_gib"), graphs)


def is_stated(row: Observation, constants: EngineMemory) -> bool:
    """Whether a row's peak is near the prediction, so that the settings it was logged with are those assumed."""
    if row.one.configuration.model.vision_parameters:
        return row.logged["activation_gib"] > _text_peak(row, constants) * (1.0 - UNSTATED)
    return abs(row.logged["activation_gib"] / (row.parts(constants).activations / GIB) - 1.0) < UNSTATED


def _text_peak(row: Observation, constants: EngineMemory) -> float:
    """Peak of the language model alone [GiB]."""
    return row.parts(replace(constants, vision_gib=0.0)).activations / GIB


def fitted(
    constants: EngineMemory, rows: Sequence[Observation], names: Sequence[str], part: str, quantity: str
) -> EngineMemory:
    """The constants with those of `names` fitted to a quantity by least squares of relative errors.

    part: field of EngineParts, linear in the constants.  With few rows only the first constant is fitted, and none
    that no row depends on.
    """
    chosen = list(names if len({row.model for row in rows}) >= FEWEST else names[:1])
    zero = constants.changed(dict.fromkeys(chosen, 0.0))
    chosen = [name for name in chosen if any(_slope(row, zero, name, part) for row in rows)]
    if not rows or not chosen:
        return constants
    value = np.array([row.logged[quantity] for row in rows])
    zero = constants.changed(dict.fromkeys(chosen, 0.0))
    rest = value - np.array([getattr(row.parts(zero), part) / GIB for row in rows])
    slopes = np.array([[_slope(row, zero, name, part) for name in chosen] for row in rows])
    solution = np.linalg.lstsq(slopes / value[:, None], rest / value, rcond=None)[0]
    return constants.changed(dict(zip(chosen, map(float, solution), strict=True)))


def _slope(row: Observation, zero: EngineMemory, name: str, part: str) -> float:
    """Growth of a part with one constant [GiB]."""
    one = zero.changed({name: 1.0})
    return float(getattr(row.parts(one), part) - getattr(row.parts(zero), part)) / GIB


def _outside_torch(constants: EngineMemory, rows: Sequence[Observation]) -> EngineMemory:
    """The constants with the mean memory outside torch on one device, on two of each link, and per further device."""
    logged: dict[tuple[int, bool], list[float]] = {}
    for row in rows:
        if "non_torch_gib" in row.logged:
            key = (row.tensor, row.tensor > 1 and row.is_over_pcie)
            logged.setdefault(key, []).append(row.logged["non_torch_gib"])
    means = {key: float(np.mean(values)) for key, values in logged.items()}
    alone, pair = means.get((1, False), constants.alone_gib), means.get((2, False), constants.group_gib)
    over_pcie = means.get((2, True), constants.pcie_group_gib)
    more = [
        (mean - (over_pcie if pcie else pair)) / (tensor - 2) for (tensor, pcie), mean in means.items() if tensor > 2
    ]
    member = max(float(np.mean(more)), 0.0) if more else constants.member_gib
    return replace(constants, alone_gib=alone, group_gib=pair, pcie_group_gib=over_pcie, member_gib=member)


def _estimated(constants: EngineMemory, rows: Sequence[Observation]) -> EngineMemory:
    """The constants with the mean of the engine's estimate of its CUDA graphs over what they took."""
    name = "cuda_graph_estimate_gib"
    ratios = [row.logged[name] / row.logged["cuda_graph_gib"] for row in rows if name in row.logged]
    return replace(constants, graph_estimate=float(np.mean(ratios))) if ratios else constants


def held_out_errors(start: EngineMemory, rows: Sequence[Observation]) -> dict[str, Any]:
    """Errors of every scored quantity, each row under constants fitted without its model."""
    errors: dict[str, dict[str, list[float]]] = {}
    for model in sorted({row.model for row in rows}):
        candidate = solve(start, [row for row in rows if row.model != model])
        for row in (row for row in rows if row.model == model):
            on = "one device" if row.tensor == 1 else "several devices"
            for quantity, value in row.predicted(candidate).items():
                if quantity in row.logged:
                    errors.setdefault(quantity, {}).setdefault(on, []).append(value / row.logged[quantity] - 1.0)
    return {q: {on: _summary(q, np.array(found)) for on, found in by.items()} for q, by in errors.items()}


def _summary(quantity: str, errors: Array) -> dict[str, float]:
    figures: dict[str, Any] = {
        "mape": np.mean(np.abs(errors)),
        "bias": np.median(errors),
        "optimism": optimism(quantity, errors),
    }
    return {"rows": len(errors), **{name: round(float(value), 4) for name, value in figures.items()}}


def main(path: Path, preset: str = "vllm") -> None:
    """Fit every version of a preset that has rows, and rewrite the preset's file."""
    file = data.folder(engine.FOLDER) / f"{preset}.yaml"
    content = data.read_yaml(file)
    versions = engine.load(preset).memory_versions
    if versions is None:
        raise UserError(f"engine {preset}: its file has no constants of memory to start from")
    found = observations(read_table(path).to_dict("records"), preset)
    for stored, start in zip(content["memory"]["versions"], versions.versions, strict=True):
        rows = found.get(start.first, [])
        for name, value in changes(start, solve(start, rows)).items():
            stored[name] = value
        if len({row.model for row in rows}) >= FEWEST:
            content["memory"]["error"] = held_out_errors(start, rows)
    content["memory"]["source"] = f"fitted on {path.name}: docs/reference/memory.md"
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)
    file.write_text(text, encoding="utf-8")


def changes(before: EngineMemory, after: EngineMemory) -> dict[str, float]:
    """Constants that a fit changed, to four digits."""
    groups = ("group_gib", "pcie_group_gib", "member_gib")
    names = (*SAMPLER, *LAYER, *GRAPHS, "vision_gib", "alone_gib", *groups, "graph_estimate")
    values = {name: float(f"{getattr(after, name):.4g}") for name in names}
    return {name: value for name, value in values.items() if value != getattr(before, name)}


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""Why a chip cannot serve a workload: the first gate that rejects it, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import LATENCIES
from llmviewer.planning.space import Structure
from llmviewer.planning.steady_state import Curves, steady
from llmviewer.planning.workload import Workload

#: Gates in the order in which a configuration meets them.
GATES = ("support", "kv_cache", "ttft_s", "tpot_s", "e2e_s", "rate", "devices", "usd_per_hour", "simulation")
#: A rate at which requests are alone [1/s].
ALONE = 1e-6


@frozen
class Gate:
    """A limit that is missed.

    constraint: one of GATES.  margin: by how much, in `unit`; None where it has no size.  text: the reason in words.
    """

    constraint: str
    margin: float | None
    unit: str
    text: str

    @property
    def rank(self) -> tuple[int, float]:
        """How far the configuration came: the later the gate and the smaller the margin, the farther."""
        return GATES.index(self.constraint), -(self.margin or 0.0)


def first_gate(structure: Structure, curves: Curves, workload: Workload) -> Gate | None:
    """The gate that rejects a structure even for a single request; None if there is none."""
    if not curves.slots.any():
        return _memory_gate(structure, workload)
    one = replace(workload, rate=ALONE)
    found = steady(curves, one, np.array(ALONE), np.array(1.0))
    for limit in workload.limits:
        least = float(np.min(getattr(found, limit.metric)))
        if least > limit.seconds:
            name = LATENCIES[limit.metric].label
            text = f"{name} {told(least)} for a single request{_layout(structure)}"
            return Gate(constraint=limit.metric, margin=least - limit.seconds, unit="s", text=text)
    return None


def _memory_gate(structure: Structure, workload: Workload) -> Gate:
    """The bytes that are missing for one request."""
    from llmviewer import api

    lengths = (max(round(workload.input_len), 1), max(round(workload.output_len), 1))
    memory = structure.configuration.answer(api.request(1, *lengths)).analysis.memory
    missing = max(float(np.max(memory.total_bytes)) - float(np.max(memory.budget_bytes)), 0.0)
    longest = structure.configuration.system.engine.max_model_len or structure.configuration.model.max_context
    if not missing and sum(lengths) > longest:
        text = f"requests of {sum(lengths):,} tokens, {longest:,.0f} at most"
        return Gate(constraint="kv_cache", margin=float(sum(lengths) - longest), unit="tokens", text=text)
    one = structure.configuration
    alone = structure.devices >= one.chip.near and "network" not in structure.options
    wider = "; --network lets a group span nodes" if alone else ""
    text = f"KV cache: {missing / 2**30:.3g} GiB short{_layout(structure)}{wider}"
    return Gate(constraint="kv_cache", margin=float(missing), unit="bytes", text=text)


def _layout(structure: Structure) -> str:
    parallelism = structure.configuration.system.parallelism
    sizes = {"tp": parallelism.tensor, "dp": parallelism.data, "ep": parallelism.expert}
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "tp"]
    return f" at {', '.join(words)}"


def farthest(gates: Sequence[Gate]) -> Gate:
    """The gate of the configuration that came farthest."""
    return max(gates, key=lambda one: (one.rank, one.text))


def told(seconds: float) -> str:
    """A time in ms, or in s from one second on."""
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"

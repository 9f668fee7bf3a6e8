"""Combinations of compression techniques with quantization, fusion and two devices, on every model."""

from __future__ import annotations

import numpy as np
import pytest

from llmviewer import models
from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, check
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.techniques import registry
from tests.representative import REPRESENTATIVE

CHIP = specs.load("h100-sxm")
ALL = {"lora": "8,adapters=4", "low_rank": "256", "prune": "depth=0.5+2:4", "matformer": "0.5"}
COMBINATIONS = (
    ALL,
    ALL | {"quantization": "w8a8", "tensor_parallel_size": "2"},
    {"lora": "8", "prune": "heads=0.5", "quantization": "w4a16", "fusion": "all"},
    {"low_rank": "256", "tensor_parallel_size": "2", "fusion": "all"},
)


def prepared(name: str, requested: dict[str, str]) -> Graph:
    system = System(chip=CHIP)
    for change in registry.changes(requested):
        system = change(system)
    return system.prepared(models.load(name).graph(decode(4.0, 100.0)))


@pytest.mark.parametrize("name", REPRESENTATIVE)
@pytest.mark.parametrize("requested", COMBINATIONS, ids="+".join)
def test_every_operator_input_was_written_and_no_count_is_negative(name: str, requested: dict[str, str]) -> None:
    try:
        graph = prepared(name, requested)
    except UserError as error:
        assert "heads" in str(error), "nothing but heads that cannot be shared or dropped stands in the way"
        return
    check(graph)
    for _, operator in graph:
        assert np.all(np.asarray(operator.flops) >= 0) and np.all(np.asarray(operator.traffic_bytes) >= 0)


@pytest.mark.parametrize("requested", [{"lora": "8,adapters=4"}, {"low_rank": "256"}, {"prune": "width=0.5"}])
def test_two_devices_do_the_work_of_one_plus_replicated_work(requested: dict[str, str]) -> None:
    """Llama-2-7B: pruning replicates nothing; one factor or adapter matrix is replicated: A before a layer
    split by columns, B after one split by rows."""
    one, two = (prepared("llama-2-7b", requested | {"tensor_parallel_size": size}) for size in ("1", "2"))

    def flops(graph: Graph, *repeated: str) -> float:
        return float(sum(op.matmul_flops * b.repeats for b, op in graph if not repeated or op.name in repeated))

    thin = [op.name for _, op in one if op.name.endswith(("_lora_a", "_low_a", "_lora_b", "_low_b"))]
    rows = ("o_proj", "down_proj")
    whole = [name for name in thin if name.startswith(rows) == name.endswith("_b")]
    extra = flops(one, *whole) if whole else 0.0
    assert 2 * flops(two) == pytest.approx(flops(one) + extra, rel=1e-12)

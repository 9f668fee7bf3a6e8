"""Kinds have every property that other packages need; graph passes choose operators by role."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from llmviewer.calibrate.diagnosis.slots import patterns, slot_kind
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.ir import WORK_FIELDS, Block, Operator, Tensor, summed_work, whole
from llmviewer.core.kinds import Kind, KindFacts, OperatorRole
from llmviewer.core.workload import decode
from llmviewer.models import load
from llmviewer.ops.gemm import Linear
from llmviewer.reports.bottleneck import FLOPS
from llmviewer.reports.html.roofline import SYMBOLS
from llmviewer.techniques.parallel.shard import shard
from llmviewer.techniques.parallel.sharding import Sharding
from llmviewer.timing.kernels.families import FAMILIES
from tests.representative import REPRESENTATIVE

BF16 = DTYPES["bf16"]
STEP = decode(2.0, 64.0)


def test_a_kind_needs_all_of_its_facts() -> None:
    with pytest.raises(TypeError, match=r"missing .* required keyword-only"):
        KindFacts(matrix_units=False)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_every_kind_is_priced_fused_and_drawn(kind: Kind) -> None:
    assert set(kind.facts.families) <= set(FAMILIES)
    assert (kind.value in FLOPS, kind.value in SYMBOLS) == (True, True)


@pytest.mark.parametrize("kind", [one for one in Kind if one is not Kind.COLLECTIVE], ids=lambda kind: kind.value)
def test_the_recorded_kernel_of_a_kind_is_in_the_table_and_runs_its_operators(kind: Kind) -> None:
    """ELEMENTWISE is the only kind whose recorded kernels the table tells apart by what they compute."""
    operator: Any = SimpleNamespace(name="one", kind=kind, role=OperatorRole.OTHER)
    place = slot_kind(operator)
    assert kind.facts.recorded in {found for found, _ in patterns()}
    assert kind.facts.recorded in (place.parts if kind is Kind.ELEMENTWISE else place.main)


def test_a_new_kind_has_a_place_among_recorded_kernels() -> None:
    kind: Any = type("NewKind", (), {"facts": replace(Kind.NORM.facts, recorded="sampling")})()
    operator: Any = SimpleNamespace(name="penalty", kind=kind, role=OperatorRole.OTHER)
    assert slot_kind(operator).main == {"sampling": 3.0}


@pytest.mark.parametrize("fact", ["fusion_rank", "marker"])
def test_no_two_kinds_share_a_rank_or_a_marker(fact: str) -> None:
    assert len({getattr(kind.facts, fact) for kind in Kind}) == len(Kind)


def sampling(logits: Operator, facts: Any) -> Operator:
    """An operator of a new kind after the head: one token per row of logits."""
    y = Tensor(name="sampling", elements=logits.output_shape[0], dtype=DTYPES["fp32"])
    kind: Any = SimpleNamespace(value="sampling", facts=facts)
    return Operator(
        name="sampling", kind=kind, reads=(whole(logits.output),), writes=(whole(y),),
        output_shape=(logits.output_shape[0], 1.0), vector_flops=logits.output.elements,
    )  # fmt: skip


def head(facts: Any) -> list[str]:
    """Names of the operators of a head with a sampling kernel, on one of two devices."""
    x = Tensor(name="hidden", elements=2.0 * 64, dtype=BF16)
    logits = Linear(name="lm_head", in_features=64, out_features=1000, dtype=BF16).operator(x, 2.0)
    block = Block(name="head", operators=(logits, sampling(logits, facts)), scope="model")
    graph: Any = SimpleNamespace(map_blocks=lambda change: change(block))
    return [operator.name for operator in shard(Sharding(tensor=2))(graph).operators]  # type: ignore[attr-defined]


def test_a_kind_that_needs_whole_rows_runs_after_the_all_gather() -> None:
    whole_rows = replace(Kind.SOFTMAX.facts, whole_rows=True)
    assert head(whole_rows) == ["lm_head", "logits_all_gather", "sampling"]
    assert head(Kind.SOFTMAX.facts)[:2] == ["lm_head", "sampling"]


def test_map_work_scales_only_counts_of_work() -> None:
    operator = Operator(
        name="all", kind=Kind.GEMM, reads=(), writes=(), output_shape=(1.0,), matmul_flops=2.0, vector_flops=3.0,
        recurrence_flops=5.0, conv_flops=7.0, special_ops=11.0, masked_flops=13.0,
    )  # fmt: skip
    doubled = operator.map_work(lambda count: 2.0 * count)
    assert [getattr(doubled, name) for name in WORK_FIELDS] == [4.0, 6.0, 10.0, 14.0, 22.0, 26.0]
    assert summed_work((operator, doubled)) == {name: 3.0 * getattr(operator, name) for name in WORK_FIELDS}
    assert doubled.flops == 2.0 * operator.flops == 2.0 * (2 + 3 + 5 + 7)


def test_map_work_keeps_plain_zeros() -> None:
    operator = Operator(name="sum", kind=Kind.ELEMENTWISE, reads=(), writes=(), output_shape=(1.0,), vector_flops=4.0)
    changed = operator.map_work(lambda count: count * np.ones(3))
    assert isinstance(changed.vector_flops, np.ndarray)
    assert changed.matmul_flops == 0.0 and not isinstance(changed.matmul_flops, np.ndarray)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_operators_of_a_kind_and_name_have_one_role(name: str) -> None:
    """rope is ROPE, sums `*_add` are RESIDUAL, activations `*_act` are ACTIVATION: in every model."""
    by_ending = {"_add": OperatorRole.RESIDUAL, "_act": OperatorRole.ACTIVATION}
    by_name = {
        "rope": OperatorRole.ROPE,
        "qk_matmul": OperatorRole.SCORES,
        "softmax": OperatorRole.SOFTMAX,
        "sv_matmul": OperatorRole.WEIGHTED_VALUES,
        "o_proj": OperatorRole.ATTENTION_OUTPUT,
        "kv_b_proj": OperatorRole.LATENT_EXPANSION,
        "q_norm": OperatorRole.QK_NORM,
        "k_norm": OperatorRole.QK_NORM,
        "down_proj": OperatorRole.FEED_FORWARD_OUTPUT,
        "gate_up_proj": OperatorRole.FEED_FORWARD_INPUT,
        "router": OperatorRole.ROUTER,
        "expert_combine": OperatorRole.EXPERT_COMBINE,
    }
    for _, operator in load(name).graph(STEP):
        expected = by_name.get(operator.name, by_ending.get(operator.name[-4:]))
        assert expected in (None, operator.role), operator.name

"""Fusion: saved traffic, where rules apply, and what prevents them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Operator, Place, check
from llmviewer.core.workload import Group, Step, decode, prefill
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.kernels.fuse import fuse, parse_rules, report
from llmviewer.techniques.kernels.fusion_rules import RULES
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from tests.representative import REPRESENTATIVE

from .answers import analyze

ALL = tuple(rule.name for rule in RULES)
load = functools.cache(models.load)
A6000, A100, H100 = (specs.load(name) for name in ("a6000", "a100-80gb-sxm", "h100-sxm"))
#: A prefill, a decode step, a decode step of a large batch.
STEPS = Step(
    (
        Group(
            batch_size=np.array([1.0, 1.0, 64.0]),
            new_tokens=np.array([1024.0, 1.0, 1.0]),
            cached_tokens=np.array([0.0, 1023.0, 2000.0]),
            logit_positions=np.array([1.0, 1.0, 1.0]),
        ),
    )
)


def graph(model: str, step: Step = STEPS, chip: Chip = A6000, *, flash: bool = True) -> Graph:
    plain = load(model).graph(step)
    return flash_attention(chip)(plain) if flash else plain


def fused(model: str, step: Step, rules: tuple[str, ...] = ALL, chip: Chip = A6000, *, flash: bool = True) -> Graph:
    return fuse(rules, chip)(graph(model, step, chip, flash=flash))


def total(graph: Graph, field: Callable[[Operator], object]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return sum(np.ones(3) * np.asarray(field(op)) * block.repeats for block, op in graph)  # type: ignore[return-value]


def operator_named(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


def operator_names(graph: Graph, block: int = 1) -> list[str]:
    return [op.name for op in graph.blocks[block].operators]


VARIANTS: dict[str, Callable[[Graph], Graph]] = {
    "eager": lambda plain: plain,
    "flash": flash_attention(A6000),
    "flash w4a16": lambda plain: flash_attention(A6000)(quantize(parse_scheme("w4a16"))(plain)),
    "flash w8a8": lambda plain: flash_attention(A6000)(quantize(parse_scheme("w8a8"))(plain)),
}


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_fusion_adds_no_bytes_and_keeps_work_and_weights(name: str) -> None:
    plain = load(name).graph(STEPS)
    for variant in VARIANTS.values():
        before = variant(plain)
        after = fuse(ALL, A6000)(before)
        check(after)
        for place in Place:
            moved = [total(g, lambda op, at=place: op.moved_bytes(at)) for g in (before, after)]  # type: ignore[misc]
            assert (moved[1] <= moved[0] * (1.0 + 1e-12)).all(), place
        for field in ("flops", "matmul_flops", "special_ops", "masked_flops"):
            work = [total(g, lambda op, name=field: getattr(op, name)) for g in (before, after)]  # type: ignore[misc]
            assert work[1] == pytest.approx(work[0], rel=1e-12), field
        weights = [{t.name: (t.elements, t.dtype) for t, _ in g.stored_weights()} for g in (before, after)]
        assert weights[0] == weights[1]


@pytest.mark.parametrize("name", REPRESENTATIVE)
@pytest.mark.parametrize("step", (prefill(1.0, 1024.0), decode(4.0, 1023.0)), ids=("prefill", "decode"))
def test_one_of_two_devices_fuses_its_own_operators(name: str, step: Step) -> None:
    try:
        before = shard(Sharding(tensor=2))(VARIANTS["flash w8a8"](load(name).graph(step)))
    except UserError as error:
        pytest.skip(str(error))
    after = fuse(ALL, A6000)(before)
    check(after)
    assert (total(after, lambda op: op.traffic_bytes) < total(before, lambda op: op.traffic_bytes)).all()
    for what in (lambda op: op.flops, lambda op: op.moved_bytes(Place.LINK)):
        assert total(after, what) == pytest.approx(total(before, what), rel=1e-12)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_fusion_is_idempotent(name: str) -> None:
    once = fused(name, STEPS)
    twice = fuse(ALL, A6000)(once)
    for block, again in zip(once.blocks, twice.blocks, strict=True):
        assert [op.name for op in block.operators] == [op.name for op in again.operators]
        assert all(np.array_equal(a.traffic_bytes, b.traffic_bytes)
                   for a, b in zip(block.operators, again.operators, strict=True))  # fmt: skip


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_no_rule_changes_nothing(name: str) -> None:
    before = graph(name)
    for block, again in zip(before.blocks, fuse((), A6000)(before).blocks, strict=True):
        assert block is again


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_every_rule_is_reported_with_where_and_why(name: str) -> None:
    rows = report(graph(name), ALL, A6000)
    assert {row.rule for row in rows} == set(ALL)
    for row in rows:
        assert row.kernel if np.any(row.where) else row.reason, row


def test_fuse_none_equals_the_default_bit_for_bit() -> None:
    plain, none = analyze("llama-2-7b", "a6000"), analyze("llama-2-7b", "a6000", fusion="none")
    assert plain.to_json() == none.to_json()
    assert plain.to_dict()["fusions"] == []


@pytest.mark.parametrize("name", ("llama-2-7b", "gemma-2-9b", "qwen3-next-80b-a3b", "deepseek-v3", "falcon-7b"))
def test_a_single_point_equals_the_point_in_a_sweep(name: str) -> None:
    """Batches of 8 and 64: norms are fused with linear layers in one and not in the other."""
    both = analyze(name, "h100-sxm", batch_size=[8, 64], input_len=256, output_len=4, fusion="all")
    for point, batch in enumerate((8, 64)):
        single = analyze(name, "h100-sxm", batch_size=batch, input_len=256, output_len=4, fusion="all").to_dict()
        assert both.to_dict(point) == single


def test_a_point_does_not_depend_on_the_latent_attention_form_of_other_points() -> None:
    """A prompt of one token uses the other form: the output of rope is not quantized, and nothing is fused to it."""
    sizes = {"output_len": 1, "fusion": "all"}
    both = analyze("deepseek-v3", "h200", batch_size=7, input_len=[1, 100], **sizes)
    assert both.to_dict(0) == analyze("deepseek-v3", "h200", batch_size=7, input_len=1, **sizes).to_dict()


def test_qkv_reads_its_input_once() -> None:
    """Llama-2-7B, 1024 tokens: three products read 1024 x 4096 x 2 = 8 MiB each, one reads it once."""
    step = prefill(1.0, 1024.0)
    before, after = graph("llama-2-7b", step), fused("llama-2-7b", step, ("qkv",))
    apart = sum(float(operator_named(before, name).traffic_bytes) for name in ("q_proj", "k_proj", "v_proj"))
    one = operator_named(after, "qkv_proj")
    assert apart - one.traffic_bytes == 2 * 8 * 2**20
    assert one.output_shape == (1024, 3 * 4096)
    assert "k_proj" not in operator_names(after)


def test_fused_gate_up_and_activation_write_only_their_product() -> None:
    """Saved: gate and up written and read, 4 x 1024 x 11008 x 2 bytes, and one of two reads of the input, 8 MiB."""
    step = prefill(1.0, 1024.0)
    before, after = graph("llama-2-7b", step), fused("llama-2-7b", step, ("gate-up", "linear-activation"))
    apart = sum(float(operator_named(before, name).traffic_bytes) for name in ("gate_proj", "up_proj", "mlp_act"))
    one = operator_named(after, "gate_up_proj+mlp_act")
    assert apart - one.traffic_bytes == 4 * 1024 * 11008 * 2 + 1024 * 4096 * 2
    assert [a.tensor.name for a in one.writes] == ["mlp_act"]


def test_a_residual_sum_that_is_read_later_is_still_written() -> None:
    """mlp_add also reads attn_add: fusing it with mlp_norm saves only one read, 1024 x 4096 x 2 bytes."""
    step = prefill(1.0, 1024.0)
    before, after = graph("llama-2-7b", step), fused("llama-2-7b", step, ("residual-norm",))
    apart = float(operator_named(before, "attn_add").traffic_bytes) + float(
        operator_named(before, "mlp_norm").traffic_bytes
    )
    assert apart - operator_named(after, "attn_add+mlp_norm").traffic_bytes == 1024 * 4096 * 2
    (row, *_) = report(graph("llama-2-7b", step), ("residual-norm",), A6000)
    assert row.reason == "attn_add is still written: mlp_add reads it"


def test_a_norm_is_fused_with_its_linear_layer_if_the_rows_fit_a_unit() -> None:
    """A unit of an A6000 has 100 KiB: 12 rows of 4096 x 2 bytes, not 13."""
    step = decode(np.array([1.0, 12.0, 13.0]), 100.0)
    rows = [row for row in report(graph("llama-2-7b", step), ("norm-linear",), A6000) if row.block == "layer"]
    assert [list(row.where) for row in rows] == [[1.0, 1.0, 0.0]] * 2
    both = fused("llama-2-7b", step, ("qkv", "norm-linear"))
    assert list(np.asarray(operator_named(both, "attn_norm+qkv_proj").flops) > 0) == [True, True, False]
    assert list(np.asarray(operator_named(both, "qkv_proj").flops) > 0) == [False, False, True]
    assert list(np.asarray(operator_named(both, "attn_norm").flops) > 0) == [False, False, True]


def test_a_chip_with_unknown_unit_memory_is_assumed_to_fit_the_tile() -> None:
    result = analyze("llama-2-7b", "gaudi-3", fusion="norm-linear").to_dict()
    assert specs.load("gaudi-3").on_chip_bytes_per_unit is None
    assert all(row["assumed"] and row["prefill"] == "always" for row in result["fusions"])
    assert any(
        "on-chip memory per compute unit: unknown for gaudi-3" in text for text in result["provenance"]["assumed"]
    )


def test_an_all_reduce_prevents_fusing_a_linear_layer_with_its_sum() -> None:
    sharded = shard(Sharding(tensor=2))(graph("llama-2-7b"))
    rows = report(sharded, ("bias-residual",), A6000)
    assert {row.reason for row in rows} == {
        "attn_all_reduce is not a linear layer",
        "mlp_all_reduce is not a linear layer",
    }
    assert "qkv_proj" in operator_names(fuse(ALL, A6000)(sharded))


def test_the_softmax_rule_moves_no_scores_but_computes_masked_pairs() -> None:
    """Llama-2-7B, 1024 tokens: 32 x 1024 x 1024 scores written and read twice, 2 bytes each."""
    step = prefill(1.0, 1024.0)
    before, after = graph("llama-2-7b", step, flash=False), fused("llama-2-7b", step, ("softmax",), flash=False)
    one = operator_named(after, "qk_matmul+softmax+sv_matmul")
    apart = sum(float(operator_named(before, name).traffic_bytes) for name in ("qk_matmul", "softmax", "sv_matmul"))
    assert apart - one.traffic_bytes == 4 * 32 * 1024 * 1024 * 2
    assert one.matmul_flops == 4 * 32 * 128 * 1024 * 1024
    assert one.masked_flops > 0
    assert operator_named(graph("llama-2-7b", step), "attention").matmul_flops < one.matmul_flops


def test_scores_of_a_long_prompt_do_not_fit_a_unit() -> None:
    """16 rows of scores of 2 bytes: 100 KiB fit 3200 keys."""
    step = prefill(1.0, np.array([3200.0, 3201.0]))
    (row,) = report(graph("llama-2-7b", step, flash=False), ("softmax",), A6000)
    assert list(row.where) == [1.0, 0.0]


def test_the_norm_quantizes_low_bit_inputs() -> None:
    low = quantize(parse_scheme("w8a8"))(load("llama-2-7b").graph(prefill(1.0, 1024.0)))
    one = operator_named(fuse(("quantize",), A6000)(low), "attn_norm+attn_norm_quantize")
    assert [a.tensor.name for a in one.writes] == ["attn_norm_quantize"]


def test_latent_attention_fuses_its_two_down_projections() -> None:
    assert "qkv_a_proj" in operator_names(fused("deepseek-v2", STEPS, ("qkv",)))
    (row,) = [row for row in report(graph("deepseek-v2"), ("rope-attention",), A6000) if row.block == "dense"]
    assert "part" in row.reason


@pytest.mark.parametrize("rule", ALL)
def test_every_rule_is_in_the_docs(rule: str) -> None:
    page = Path(__file__).resolve().parent.parent / "docs" / "reference" / "fusion.md"
    assert f"| `{rule}` |" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("nrm-linear", "did you mean 'norm-linear'"),
        ("qkv+qkv", "given twice"),
        ("qkv+none", "unknown rule of fusion 'none'"),
        ("qkv+", "unknown rule of fusion ''"),
    ),
)
def test_a_wrong_rule_is_rejected_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_rules(text)


def test_fusion_helps_memory_bound_operators_not_compute_bound_ones() -> None:
    """Survey, figure 15: the matmuls of a long prefill take as long as before, elementwise work disappears;
    in decode every byte saved is time saved."""
    rows = {}
    for fusion in ("none", "gate-up+linear-activation"):
        answer = analyze("llama-2-7b", "a6000", input_len=2048, attention="flash", fusion=fusion).to_dict()
        for stage, of in answer["stages"].items():
            rows[fusion, stage] = {row["name"]: row for row in of["operators"]}
    apart, one = rows["none", "prefill"], rows["gate-up+linear-activation", "prefill"]["gate_up_proj+mlp_act"]
    products = apart["gate_proj"]["time_s"] + apart["up_proj"]["time_s"]
    assert apart["gate_proj"]["bound"] == one["bound"] == "compute"
    assert one["time_s"] == pytest.approx(products, rel=1e-12)
    assert apart["mlp_act"]["bound"] == "memory"
    apart, one = rows["none", "decode"], rows["gate-up+linear-activation", "decode"]["gate_up_proj+mlp_act"]
    three = [apart[name] for name in ("gate_proj", "up_proj", "mlp_act")]
    faster = sum(row["time_s"] for row in three) / one["time_s"]
    assert faster == pytest.approx(sum(row["traffic_bytes"] for row in three) / one["traffic_bytes"], rel=1e-9)


def test_flash_attention_saves_differently_in_prefill_and_decode() -> None:
    """Survey, figure 16, on an A6000: in decode time falls as memory access does; in prefill it falls less, because
    the fused kernel is compute-bound."""
    step = {}
    for stage, of in (("prefill", prefill(1.0, 2048.0)), ("decode", decode(1.0, 2047.0))):
        kernels = ("qk_matmul", "softmax", "sv_matmul")
        answer = analyze("llama-2-7b", "a6000", input_len=2048, attention="eager").to_dict()["stages"][stage]
        eager = [row for row in answer["operators"] if row["name"] in kernels]
        flash = analyze("llama-2-7b", "a6000", input_len=2048).to_dict()["stages"][stage]["operators"]
        one = next(row for row in flash if row["name"] == "attention")
        time, moved = (sum(row[what] for row in eager) / one[what] for what in ("time_s", "traffic_bytes"))
        step[stage] = (time, moved)
        assert of.tokens
    assert step["decode"][0] == pytest.approx(step["decode"][1], rel=0.02)
    assert step["prefill"][0] < 0.7 * step["prefill"][1]


def test_time_never_rises() -> None:
    for name in ("llama-2-7b", "gemma-2-9b", "mixtral-8x7b"):
        plain, all_rules = (analyze(name, "h100-sxm", batch_size=[1, 64], fusion=f) for f in ("none", "all"))
        assert (all_rules.analysis.e2e_s <= plain.analysis.e2e_s).all()

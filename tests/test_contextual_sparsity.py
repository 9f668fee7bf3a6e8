"""Contextual sparsity: the union over the tokens of a step, the cost of predictors, and where the gain ends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.core.ir import WORK_FIELDS, Graph, Operator, Pass, Role, check
from llmviewer.core.workload import Step, chunk, decode, mixed, prefill
from llmviewer.hardware import specs
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.parallel.shard import Sharding, shard
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.techniques.sparsity.neurons import Sparsity, contextual_sparsity, union_share
from tests.representative import REPRESENTATIVE

from .answers import analyze

load = functools.cache(models.load)
flash: Pass = flash_attention(specs.load("h100-sxm"))
HALF = Sparsity(attention=0.5, mlp=0.1)
DENSE_MLP = "no dense feed-forward part"
OWN_HEADS = "no attention with separate heads"


def sparse(name: str, step: Step, sparsity: Sparsity = HALF) -> Graph:
    return contextual_sparsity(sparsity)(load(name).graph(step))


def operator(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


def pair(name: str, step: Step, operator_name: str, sparsity: Sparsity = HALF) -> tuple[Operator, Operator]:
    """One operator without and with sparsity."""
    return operator(load(name).graph(step), operator_name), operator(sparse(name, step, sparsity), operator_name)


def weights_read(graph: Graph) -> Any:
    return sum(op.read_bytes(Role.WEIGHT) * block.repeats for block, op in graph)


@pytest.mark.parametrize(("tokens", "read"), [(1.0, 0.1), (2.0, 0.19), (8.0, 1 - 0.9**8), (1024.0, 1.0)])
def test_tokens_read_the_union_of_their_columns(tokens: float, read: float) -> None:
    """10 % of 11008 columns each: 8 tokens of Llama-2-7B read 56.95 % of the three matrices, 1024 all."""
    for name in ("gate_proj", "up_proj", "down_proj"):
        before, after = pair("llama-2-7b", decode(tokens, 9.0), name)
        assert after.read_bytes(Role.WEIGHT) == pytest.approx(read * 4096 * 11008 * 2)
        assert after.matmul_flops == pytest.approx(read * before.matmul_flops)


def test_head_sparsity_halves_queries_but_not_keys_and_values() -> None:
    """Llama-2-7B, one token, half of 32 heads: q_proj and o_proj read 4096 x 2048 weights, k_proj and v_proj all."""
    found = sparse("llama-2-7b", decode(1.0, 9.0))
    read = {name: operator(found, name).read_bytes(Role.WEIGHT) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    assert read == {"q_proj": 4096**2, "k_proj": 2 * 4096**2, "v_proj": 2 * 4096**2, "o_proj": 4096**2}


def test_only_the_queries_of_a_fused_matrix_are_sparse() -> None:
    """Phi-3-mini, qkv_proj of 3 x 3072 columns: (0.5 + 1 + 1) / 3 of it."""
    before, after = pair("phi-3-mini", decode(1.0, 9.0), "qkv_proj")
    assert after.matmul_flops == pytest.approx(2.5 / 3 * before.matmul_flops)


def test_a_sequence_reads_the_cache_of_its_own_active_heads() -> None:
    """8 sequences of Llama-2-7B: each reads half of its own cache; 1000 keys, 32 heads of 128."""
    found = sparse("llama-2-7b", decode(8.0, 999.0))
    for name in ("qk_matmul", "sv_matmul"):
        assert operator(found, name).read_bytes(Role.CACHE) == 0.5 * 8 * 1000 * 4096 * 2
    assert operator(found, "qk_matmul").matmul_flops == 0.5 * 2 * 8 * 1000 * 4096


def test_a_kv_head_is_read_if_any_of_its_query_heads_is_active() -> None:
    """Llama-3.1-8B: 4 query heads share one: 1 - 0.5^4 = 0.9375 of 8 KV heads of 128, but half of the FLOPs."""
    before, after = pair("llama-3.1-8b", decode(1.0, 999.0), "qk_matmul")
    assert after.read_bytes(Role.CACHE) == 0.9375 * 1000 * 1024 * 2
    assert after.matmul_flops == 0.5 * before.matmul_flops


def test_flash_attention_runs_the_same_heads() -> None:
    """One token with 1000 keys: 0.5 x 4 x 1000 x 4096 FLOP, half of K and V."""
    attention = operator(flash(sparse("llama-2-7b", decode(1.0, 999.0))), "attention")
    assert attention.matmul_flops == 0.5 * 4 * 1000 * 4096
    assert attention.read_bytes(Role.CACHE) == 0.5 * 2 * 1000 * 4096 * 2


def test_each_group_of_a_mixed_batch_is_counted_by_its_own_keys() -> None:
    """A chunk of 64 uses all heads of its own 64 keys, three decodes half of their 100 each."""
    found = operator(sparse("llama-2-7b", mixed(chunk(1.0, 64.0, 0.0), decode(3.0, 99.0))), "qk_matmul")
    assert found.read_bytes(Role.CACHE) == pytest.approx((64 + 0.5 * 300) * 4096 * 2)


def test_a_predictor_is_two_matrices_of_width_1000() -> None:
    """Llama-2-7B, per layer: (4096 + 32) x 1000 for the heads, (4096 + 11008) x 1000 for the columns; 2 FLOP each."""
    found = sparse("llama-2-7b", decode(3.0, 9.0))
    for part, outputs in (("attn", 32), ("mlp", 11008)):
        both = [operator(found, f"{part}_predictor_{end}") for end in ("in", "out")]
        assert sum(op.matmul_flops for op in both) == 3 * 2 * 1000 * (4096 + outputs)
    stored = [sum(t.elements * n for t, n in g.stored_weights()) for g in (load("llama-2-7b")._graph(), found)]
    assert stored[1] - stored[0] == 32 * 1000 * (4096 + 32 + 4096 + 11008)


def test_each_device_scores_its_own_heads_and_columns() -> None:
    """OPT-66B, h = 9216, 72 heads, 4 h columns, over 8 devices: h x 1000 whole, then 1000 x 9 and 1000 x 4608."""
    found = shard(Sharding(tensor=8))(sparse("opt-66b", decode(1.0, 9.0)))
    stored = {
        f"{part}_{end}": operator(found, f"{part}_predictor_{end}").read_bytes(Role.WEIGHT) / 2.0
        for part in ("attn", "mlp")
        for end in ("in", "out")
    }
    assert stored == {"attn_in": 9216e3, "attn_out": 9e3, "mlp_in": 9216e3, "mlp_out": 4608e3}
    assert operator(found, "mlp_act").read_bytes(Role.ACTIVATION) == 2.0 * (4608 + 4608)  # columns and their scores


def test_prefill_gains_nothing_and_pays_for_the_predictors() -> None:
    step = prefill(1.0, 2048.0)
    plain, free, found = (
        load("llama-2-7b").graph(step),
        sparse("llama-2-7b", step, Sparsity(attention=0.5, mlp=0.1, predictor=0)),
        sparse("llama-2-7b", step),
    )
    flops = [sum(op.matmul_flops * block.repeats for block, op in g) for g in (plain, free, found)]
    assert flops[0] == pytest.approx(flops[1], rel=1e-12) and flops[2] > flops[0]


def test_deja_vu_doubles_the_speed_of_opt_66b_and_the_gain_vanishes_with_batch_size() -> None:
    """Deja Vu: over 2 times on OPT with three quarters of the parameters skipped.  Half of the heads and a tenth of
    the columns of OPT-66B, h = 9216: q, o 1 + k, v 2 + feed-forward 0.8 = 3.8 h^2 and predictors of (6 h + 72) 1000 =
    0.65 h^2, instead of 12 h^2: 2.7 times less.  32 sequences use 97 % of the columns: predictors cost more."""
    batches = [1, 8, 32]
    plain, found = (
        analyze("opt-66b", "b200", batch_size=batches, input_len=64, output_len=2, **options).analysis.tpot_s
        for options in ({}, {"contextual_sparsity": "attention=0.5,mlp=0.1"})
    )
    gain = plain / found
    assert 2.5 < gain[0] < 2.8
    assert list(gain) == sorted(gain, reverse=True) and gain[2] < 1.0


def test_weights_that_are_not_read_are_not_dequantized() -> None:
    """w4a16, one token: 2 FLOP for a tenth of the weights of up_proj."""
    found = operator(quantize(parse_scheme("w4a16"))(sparse("llama-2-7b", decode(1.0, 9.0))), "up_proj")
    assert found.vector_flops == pytest.approx(2 * 0.1 * 4096 * 11008)


@pytest.mark.parametrize("text", ["attention=1", "1,mlp=1.0", "mlp=1,predictor=64"])
def test_full_density_changes_nothing(text: str) -> None:
    plain = analyze("llama-2-7b", "a6000", output_len=4).to_dict()
    assert analyze("llama-2-7b", "a6000", output_len=4, contextual_sparsity=text).to_dict() == plain


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_head_or_column_sparsity_applies_or_is_rejected_with_a_reason(name: str) -> None:
    """More tokens read more, never more than everything; only predictors add storage; later passes accept
    the graph."""
    for sparsity, why in ((Sparsity(mlp=0.2), DENSE_MLP), (Sparsity(attention=0.5), OWN_HEADS)):
        try:
            found = sparse(name, decode(2.0, 300.0), sparsity)
        except UserError as error:
            assert why in str(error)
            continue
        assert all(np.all(getattr(op, field) >= 0) for _, op in found for field in WORK_FIELDS)
        kept = [{t.name: t.elements * n for t, n in g.stored_weights()} for g in (load(name)._graph(), found)]
        assert kept[0].items() <= kept[1].items() and all("_predictor_" in n for n in set(kept[1]) - set(kept[0]))
        free = Sparsity(attention=sparsity.attention, mlp=sparsity.mlp, predictor=0)
        for count in (1.0, 4.0, 1024.0):
            step = decode(count, 300.0)
            assert weights_read(sparse(name, step, free)) <= weights_read(load(name).graph(step))
        assert weights_read(sparse(name, decode(1.0, 9.0), free)) < weights_read(load(name).graph(decode(1.0, 9.0)))
        for scheme in ("w4a16", "w8a8"):
            low = flash(quantize(parse_scheme(scheme))(found))
            check(low)
            if name not in UNEVEN:
                check(shard(Sharding(tensor=2))(low))


def shards(name: str) -> bool:
    """True if the heads can be split over two devices."""
    try:
        shard(Sharding(tensor=2))(load(name)._graph())
    except UserError:
        return False
    return True


UNEVEN = frozenset(name for name in models.names() if not shards(name))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("mixtral-8x7b", "mlp=0.1", DENSE_MLP),
        ("deepseek-v2-lite", "attention=0.5", OWN_HEADS),
        ("mamba-2.8b", "attention=0.5", OWN_HEADS),
        ("llama-2-7b", "mlp=0", "mlp is '0'; allowed"),
        ("llama-2-7b", "mpl=0.5", "mlp"),
    ],
)
def test_invalid_options_are_rejected_with_a_reason(name: str, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        analyze(name, "h200", contextual_sparsity=text)


def test_low_rank_factors_have_no_sparse_columns() -> None:
    with pytest.raises(UserError, match="low_rank"):
        analyze("llama-2-7b", "h200", contextual_sparsity="mlp=0.1", low_rank="512")


def test_a_point_of_a_sweep_is_bit_identical_to_the_single_point() -> None:
    options: dict[str, Any] = {"output_len": 4, "contextual_sparsity": "attention=0.5,mlp=0.1"}
    batches = [1, 3, 64]
    sweep = analyze("llama-3.1-8b", "a6000", batch_size=batches, **options)
    for at, batch in enumerate(batches):
        single = analyze("llama-3.1-8b", "a6000", batch_size=batch, **options)
        assert sweep.metrics(at) == single.metrics() and sweep.stage("decode", at) == single.stage("decode")


def test_the_union_over_many_tokens_is_everything() -> None:
    assert union_share(0.1, np.array([0.0, 1.0, 2.0, 1e4])) == pytest.approx([0.0, 0.1, 0.19, 1.0])

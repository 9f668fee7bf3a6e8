"""Switch Transformers: experts in some layers of both halves, one per token, up to their capacity."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer import analyze
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, check
from llmviewer.core.kinds import Kind
from llmviewer.core.running import ran
from llmviewer.core.workload import after_input, decode, first_step
from llmviewer.layers.feed_forward import Moe
from llmviewer.models.load import from_fields
from llmviewer.models.model import Model

#: Four encoder layers of which the second and fourth are sparse, two decoder layers of which the second is.
SWITCH = {
    "model_type": "switch_transformers", "d_model": 4, "d_kv": 3, "d_ff": 16, "num_heads": 2, "num_layers": 4,
    "num_decoder_layers": 2, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 1, "num_experts": 4,
    "expert_capacity": 3, "vocab_size": 100, "relative_attention_num_buckets": 8, "torch_dtype": "float16",
}  # fmt: skip
#: Q, K, V, O: 4 x (4 x 6).  One expert or dense part: two matrices of 4 x 16.  Router: 4 x 4.
ATTENTION, MLP, ROUTER = 4 * 24, 2 * 4 * 16, 16


def _model(**fields: object) -> Model:
    return from_fields({**SWITCH, **fields})


def _gemm_flops(graph: Graph) -> dict[str, float]:
    """FLOPs of linear layers by block."""
    found: dict[str, float] = {}
    for block, op in ran(graph):
        if op.kind is Kind.GEMM:
            found[block.name] = found.get(block.name, 0.0) + float(op.matmul_flops) * block.repeats
    return {name: flops for name, flops in found.items() if flops}


def test_parameters_by_hand() -> None:
    """Six layers of attention and two of cross attention, three dense parts, three of four experts with a router.

    Norms of 4: 2 per encoder layer, 3 per decoder layer, 2 final ones; a table of 8 x 2 biases in each half.
    """
    parts = 8 * ATTENTION + 3 * MLP + 3 * (4 * MLP + ROUTER)
    assert _model().parameters == 100 * 4 + parts + 4 * (4 * 2 + 2 * 3 + 2) + 2 * 16


@pytest.mark.parametrize(("experts", "published"), [(16, 1.1), (32, 2.0), (64, 3.8), (128, 7.4), (256, 14.7)])
def test_switch_base_has_the_published_parameters(experts: int, published: float) -> None:
    """arXiv 2101.03961, table 7, with one decimal of 10^9: the base model with a growing number of experts."""
    fields = {"d_ff": 3072, "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6, "num_experts": experts}
    assert from_fields({"model_type": "switch_transformers", **fields}).parameters / 1e9 == pytest.approx(
        published, abs=0.05
    )


def test_a_token_uses_one_expert_of_each_sparse_layer() -> None:
    assert _model().parameters - _model().active_parameters == 3 * 3 * MLP


def test_experts_take_no_more_tokens_of_a_sequence_than_their_capacity() -> None:
    """Two inputs of 20 tokens: four experts take 3 each, 12 of 20; the router scores all of them."""
    graph = _model().graph(first_step(2.0, 20.0))
    check(graph)
    assert _gemm_flops(graph) == {
        "encoder_self": 4 * (2 * 40 * ATTENTION),
        "encoder_mlp_dense": 2 * (2 * 40 * MLP),
        "encoder_mlp_moe": 2 * (2 * 40 * ROUTER + 2 * 24 * MLP),
        "cross_keys": 2 * (2 * 40 * 2 * 24),
        "decoder_self": 2 * (2 * 2 * ATTENTION),
        "decoder_cross_dense": 2 * 2 * (2 * 24 + MLP),
        "decoder_cross_moe": 2 * 2 * (2 * 24 + ROUTER + MLP),
        "head": 2 * 2 * 4 * 100,
    }


def test_a_short_input_fills_no_expert() -> None:
    """12 tokens of a sequence are as many as four experts take: nothing is dropped, as with a larger capacity."""
    step = first_step(2.0, 12.0)
    assert _gemm_flops(_model().graph(step)) == _gemm_flops(_model(expert_capacity=64).graph(step))


def test_the_library_computes_as_many_tokens() -> None:
    """Two experts of capacity 4 over 40 tokens: each has more than 4 of them, and computes 4 of each sequence."""
    torch, library = pytest.importorskip("torch"), pytest.importorskip("transformers")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    fields = {**SWITCH, "num_experts": 2, "expert_capacity": 4}
    config = library.SwitchTransformersConfig(
        **{k: v for k, v in fields.items() if k not in ("model_type", "torch_dtype")}
    )
    torch.manual_seed(0)
    theirs = library.SwitchTransformersForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    with counter, torch.no_grad():
        theirs.get_encoder()(input_ids=torch.randint(100, (2, 40)))
    graph = ran(from_fields(fields).graph(first_step(2.0, 40.0)))
    kinds = (Kind.GEMM, Kind.ATTENTION)
    rows = [(block, op) for block, op in graph if op.kind in kinds and block.name.startswith("encoder")]
    assert sum(float(op.matmul_flops) * block.repeats for block, op in rows) == counter.get_total_flops()


@pytest.mark.parametrize(
    ("fields", "numbers"),
    [
        ({}, [3, 7]),
        ({"num_sparse_encoder_layers": 4}, [0, 1, 2, 3]),
        ({"num_sparse_encoder_layers": 1}, [3]),
        ({"encoder_sparse_step": 3}, [3]),
        ({"num_sparse_encoder_layers": 5}, []),
    ],
)
def test_every_nth_layer_is_sparse_from_the_second_one_on(fields: dict[str, Any], numbers: list[int]) -> None:
    """Every n-th of four, n = layers / sparse layers unless the config states it; none if n is 0, as in the class.

    Where layers differ, layer i is the blocks 2 i (attention) and 2 i + 1 (feed-forward part).
    """
    encoder = _model(**fields).encoder
    assert encoder is not None
    assert [at for layer in encoder.layers if isinstance(layer.feed_forward, Moe) for at in layer.numbers] == numbers


def test_a_decode_step_of_many_sequences_reads_more_experts() -> None:
    """One sequence reads one expert of four; 64 sequences all of them, in expectation 4 (1 - 0.75^64)."""
    reads = {}
    for batch in (1.0, 64.0):
        graph = ran(_model().graph(after_input(decode(batch, 3.0), 5.0)))
        (up,) = (op for block, op in graph if block.name == "decoder_cross_moe" and op.name == "expert_up_proj")
        reads[batch] = float(up.reads[1].elements)
    assert reads == {1.0: 64, 64.0: pytest.approx(4 * 64 * (1 - 0.75**64))}


@pytest.mark.parametrize("field", [{"dense_act_fn": "gated-gelu"}, {"num_selected_experts": 2}])
def test_what_its_class_cannot_run_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        _model(**field)


def test_experts_are_spread_over_devices() -> None:
    """With expert parallelism each of two devices stores two of the four experts of three layers, in fp16."""
    alone, spread = (
        analyze(_model(), "a100", input_len=50, output_len=7, **options).to_dict()["memory"]["weights_bytes"]
        for options in ({}, {"data_parallel_size": 2, "expert_parallel_size": 2})
    )
    assert alone - spread == 3 * 2 * MLP * 2

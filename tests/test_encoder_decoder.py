"""Encoder-decoders: an encoder pass over the input, cross attention over its cache, a decoder from one token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmviewer import analyze, cli
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, check
from llmviewer.core.kinds import Kind
from llmviewer.core.running import ran
from llmviewer.core.workload import after_input, decode, first_step
from llmviewer.models.load import from_fields
from llmviewer.models.model import Model

#: Two encoder layers and one decoder layer, 2 heads of 3 elements in a stream of 4.
T5 = {
    "model_type": "t5", "d_model": 4, "d_kv": 3, "d_ff": 16, "num_heads": 2, "num_layers": 2, "num_decoder_layers": 1,
    "vocab_size": 100, "relative_attention_num_buckets": 8, "torch_dtype": "float16",
}  # fmt: skip
#: Q, K, V, O: 4 x (4 x 6).
ATTENTION = 4 * 24
MLP = 2 * 4 * 16
#: Keys and values of one token of one layer in fp16.
TOKEN_BYTES = 2 * 6 * 2


def _model(**fields: object) -> Model:
    return from_fields({**T5, **fields})


def _flops(graph: Graph, *kinds: Kind) -> dict[str, float]:
    """Matmul FLOPs by block."""
    found: dict[str, float] = {}
    for block, op in ran(graph):
        if op.kind in kinds:
            found[block.name] = found.get(block.name, 0.0) + float(op.matmul_flops) * block.repeats
    return {name: flops for name, flops in found.items() if flops}


def test_parameters_by_hand() -> None:
    """One shared table; three stacks of attention; norms: 2 per encoder layer, 3 per decoder layer, 2 final ones; a
    table of 8 x 2 biases in each half."""
    norms = 4 * (2 * 2 + 3 + 2)
    assert _model().parameters == 100 * 4 + 2 * (ATTENTION + MLP) + (2 * ATTENTION + MLP) + norms + 2 * 16


def test_prefill_is_the_encoder_the_cross_keys_and_one_decoder_token() -> None:
    """Two inputs of 5 tokens: 10 rows in the encoder and in K and V of cross attention, 2 rows in the decoder."""
    graph = _model().graph(first_step(2.0, 5.0))
    check(graph)
    assert _flops(graph, Kind.GEMM) == {
        "encoder_layer": 2 * (2 * 10 * (ATTENTION + MLP)),
        "cross_keys": 2 * 10 * 2 * 24,
        "decoder_self": 2 * 2 * ATTENTION,
        "decoder_cross": 2 * 2 * (2 * 24 + MLP),  # Q and O alone
        "head": 2 * 2 * 4 * 100,
    }
    pair = 2 * (6 + 6)  # scores and weighted values of both heads
    assert _flops(graph, Kind.ATTENTION) == {
        "encoder_layer": 2 * 2 * 25 * pair,
        "decoder_self": 2 * 1 * pair,
        "decoder_cross": 2 * 5 * pair,
    }


def test_a_decode_step_runs_no_encoder_and_reads_the_whole_cross_cache() -> None:
    """Three tokens cached: 4 keys of its own, 5 of the input."""
    graph = ran(_model().graph(after_input(decode(2.0, 3.0), 5.0)))
    pair = 2 * (6 + 6)
    assert _flops(graph, Kind.ATTENTION) == {"decoder_self": 2 * 4 * pair, "decoder_cross": 2 * 5 * pair}
    moved = {block.name: sum(float(op.traffic_bytes) for op in block.operators) for block in graph.blocks}
    assert [name for name, traffic in moved.items() if not traffic] == [
        "encoder_embedding", "encoder_layer", "encoder_norm", "cross_keys",
    ]  # fmt: skip
    cross = next(block for block in graph.blocks if block.name == "decoder_cross")
    written = sum(float(a.elements) for op in cross.operators for a in op.writes if a.tensor.name.endswith("_cache"))
    read = sum(float(a.elements) * 2 for op in cross.operators for a in op.reads if a.tensor.name.endswith("_cache"))
    assert (written, read) == (0.0, 2 * 5 * TOKEN_BYTES)


def test_the_cache_is_that_of_the_input_and_of_the_tokens_generated() -> None:
    """Two sequences, 7 outputs: the start token and 6 of them, and 50 of the input."""
    memory = analyze(_model(), "a100", input_len=50, output_len=7, batch_size=2).to_dict()["memory"]
    assert memory["kv_cache_bytes"] == 2 * (7 + 50) * TOKEN_BYTES


def test_a_request_is_one_prefill_and_decode_steps_over_the_same_input() -> None:
    """Without outputs after the first the decode time is 0; the decoder's context begins at its start token."""
    found = analyze(_model(), "a100", input_len=50, output_len=3, efficiency="ideal").to_dict()
    assert [found["stages"][name]["cached_tokens"] for name in ("prefill", "decode")] == [0, 1]
    assert found["stages"]["prefill"]["new_tokens"] == 50
    shown = {op["block"] for op in found["stages"]["decode"]["operators"]}
    assert shown == {"embedding", "decoder_self", "decoder_cross", "head"}


def test_each_layer_of_umt5_has_its_own_biases() -> None:
    """8 x 2 for each of three layers instead of one per half."""
    gated = {"feed_forward_proj": "gated-gelu"}
    own, shared = _model(model_type="umt5", **gated), _model(model_type="mt5", **gated)
    assert own.parameters - shared.parameters == 16


@pytest.mark.parametrize(
    "options",
    [
        {"batching": "continuous"},
        {"prefix_cache": "0.5"},
        {"kv_evict": 0.5},
        {"max_num_batched_tokens": 16},
        {"pipeline_parallel_size": 2},
        {"speculative": "ngram"},
        {"early_exit": "mean=0.6"},
        {"prune": "depth=0.5"},
    ],
)
def test_what_needs_one_stack_of_tokens_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is an encoder-decoder"):
        analyze(_model(), "a100", input_len=50, output_len=7, **options)


@pytest.mark.parametrize(
    "words",
    [
        "report -o {}.html",
        "plot operators -o {}.png",
        "plot length -o {}.png",
        "trace -o {}.json",
        "sweep --batch-size 1,2 --format csv -o {}.csv",
        "analyze -tp 2 --quantization w8a16 --fusion all --format json -o {}.json",
    ],
)
def test_pages_and_plots_show_both_halves(words: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(T5))
    command, _, file = words.format(tmp_path / "page").partition(" -o ")
    verb, *options = command.split()
    named = ["plot", options.pop(0)] if verb == "plot" else [verb]
    asked = [*named, str(config), "--hardware", "a100", "--input-len", "8", "--output-len", "4", *options, "-o", file]
    with pytest.raises(SystemExit, match="0"):
        cli.run(asked)
    assert Path(file).stat().st_size > 400


def test_the_tokens_of_an_encoder_are_not_split_over_devices() -> None:
    with pytest.raises(UserError, match=r"bert-base runs one .* pass, .* not possible: context parallelism"):
        analyze("bert-base", "h100-sxm", output_len=1, context_parallel_size=2)

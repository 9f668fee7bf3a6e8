"""Flash-Decoding: number of splits of the context and cost of the partial results."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Graph, Operator, check
from llmviewer.core.workload import Group, Step, decode, prefill
from llmviewer.hardware import specs
from llmviewer.techniques.kernels.flash_attention import UNIFIED, flash_attention, flash_decoding
from llmviewer.techniques.kernels.fuse import fuse, parse_rules
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from tests.representative import REPRESENTATIVE

from .answers import analyze

load = functools.cache(models.load)
A100 = specs.load("a100-80gb-sxm")
PREFILL_AND_DECODE = Step(
    (
        Group(
            batch_size=np.array([1.0, 1.0]),
            new_tokens=np.array([2048.0, 1.0]),
            cached_tokens=np.array([0.0, 4095.0]),
            logit_positions=np.array([1.0, 1.0]),
        ),
    )
)


def split(model: str, step: Step, splits: float | None = None) -> Graph:
    return flash_decoding(A100, splits)(flash_attention(A100)(load(model).graph(step)))


def operator_named(graph: Graph, name: str) -> Operator:
    return next(op for _, op in graph if op.name == name)


def test_one_sequence_of_llama_2_7b_is_split_over_idle_units() -> None:
    """108 units / 32 heads = 3 splits: 3 x 32 x (128 + 2) x 4 bytes written, and read again."""
    graph = split("llama-2-7b", decode(1.0, 4095.0))
    combine, attention = operator_named(graph, "attention_combine"), operator_named(graph, "attention")
    partials = 3 * 32 * 130 * 4
    assert combine.traffic_bytes == partials + 4096 * 2
    plain = operator_named(flash_attention(A100)(load("llama-2-7b").graph(decode(1.0, 4095.0))), "attention")
    assert attention.traffic_bytes - plain.traffic_bytes == partials - 4096 * 2
    assert combine.vector_flops == 3 * 32 * (2 * 128 + 4) + 4096
    assert combine.special_ops == 3 * 32


def test_a_unified_maximum_leaves_sums_alone() -> None:
    """FlashDecoding++: 3 splits x 32 heads with 128 sums and one sum of exponentials, added without a product."""
    made = flash_decoding(A100, None, UNIFIED)(flash_attention(A100)(load("llama-2-7b").graph(decode(1.0, 4095.0))))
    combine = operator_named(made, "attention_combine")
    assert combine.traffic_bytes == 3 * 32 * 129 * 4 + 4096 * 2
    assert (combine.vector_flops, combine.special_ops) == (3 * 32 * (128 + 1) + 4096, 0.0)


def test_a_short_context_is_split_into_blocks_of_128_keys() -> None:
    graph = split("llama-3.1-8b", decode(1.0, 255.0))
    assert operator_named(graph, "attention_combine").special_ops == 2 * 32


def test_a_batch_that_fills_the_units_and_a_prefill_are_not_split() -> None:
    for step in (decode(4.0, 4095.0), prefill(1.0, 4096.0)):
        assert "attention_combine" not in [op.name for _, op in split("llama-2-7b", step)]


@pytest.mark.parametrize("splits", (2.0, 8.0, 32.0))
def test_a_given_number_of_splits_is_used(splits: float) -> None:
    graph = split("llama-2-7b", PREFILL_AND_DECODE, splits)
    combine = operator_named(graph, "attention_combine")
    assert list(np.asarray(combine.special_ops)) == [0.0, splits * 32]
    assert list(np.asarray(combine.traffic_bytes)) == [0.0, splits * 32 * 130 * 4 + 4096 * 2]


def test_one_split_equals_flash_attention_bit_for_bit() -> None:
    one, flash = (analyze("llama-2-7b", "a100", attention=text).to_dict() for text in ("flash-decoding=1", "flash"))
    assert one["passes"] != flash["passes"]
    for name in ("stages", "memory", "metrics"):
        assert one[name] == flash[name]


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_splits_add_partial_results_and_no_matmul_flops(name: str) -> None:
    plain = quantize(parse_scheme("w8a8"))(load(name).graph(PREFILL_AND_DECODE))
    before = flash_attention(A100)(plain)
    after = flash_decoding(A100, 4.0)(before)
    for graph in (after, fuse(parse_rules("all"), A100)(after)):
        check(graph)
    for what in ("traffic_bytes", "vector_flops", "matmul_flops"):
        counts = [np.zeros(2) + sum(getattr(op, what) * b.repeats for b, op in of) for of in (before, after)]
        if what == "matmul_flops":
            assert np.array_equal(*counts)
        assert (counts[1] >= counts[0]).all()
        assert counts[1][0] == counts[0][0]


def test_splits_gain_nothing_under_ideal_and_cost_their_partial_results() -> None:
    times = [analyze("llama-2-7b", "a100", attention=f"flash-decoding={n}").analysis.tpot_s[0] for n in (1, 2, 4, 8)]
    assert times == sorted(times)
    assert times[-1] < 1.01 * times[0]


def test_a_single_point_equals_the_point_in_a_sweep() -> None:
    options = {"input_len": 1000, "output_len": 8, "attention": "flash-decoding", "fusion": "all"}
    both = analyze("llama-2-7b", "a100", batch_size=[1, 8], **options)
    for point, batch in enumerate((1, 8)):
        assert both.to_dict(point) == analyze("llama-2-7b", "a100", batch_size=batch, **options).to_dict()


def test_a_chip_with_unknown_units_needs_a_number_of_splits() -> None:
    unknown = next(name for name in specs.names() if specs.load(name).units is None)
    with pytest.raises(UserError, match="flash-decoding=8"):
        flash_decoding(specs.load(unknown))


@pytest.mark.parametrize("chip", ["groq-lpu", "tpu-v5e", "v100", "m3-max"])
def test_a_chip_with_unpublished_row_blocks_is_rejected(chip: str) -> None:
    with pytest.raises(UserError, match="row blocks"):
        flash_decoding(specs.load(chip), 4.0)


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("flash-decoding=0", "splits is '0'; allowed: a whole number from 1 to 128"),
        ("flash-decoding=", "splits"),
        ("flashdecoding", "did you mean 'flash-decoding'"),
    ),
)
def test_a_wrong_text_is_rejected_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        analyze("llama-2-7b", "a100", attention=text)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_chunk_without_decode_sequences_has_no_splits() -> None:
    """Steps of a chunked batch without decode sequences have no splits and no warning."""
    found = analyze("llama-2-7b", "a100", batch_size=4, input_len=64, output_len=3, batching="chunked",
                    attention="flash-decoding")  # fmt: skip
    assert float(found.analysis.tpot_s[0]) > 0.0

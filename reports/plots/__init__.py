"""Pictures: the registry, one line a kind.  Every kind is a file with `frame` (results -> rows), `draw` (rows ->
Figure), so that a notebook draws rows of its own, and `picture` (both)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class PlotData(Enum):
    """What a picture is made of."""

    POINT = "one answer of every configuration"
    CURVE = "many answers of every configuration, along an axis"
    MAP = "winners over batch and context"
    TABLE = "measured rows with their predictions, a file"
    LEDGER = "published figures with their predictions"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotKind:
    """How the command line offers a picture.

    module: of reports.plots.  summary: what it shows.  axes: the lists of sizes along which its points may lie, and the
    values of the first unless another is given.  lists: options that have other defaults here.
    fewest, most: configurations it shows.  metrics: what it may be asked to show, the first unless asked otherwise.
    example: of its options, for the documentation.
    """

    module: str
    summary: str
    example: str
    given: PlotData = PlotData.CURVE
    axes: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    fewest: int = 1
    most: int = 14
    metrics: tuple[str, ...] = ()


BATCHES, PROMPTS = "1:256:*2", "128:16384:*2"
#: The batch unless a list of lengths is given.
BATCH_OR_LENGTH = {"batch_size": BATCHES, "input_len": PROMPTS, "output_len": "128"}

KINDS: dict[str, PlotKind] = {
    "roofline": PlotKind(
        module="roofline",
        summary="Operators under the roofs of memory and compute, log-log.",
        example="llama-2-7b --hardware a6000 --input-len 2048",
        given=PlotData.POINT,
        most=7,
    ),
    "latency": PlotKind(
        module="latency",
        summary="Time to first token and per output token, over the batch.",
        example="llama-3.1-8b --hardware a100-80gb-sxm,h100-sxm --efficiency calibrated --engine vllm",
        axes=BATCH_OR_LENGTH,
    ),
    "throughput": PlotKind(
        module="throughput",
        summary="Output tokens per second, over the batch.",
        example="llama-3.1-8b --hardware a6000 --quantization none,w8a8,w4a16",
        axes=BATCH_OR_LENGTH,
    ),
    "length": PlotKind(
        module="length",
        summary="Time of prefill and of a decode step, over the length of the prompt.",
        example="qwen3-8b --hardware h100-sxm --attention flash,eager",
        axes={"input_len": PROMPTS},
    ),
    "quantization": PlotKind(
        module="quantization",
        summary="Time and memory by quantization: grouped bars.",
        example="llama-2-13b --hardware a6000",
        lists={"quantization": "none,w8a16,w8a8,w4a16,w4a4kv4"},
        given=PlotData.POINT,
    ),
    "bandwidth": PlotKind(
        module="bandwidth",
        summary="Time over the memory bandwidth of hypothetical chips, alike but for it.",
        example="llama-2-13b --hardware a6000 --batch-size 16 --quantization none,w4a16",
        axes={"bandwidth": ""},
    ),
    "memory": PlotKind(
        module="memory",
        summary="Weights, KV cache, activations and framework against the capacity, over batch or length.",
        example="llama-2-13b --hardware a6000 --kv-cache-dtype auto,kv4",
        axes=BATCH_OR_LENGTH,
        most=6,
    ),
    "operators": PlotKind(
        module="operators",
        summary="Stacked time by operator, prefill and a decode step.",
        example="qwen3-30b-a3b --hardware h100-sxm --quantization none,fp8 --batch-size 16",
        given=PlotData.POINT,
    ),
    "pareto": PlotKind(
        module="pareto",
        summary="Tokens per second of a user against those of a device, over the batch, with the frontier.",
        example="llama-3.1-70b --hardware h100-sxm -tp 2,4,8 --efficiency calibrated --engine vllm",
        axes=BATCH_OR_LENGTH,
    ),
    "crossover": PlotKind(
        module="crossover",
        summary="A map of winners over batch and context.",
        example="llama-2-7b --hardware a6000 --quantization w8a8,w4a16 --metric e2e_s",
        given=PlotData.MAP,
        axes={"batch_size": BATCHES, "input_len": "512:65536:*2"},
        fewest=2,
        metrics=("decode_time_s", "ttft_s", "tpot_s", "e2e_s", "device_time_s"),
    ),
    "waterfall": PlotKind(
        module="waterfall",
        summary="What changed between two configurations, adding up exactly.",
        example="llama-2-7b --hardware a6000 --quantization none,w4a16 --metric e2e_s",
        given=PlotData.POINT,
        fewest=2,
        most=2,
        metrics=("tpot_s", "e2e_s", "ttft_s"),
    ),
    "parity": PlotKind(
        module="parity",
        summary="Predicted against measured, with residuals and intervals, of `calibrate validate -o`.",
        example="predicted.csv",
        given=PlotData.TABLE,
    ),
    "ledger": PlotKind(
        module="ledger",
        summary="Our predictions over published figures, source by source.",
        example="",
        given=PlotData.LEDGER,
    ),
}

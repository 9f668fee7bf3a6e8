"""Registry of plots.  Each kind is a module with `frame` (results -> rows), `draw` (rows -> Figure) and `picture`
(both), so that a notebook can draw its own rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from llmviewer.core.frozen import frozen


class PlotData(Enum):
    """Input data of a plot."""

    POINT = "one point of every configuration"
    PAIR = "two configurations, whose difference is split over factors"
    ADVICE = "one configuration, with changes that were tried on it"
    ELASTICITY = "one configuration, with the elasticities of its time"
    REQUIRED = "one configuration, with the figures that a target takes"
    CURVE = "many points of every configuration, along an axis"
    FIGURE = "every configuration on many chips that differ in one figure"
    MAP = "the best configuration over batch size and context length"
    TABLE = "a file of measured rows with predictions"
    LEDGER = "published measurements with predictions"
    LOAD = "a simulated load of one configuration"


@frozen
class PlotKind:
    """One kind of plot on the command line.

    module: in reports.plots.  summary: one sentence.  axes: sizes that may be a list, with default values; without any
    list the first axis is used.  lists: options with other defaults than elsewhere.
    fewest, most: number of configurations.  metrics: allowed metrics, the first is the default.
    example: arguments for the documentation.
    """

    module: str
    summary: str
    example: str
    data: PlotData = PlotData.CURVE
    axes: Mapping[str, str] = field(default_factory=dict)
    lists: Mapping[str, str] = field(default_factory=dict)
    fewest: int = 1
    most: int = 14
    metrics: tuple[str, ...] = ()


BATCHES, PROMPTS = "1:256:*2", "128:16384:*2"
#: Batch size is the default axis.
BATCH_OR_LENGTH = {"batch_size": BATCHES, "input_len": PROMPTS, "output_len": "128"}

KINDS: dict[str, PlotKind] = {
    "roofline": PlotKind(
        module="roofline",
        summary="Operators under the roofs of memory and compute, on log-log axes.",
        example="llama-2-7b --hardware a6000 --input-len 2048",
        data=PlotData.POINT,
        most=7,
    ),
    "latency": PlotKind(
        module="latency",
        summary="TTFT and TPOT over batch size.",
        example="llama-3.1-8b --hardware a100-80gb-sxm,h100-sxm --engine vllm",
        axes=BATCH_OR_LENGTH,
    ),
    "throughput": PlotKind(
        module="throughput",
        summary="Output tokens per second over batch size.",
        example="llama-3.1-8b --hardware a6000 --quantization none,w8a8,w4a16",
        axes=BATCH_OR_LENGTH,
    ),
    "length": PlotKind(
        module="length",
        summary="Time of prefill and of a decode step over prompt length.",
        example="qwen3-8b --hardware h100-sxm --attention flash,eager",
        axes={"input_len": PROMPTS},
    ),
    "quantization": PlotKind(
        module="quantization",
        summary="Time and memory by quantization, as bars.",
        example="llama-2-13b --hardware a6000",
        lists={"quantization": "none,w8a16,w8a8,w4a16,w4a4kv4"},
        data=PlotData.POINT,
    ),
    "bandwidth": PlotKind(
        module="bandwidth",
        summary="Time over the memory bandwidth of hypothetical chips that differ only in it.",
        example="llama-2-13b --hardware a6000 --batch-size 16 --quantization none,w4a16 --target 20ms",
        axes={"bandwidth": ""},
    ),
    "figure": PlotKind(
        module="figure_curve",
        summary="Time over any figure of hypothetical chips; over the capacity, the requests that fit at once.",
        example="llama-3.1-8b --hardware h100-sxm --input-len 4096 --over peak.bf16=250TFLOP/s:4PFLOP/s:*2",
        data=PlotData.FIGURE,
    ),
    "memory": PlotKind(
        module="memory",
        summary="Weights, KV cache, activations and framework against capacity, over batch size or length.",
        example="llama-2-13b --hardware a6000 --kv-cache-dtype auto,kv4",
        axes=BATCH_OR_LENGTH,
        most=6,
    ),
    "operators": PlotKind(
        module="operators",
        summary="Time by operator, stacked, for prefill and a decode step.",
        example="qwen3-30b-a3b --hardware h100-sxm --quantization none,fp8 --batch-size 16",
        data=PlotData.POINT,
    ),
    "pareto": PlotKind(
        module="pareto",
        summary="Tokens per second per user against those per device over batch size, with the Pareto frontier.",
        example="llama-3.1-70b --hardware h100-sxm -tp 2,4,8 --engine vllm",
        axes=BATCH_OR_LENGTH,
    ),
    "crossover": PlotKind(
        module="crossover",
        summary="Map of the best configuration over batch size and context length.",
        example="llama-2-7b --hardware a6000 --quantization w8a8,w4a16 --metric e2e_s",
        data=PlotData.MAP,
        axes={"batch_size": BATCHES, "input_len": "512:65536:*2"},
        fewest=2,
        metrics=("decode_time_s", "ttft_s", "tpot_s", "e2e_s", "device_time_s"),
    ),
    "waterfall": PlotKind(
        module="waterfall",
        summary="Contributions to the difference between two configurations, which add up exactly.",
        example="llama-2-7b --hardware a6000 --quantization none,w4a16 --metric e2e_s",
        data=PlotData.POINT,
        fewest=2,
        most=2,
        metrics=("tpot_s", "e2e_s", "ttft_s"),
    ),
    "factors": PlotKind(
        module="factors",
        summary="Difference between two configurations by factor: bandwidth, peak, kernels, options, sizes.",
        example="llama-3.1-8b --hardware a100-80gb-sxm,h100-sxm --engine vllm",
        data=PlotData.PAIR,
        fewest=2,
        most=2,
        metrics=("tpot_s", "e2e_s", "ttft_s"),
    ),
    "advice": PlotKind(
        module="advice",
        summary="The combination of changes that `advise` finds, step by step.",
        example="llama-3.1-8b --hardware h100-sxm --batch-size 16 --engine vllm",
        data=PlotData.ADVICE,
        most=1,
        metrics=("tpot_s", "e2e_s", "ttft_s"),
    ),
    "elasticity": PlotKind(
        module="elasticity",
        summary="Tornado: what ten percent more or less of each resource of the chip does to a time.",
        example="llama-3.1-8b --hardware h100-sxm --batch-size 16 --engine vllm",
        data=PlotData.ELASTICITY,
        most=1,
        metrics=("tpot_s", "e2e_s", "ttft_s"),
    ),
    "frontier": PlotKind(
        module="frontier",
        summary="Two figures of a chip that together meet a target, with the chips that exist.",
        example="llama-2-70b --hardware h100-sxm --vary bandwidth,peak.bf16 --metric ttft_s --target 100ms",
        data=PlotData.REQUIRED,
        most=1,
        metrics=("tpot_s", "e2e_s", "ttft_s"),
    ),
    "latency-cdf": PlotKind(
        module="latency_cdf",
        summary="Distributions of TTFT, TPOT and E2E of a server under load.",
        example="llama-3.1-8b --hardware h100-sxm --request-rate 16 --input-len 1155 --output-len 211 --ttft p99:300ms",
        data=PlotData.LOAD,
    ),
    "load-timeline": PlotKind(
        module="load_timeline",
        summary="Decoding and waiting requests and KV cache over the time of a simulated run.",
        example="llama-3.1-8b --hardware h100-sxm --request-rate 18 --input-len lognormal,mean=1155,cv=1.2 "
        "--output-len lognormal,mean=211,cv=0.8 --arrivals gamma,cv=2",
        data=PlotData.LOAD,
    ),
    "latency-rate": PlotKind(
        module="latency_rate",
        summary="TTFT and TPOT against the request rate, up to the highest sustainable rate.",
        example="llama-3.1-8b --hardware h100-sxm --request-rate 8 --input-len 1155 --output-len 211 --tpot p99:40ms",
        data=PlotData.LOAD,
    ),
    "parity": PlotKind(
        module="parity",
        summary="Predicted against measured values with residuals and intervals, from `calibrate validate -o`.",
        example="predicted.csv",
        data=PlotData.TABLE,
    ),
    "ledger": PlotKind(
        module="ledger",
        summary="Predictions over published measurements, by source.",
        example="",
        data=PlotData.LEDGER,
    ),
}

"""The bottleneck of a request in one sentence, formulas of operators in words, and fusions applied or not."""

from __future__ import annotations

import re
from typing import Any

from llmviewer.core.kinds import Kind
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Facts
from llmviewer.reports.stage_table import kernel_limits, moved

#: Source of the method and the advice: section 2.2 of this survey.
SURVEY = "LLM Inference Unveiled, arXiv 2402.16363"
#: Operators that the sentence names.
MAX_NAMED = 3
#: Part of the traffic -> how to reduce it.
TRAFFIC_ADVICE = {
    "weights": "quantize them (--quantization w4a16), or amortize each read over more sequences",
    "weights of few bits": "amortize each read over more sequences",
    "KV cache": "quantize it (--kv-cache-dtype fp8); a larger batch does not help: each sequence reads its own cache",
    "activations": "fuse operators so that intermediate tensors stay on chip",
}
#: Matrix dtype -> option that makes linear layers use it.
DTYPE_OPTIONS = {
    "fp8": " (--quantization w8a8-fp8)",
    "int8": " (--quantization w8a8)",
    "int4": " (--quantization w4a4)",
    "fp4": " (--quantization nvfp4)",
}
#: Weight formats of at most 4 bits, which further quantization hardly shrinks.
FEW_BITS = re.compile(r"(?:int|fp)[1-4](?!\d)")
#: Advice for the bounds that the survey does not discuss (it covers memory and compute).
BOUND_ADVICE = {
    "vector": "fuse elementwise work into adjacent matrix kernels",
    "special": "compute fewer exponentials: fused attention skips masked pairs",
    "l2": "use larger query blocks, which read keys and values less often",
    "link": "send less between devices: fewer, larger shards or smaller activations",
    "host": "keep more data in device memory",
    "disk": "keep more data in host or device memory",
    "overhead": "run fewer, larger kernels: fusion, CUDA graphs, a larger batch",
}


def limiting_stage(answer: dict[str, Any]) -> str:
    """Returns the stage that takes more of the end-to-end time."""
    metrics = answer["metrics"]
    return "prefill" if metrics["ttft_s"] >= metrics["e2e_s"] - metrics["ttft_s"] else "decode"


def sentence(answer: dict[str, Any]) -> str:
    """Returns which stage takes most of the time, what bounds it, and in which operators."""
    name = limiting_stage(answer)
    stage, metrics = answer["stages"][name], answer["metrics"]
    bound = stage["bound"]
    part = metrics["ttft_s"] if name == "prefill" else metrics["e2e_s"] - metrics["ttft_s"]
    bound_share = stage["time_by_bound_s"][bound] / stage["time_s"]
    names, share = _heaviest(stage, bound)
    tower = ", with the vision tower before it," if name == "prefill" and "images" in answer else ""
    return (
        f"{name.capitalize()}{tower} takes {fmt.percent(part / metrics['e2e_s'])} of the request's time and is "
        f"{bound}-bound: {fmt.percent(bound_share)} of it is limited by {_resource(answer, stage, bound)}, "
        f"{fmt.percent(share)} in {names}.{_kernel_limits(stage)}"
    )


def _kernel_limits(stage: dict[str, Any]) -> str:
    """Returns a second sentence where kernels have limits of their own."""
    limits = kernel_limits(stage)
    reached = fmt.percent(stage["ideal_time_s"] / stage["time_s"])
    return f" {limits[:1].upper()}{limits[1:]}; {reached} of the roofline is reached." if limits else ""


def _heaviest(stage: dict[str, Any], bound: str) -> tuple[str, float]:
    """Returns the operators with this bound that take most time, and their share of the stage's time.

    The share is capped at that of the bound, because copies and kernels that overlap are counted twice.
    """
    seconds: dict[str, float] = {}
    for row in stage["operators"]:
        if row["bound"] == bound and (bound != "link" or (row["kind"] != "collective") is _to_host(stage)):
            seconds[row["name"]] = seconds.get(row["name"], 0.0) + row["time_s"] * row["layers"]
    heaviest = sorted(seconds, key=lambda name: -seconds[name])[:MAX_NAMED]
    bound_s = stage["time_by_bound_s"][bound]
    return ", ".join(heaviest), min(sum(seconds[name] for name in heaviest), bound_s) / stage["time_s"]


def _to_host(stage: dict[str, Any]) -> bool:
    """Whether most link-bound time is spent on the host link rather than on links between devices."""
    rows = [row for row in stage["operators"] if row["bound"] == "link"]
    exchanged = float(sum(row["time_s"] * row["layers"] for row in rows if row["kind"] == "collective"))
    return exchanged < float(sum(row["time_s"] * row["layers"] for row in rows if row["kind"] != "collective"))


def _resource(answer: dict[str, Any], stage: dict[str, Any], bound: str) -> str:
    roof = answer["roofline"]
    peak = f"{fmt.flops_per_s(roof['peak_flops_per_s'])} {roof['compute_dtype']}"
    words = {
        "compute": f"the matrix units ({peak})",
        "memory": f"device memory ({fmt.bandwidth(roof['bandwidth_bytes_per_s'])})",
        "vector": "the vector units",
        "special": "the special-function units",
        "l2": "the L2 cache",
        "link": "the link to the host" if _to_host(stage) else "the link between devices",
        "host": "host memory",
        "disk": "the disk",
        "overhead": "fixed overhead per kernel",
    }
    return words[bound]


def advice(answer: dict[str, Any]) -> str:
    """Returns the survey's advice for the bound of the limiting stage, applied to this request."""
    stage = answer["stages"][limiting_stage(answer)]
    bound = stage["bound"]
    if bound == "memory":
        return (
            f"Memory-bound: quantize, fuse, enlarge the batch. {_memory_advice(answer, stage)}{_rows_are_free(stage)}"
        )
    if bound == "compute":
        return f"Compute-bound: use lower-precision arithmetic. {_compute_advice(answer)}"
    if bound == "link" and _to_host(stage):
        return f"Link-bound: {BOUND_ADVICE['host']}, amortize each copy over more sequences, or compute on the host."
    return f"{bound.capitalize()}-bound: {BOUND_ADVICE[bound]}."


def _rows_are_free(stage: dict[str, Any]) -> str:
    """Returns what a larger batch costs where kernels unpack weights for much of the time: next to nothing."""
    seconds = sum(spent for limit, spent in stage["time_by_kernel_limit_s"].items() if limit.startswith("unpacking of"))
    unpacks = seconds > stage["time_s"] / 4.0
    return " Its kernels unpack each weight once for all rows, so a larger batch adds little time." if unpacks else ""


def _memory_advice(answer: dict[str, Any], stage: dict[str, Any]) -> str:
    """Returns which tensors cause most of the traffic, and how to reduce it."""
    parts = moved(stage)
    largest = max(parts, key=lambda name: parts[name])
    max_batch = answer["memory"]["max_batch_size"]
    batch = f" (up to batch size {fmt.whole(max_batch)} fits)" if largest == "weights" and max_batch > 1 else ""
    few_bits = _few_bit_format(answer["model"]) if largest == "weights" else ""
    remedy = TRAFFIC_ADVICE["weights of few bits" if few_bits else largest]
    already = f", already {few_bits}" if few_bits else ""
    share = fmt.percent(parts[largest] / stage["traffic_bytes"])
    return f"Here {share} of the bytes are {largest}{already}: {remedy}{batch}."


def _few_bit_format(model: dict[str, Any]) -> str:
    """Returns the format of most weights if it has at most 4 bits, else an empty string."""
    stored = model["weight_formats"]
    main = str(max(stored, key=lambda name: stored[name]))
    return main if FEW_BITS.search(main) else ""


def _compute_advice(answer: dict[str, Any]) -> str:
    """Returns the dtypes that the chip multiplies faster than the one in use."""
    roof, peaks = answer["roofline"], answer["hardware"]["peak_flops_per_s"]
    used = roof["peak_flops_per_s"]
    faster = sorted((rate, dtype) for dtype, rate in peaks.items() if rate > used)
    if not faster:
        return f"{answer['hardware']['name']} has no matrix format faster than {roof['compute_dtype']}."
    listed = " or ".join(
        f"{dtype}{DTYPE_OPTIONS.get(dtype, '')} at {fmt.tera(rate)} TFLOP/s ({fmt.times(rate / used)})"
        for rate, dtype in faster[:2]
    )
    return f"Here: run linear layers in {listed} instead of {roof['compute_dtype']} at {fmt.tera(used)} TFLOP/s."


#: Kind -> how its FLOP are counted.
FLOPS = {kind.value: kind.facts.flops for kind in Kind}
BYTES = "weights once per pass, activations read once and written once, keys and values of KV heads"


def seconds(operator: dict[str, Any], efficiency: str) -> str:
    """Returns the time of one layer's operator as a sum: `max(memory 21.9 µs, compute 3.1 µs) = 21.9 µs`."""
    parts = dict(operator["time_by_resource_s"])
    fixed = parts.pop("overhead", None)
    listed = ", ".join(f"{name} {fmt.duration(spent)}" for name, spent in sorted(parts.items(), key=lambda p: -p[1]))
    largest = "max" if efficiency == "ideal" else "smooth max"
    overhead = f" + overhead {fmt.duration(fixed)}" if fixed else ""
    return f"{f'{largest}({listed})' if len(parts) > 1 else listed}{overhead} = {fmt.duration(operator['time_s'])}"


#: (prefill, decode) -> stages in which a fusion applies.
WHERE = {
    ("always", "always"): "prefill, decode",
    ("always", "never"): "prefill",
    ("never", "always"): "decode",
    ("never", "never"): "never",
    ("in some passes", "always"): "some prefill passes, decode",
    ("in some passes", "never"): "some prefill passes",
}


def fusions(rows: list[dict[str, Any]]) -> tuple[Facts, ...]:
    """Returns a line per rule and candidate, merged over layer kinds; empty if no rule was requested."""
    if not rows:
        return ()
    blocks: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        kernel = row["kernel"] or ", ".join(row["operators"])
        line = (row["rule"], WHERE[row["prefill"], row["decode"]], kernel, row["reason"])
        blocks.setdefault(line, []).append(row["block"])
    order = list(dict.fromkeys(row["rule"] for row in rows))
    lines = sorted(blocks.items(), key=lambda item: order.index(item[0][0]))
    return (Facts(title="Fusions", lines=tuple((*line[:2], _sentence(*line[2:], names)) for line, names in lines)),)


def _sentence(kernel: str, reason: str, blocks: list[str]) -> str:
    """Returns `attn_norm + qkv_proj (layer): reason`; blanks around + let long names wrap."""
    where = f"{kernel.replace('+', ' + ')} ({', '.join(blocks)})" if kernel else ""
    return ": ".join(part for part in (where, reason) if part)

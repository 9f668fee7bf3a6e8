"""What holds a request up, in one sentence, and what the roofline survey advises against it."""

from __future__ import annotations

import re
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.stage_table import over_layers

#: The survey whose method and advice this is, section 2.2.
SURVEY = "LLM Inference Unveiled, arXiv 2402.16363"
#: How many operators the sentence names.
NAMED = 3
#: Parts of a step's traffic -> what makes them smaller.
TRAFFIC = {
    "weights": "quantize them (--quantization w4a16), or share each read among more sequences",
    "weights of few bits": "share each read among more sequences",
    "KV cache": "quantize it (--kv-cache-dtype fp8); a larger batch does not help, every sequence reads its own",
    "activations": "fuse operators, so that intermediate tensors stay on the chip",
}
#: Schemes whose products run in these dtypes.
SCHEMES = {
    "fp8": " (--quantization w8a8-fp8)",
    "int8": " (--quantization w8a8)",
    "int4": " (--quantization w4a4)",
    "fp4": " (--quantization nvfp4)",
}
#: Formats that a further scheme makes little smaller.
FEW_BITS = re.compile(r"(?:int|fp)[1-4](?!\d)")
#: What to do about the other bounds; the survey speaks of memory and compute.
OTHERS = {
    "vector": "fuse elementwise work into the matrix kernels beside it",
    "special": "fewer exponentials: fused attention computes only the pairs that the mask keeps",
    "l2": "larger blocks of queries read keys and values less often",
    "link": "move less between devices: fewer or larger shards, smaller activations",
    "host": "keep more of it in device memory",
    "disk": "keep more of it in host or device memory",
    "overhead": "fewer, larger kernels: fusion, captured graphs, a larger batch",
}


def limiting_stage(answer: dict[str, Any]) -> str:
    """The stage that takes more of the end-to-end time."""
    metrics = answer["metrics"]
    return "prefill" if metrics["ttft_s"] >= metrics["e2e_s"] - metrics["ttft_s"] else "decode"


def sentence(answer: dict[str, Any]) -> str:
    """Which stage takes the time, what bounds it, where."""
    name = limiting_stage(answer)
    stage, metrics = answer["stages"][name], answer["metrics"]
    bound = stage["bound"]
    part = metrics["ttft_s"] if name == "prefill" else metrics["e2e_s"] - metrics["ttft_s"]
    waits = stage["time_by_bound_s"][bound] / stage["time_s"]
    names, most = _heaviest(stage, bound)
    return (
        f"{name.capitalize()} takes {fmt.percent(part / metrics['e2e_s'])} of the request and is {bound}-bound: "
        f"{fmt.percent(waits)} of its time goes to {_resource(answer, stage, bound)}, "
        f"{fmt.percent(most)} in {names}."
    )


def _heaviest(stage: dict[str, Any], bound: str) -> tuple[str, float]:
    """Names of the operators under this bound that take most, and their share of the stage's time, of which copies and
    kernels that run side by side share a part."""
    seconds: dict[str, float] = {}
    for row in stage["operators"]:
        if row["bound"] == bound and (bound != "link" or (row["kind"] != "collective") is _to_host(stage)):
            seconds[row["name"]] = seconds.get(row["name"], 0.0) + row["time_s"] * row["layers"]
    most = sorted(seconds, key=lambda name: -seconds[name])[:NAMED]
    waits = stage["time_by_bound_s"][bound]
    return ", ".join(most), min(sum(seconds[name] for name in most), waits) / stage["time_s"]


def _to_host(stage: dict[str, Any]) -> bool:
    """Whether what waits for a link waits for the one to the host rather than for other devices."""
    rows = [row for row in stage["operators"] if row["bound"] == "link"]
    exchanged = float(sum(row["time_s"] * row["layers"] for row in rows if row["kind"] == "collective"))
    return exchanged < float(sum(row["time_s"] * row["layers"] for row in rows if row["kind"] != "collective"))


def _resource(answer: dict[str, Any], stage: dict[str, Any], bound: str) -> str:
    roof = answer["roofline"]
    words = {
        "compute": f"the matrix units ({fmt.flops_per_s(roof['peak_flops_per_s'])} {roof['compute_dtype']})",
        "memory": f"device memory ({fmt.bandwidth(roof['bandwidth_bytes_per_s'])})",
        "vector": "the vector units",
        "special": "the special-function units",
        "l2": "the L2 cache",
        "link": "the link to the host" if _to_host(stage) else "the link between devices",
        "host": "host memory",
        "disk": "the disk",
        "overhead": "fixed time per kernel",
    }
    return words[bound]


def advice(answer: dict[str, Any]) -> str:
    """The survey's advice for the bound of the limiting stage, with what it means here."""
    stage = answer["stages"][limiting_stage(answer)]
    bound = stage["bound"]
    if bound == "memory":
        return f"Memory-bound: quantize, fuse, enlarge the batch. {_of_memory(answer, stage)}"
    if bound == "compute":
        return f"Compute-bound: lower-precision arithmetic. {_of_compute(answer)}"
    if bound == "link" and _to_host(stage):
        return f"Link-bound: {OTHERS['host']}, share each copy among more sequences, or let the host compute."
    return f"{bound.capitalize()}-bound: {OTHERS[bound]}."


def _of_memory(answer: dict[str, Any], stage: dict[str, Any]) -> str:
    """What most of the bytes are, and what makes them fewer."""
    parts = {
        "weights": over_layers(stage, "weight_read_bytes"),
        "KV cache": over_layers(stage, "kv_read_bytes") + over_layers(stage, "kv_write_bytes"),
        "activations": over_layers(stage, "activation_read_bytes") + over_layers(stage, "activation_write_bytes"),
    }
    most = max(parts, key=lambda name: parts[name])
    room = answer["memory"]["max_batch_size"]
    batch = f" (up to batch {fmt.whole(room)} fits)" if most == "weights" and room > 1 else ""
    what = _format(answer["model"]) if most == "weights" else ""
    smaller = TRAFFIC["weights of few bits" if what else most]
    already = f", {what} already" if what else ""
    share = fmt.percent(parts[most] / stage["traffic_bytes"])
    return f"Here {share} of the bytes are {most}{already}: {smaller}{batch}."


def _format(model: dict[str, Any]) -> str:
    """The format of most weights, where it is of 4 bits or fewer."""
    stored = model["weight_formats"]
    most = str(max(stored, key=lambda name: stored[name]))
    bits = FEW_BITS.search(most)
    return most if bits else ""


def _of_compute(answer: dict[str, Any]) -> str:
    """Which dtypes the chip multiplies faster than the one in use."""
    roof, peaks = answer["roofline"], answer["hardware"]["peak_flops_per_s"]
    used = roof["peak_flops_per_s"]
    faster = sorted((rate, dtype) for dtype, rate in peaks.items() if rate > used)
    if not faster:
        return f"{answer['hardware']['name']} multiplies nothing faster than {roof['compute_dtype']}."
    listed = " or ".join(
        f"{dtype}{SCHEMES.get(dtype, '')} at {fmt.tera(rate)} TFLOP/s ({fmt.times(rate / used)})"
        for rate, dtype in faster[:2]
    )
    return f"Here linear layers in {listed} instead of {roof['compute_dtype']} at {fmt.tera(used)} TFLOP/s."

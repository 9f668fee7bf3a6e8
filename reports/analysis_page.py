"""An analysis as a page: request, operators of both stages, memory, metrics, bottleneck, sources."""

from __future__ import annotations

from typing import Any

from llmviewer.language.quantity import METRICS
from llmviewer.reports import bottleneck
from llmviewer.reports import format as fmt
from llmviewer.reports.bottleneck import fusions
from llmviewer.reports.devices import devices
from llmviewer.reports.generation import exits, generation
from llmviewer.reports.memory_bar import beside_budget, memory_parts, shortage
from llmviewer.reports.page import Emphasis, Facts, Page
from llmviewer.reports.serving import (
    allocated_output_tokens,
    answer_tokens,
    is_steady_state,
    kernels_alone,
    prefill_text,
    sequences_text,
    serving,
    tpot_extras,
    ttft_parts,
)
from llmviewer.reports.stage_table import stage_table
from llmviewer.reports.verdict import at_once, verdict
from llmviewer.result.devices import hardware_name
from llmviewer.result.result import Result, Verdict

#: How much of a page is printed.
BRIEF, USUAL, FULL = "brief", "usual", "full"


def page(result: Result, point: int = 0, found: Verdict | None = None, *, long: str = FULL) -> Page:
    """Returns the page of one point of a Result, after its verdict or, without one, what of it needs no trials.

    long: BRIEF, the verdict and warnings; USUAL, with the operators of the stage that takes most of the request; FULL.
    """
    answer = result.to_dict(point)
    first = at_once(answer) if found is None else verdict(found, answer)
    if long == BRIEF:
        return (first, *_warnings(answer))
    tables = stages(answer, result.token_budget)
    if long == USUAL and len(tables) > 1:
        metrics = answer["metrics"]
        decodes = bool(answer["stages"]["decode"]["operators"])
        longest = len(tables) - 1 - int(decodes and metrics["ttft_s"] > metrics["e2e_s"] - metrics["ttft_s"])
        left_out = (("Operators", "--full lists them"),)
        tables = tuple(
            table if at == longest else Facts(title=table.title, lines=left_out) for at, table in enumerate(tables)
        )
    return (first, header(answer), *devices(answer), *tables, *details(answer, result.token_budget))


def stages(answer: dict[str, Any], token_budget: float) -> Page:
    """Returns the operator tables of prefill and decode."""
    decode = answer["stages"]["decode"]
    return (
        *(stage_table("Vision tower", one["stage"], _images(answer, one)) for one in answer.get("images", ())),
        stage_table("Prefill", answer["stages"]["prefill"], prefill_text(answer, token_budget)),
        *((stage_table("Decode step", decode, _decode_tokens(answer)),) if decode["operators"] else ()),
    )


def _images(answer: dict[str, Any], one: dict[str, Any]) -> str:
    """Returns the images of one size and their tokens in words."""
    images = one["count"] * answer["workload"]["batch_size"]
    return (
        f"{fmt.whole(images)} image{'s' * (images > 1)} of {one['width']} × {one['height']}, "
        f"{fmt.whole(one['patches_per_image'])} patches and "
        f"{fmt.whole(one['tokens_per_image'])} tokens of a prompt each"
    )


def details(answer: dict[str, Any], token_budget: float) -> Page:
    """Returns the parts after the stages: generation, serving, fusions, memory, metrics, bottleneck, sources."""
    return (
        *generation(answer["generation"], answer["memory"]),
        *exits(answer["early_exit"]),
        *serving(answer),
        *fusions(answer["fusions"]),
        *memory(answer),
        _metrics(answer, ttft_parts(answer, token_budget)),
        _advice(answer),
        _sources(answer),
        *_warnings(answer),
    )


def header(answer: dict[str, Any]) -> Facts:
    """Returns model, hardware and workload."""
    return Facts(lines=(("Model", _model(answer)), ("Hardware", _hardware(answer)), ("Workload", _workload(answer))))


def _model(answer: dict[str, Any]) -> str:
    model = answer["model"]
    active = model["active_parameters"]
    sparse = f" ({fmt.parameters(active)} active)" if active != model["parameters"] else ""
    return (
        f"{model['name']} ({model['architecture']}), {fmt.parameters(model['parameters'])} parameters{sparse}, "
        f"{formats(model)}"
    )


def formats(model: dict[str, Any]) -> str:
    """Returns `bf16`, or with several weight formats `bf16; weights 6.476B int4-g128, 262.4M bf16`."""
    stored = model["weight_formats"]
    if list(stored) == [model["dtype"]]:
        return str(model["dtype"])
    return f"{model['dtype']}; weights " + ", ".join(f"{fmt.parameters(n)} {name}" for name, n in stored.items())


def _hardware(answer: dict[str, Any]) -> str:
    hardware, roof = answer["hardware"], answer["roofline"]
    count = answer["parallelism"]["devices"]
    several = f"{hardware_name(answer)}; figures below are of " if "devices" in answer else f"{count} × " * (count > 1)
    return (
        f"{several}{hardware['name']} ({hardware['title']}), "
        f"{fmt.flops_per_s(roof['peak_flops_per_s'])} dense {roof['compute_dtype']}, "
        f"{fmt.bandwidth(roof['bandwidth_bytes_per_s'])}, {fmt.capacity(hardware['memory_bytes'])}; "
        f"ridge at {fmt.intensity(roof['ridge_flops_per_byte'])} FLOP/B"
    )


def memory(answer: dict[str, Any]) -> Page:
    """Returns the bar of one device's memory, what fills it, and the largest sizes that fit."""
    cached, placed = _cache_text(answer), _is_placed(answer)
    return tuple(memory_parts(answer["memory"], _longest_workload(answer), cached, placed=placed))


def _longest_workload(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the workload with the output length for which a sequence occupies its slot."""
    return {**answer["workload"], "output_len": answer_tokens(answer)}


def _workload(answer: dict[str, Any]) -> str:
    sizes = answer["workload"]
    passes = ", ".join(answer["passes"]) or "none"
    batch = "users" if is_steady_state(answer) else "batch"
    tokens = sum(one["count"] * one["tokens_per_image"] for one in answer.get("images", ()))
    of_images = f" ({fmt.whole(tokens)} of images)" if tokens else ""
    return (
        f"{batch} {fmt.whole(sizes['batch_size'])}, input {fmt.whole(sizes['input_len'])}{of_images}, "
        f"output {fmt.whole(sizes['output_len'])}; passes: {passes}; efficiency: {answer['efficiency']['kind']}"
    )


def _decode_tokens(answer: dict[str, Any]) -> str:
    stage = answer["stages"]["decode"]
    keys, new = fmt.whole(stage["cached_tokens"] + stage["new_tokens"]), stage["new_tokens"]
    found = answer["generation"]
    purpose = "at once" if found is not None and found["pays_up_to_batch_size"] is None else "to verify"
    tokens = "1 token" if new == 1 else f"{fmt.whole(new)} tokens {purpose}"
    parts = answer["parallelism"]["microbatches"]
    one = f" of one of {parts} micro-batches" if parts > 1 else ""
    return f"{sequences_text(answer)} × {tokens}, context {keys}; representative step{one}"


def _cache_text(answer: dict[str, Any]) -> str:
    """Returns the contents of the KV cache in words."""
    sizes, model = answer["workload"], answer["model"]
    if (answer["generation"] or {}).get("cache") == "none":
        return "none: every pass computes prompt and answer"
    tokens = sizes["input_len"] + allocated_output_tokens(answer) - 1
    parts = []
    if answer["generation"] is not None:
        tokens += answer["generation"]["new_tokens"] - 1  # draft tokens are cached until they are rejected
    if model["kv_cache_bytes_per_token"]:
        of_input = model.get("cross_cache_bytes_per_input_token")
        of_both = f" of its own and {fmt.whole(sizes['input_len'])} of the input" if of_input else ""
        tokens -= (sizes["input_len"] - 1) if of_input else 0  # the start token in place of the input
        parts.append(f"{sequences_text(answer)} × {fmt.whole(tokens)} tokens{of_both}")
        whole, own = model["kv_cache_bytes_per_token"], answer["memory"]["kv_cache_bytes_per_token_per_device"]
        shared = f", {fmt.memory(own)} of it on the fullest device" if own != whole else ""
        parts.append(f"{fmt.memory(whole)} per token{shared}")
    if model["kv_cache_bytes_per_token"] != model["kv_cache_bytes_per_token_beyond_windows"]:
        parts.append(f"{fmt.memory(model['kv_cache_bytes_per_token_beyond_windows'])} beyond windows and limits")
    if any(draft["kv_cache_bytes"] for draft in (answer["generation"] or {"drafts": ()})["drafts"]):
        parts.append("plus the caches of the draft models")
    if answer["generation"] is not None and "branches" in answer["generation"]:
        parts.append("plus prefix copies of branches that do not share one")
    if model["state_bytes_per_sequence"]:
        parts.append(f"{fmt.memory(model['state_bytes_per_sequence'])} of state per sequence")
    return ", ".join(parts)


def _is_placed(answer: dict[str, Any]) -> bool:
    """Whether a search chose the placement of tensors for this request."""
    return any(name.startswith("offload(flexgen") for name in answer["passes"])


def _metrics(answer: dict[str, Any], first_token: str) -> Facts:
    metrics = answer["metrics"]
    steps = answer_tokens(answer) - 1
    kind = answer["efficiency"]["kind"]
    unit = "decode step" if answer["generation"] is None else "token"
    decoded = f"mean over {fmt.whole(steps)} {unit}{'s' if steps > 1 else ''}{' after the first' * (unit == 'token')}"
    interval = {name: f"; 80 % interval {fmt.durations(*found['80'])}" for name, found in metrics["intervals"].items()}
    decoded += tpot_extras(answer)
    meanings = {"ttft_s": first_token, "tpot_s": decoded if steps else "no decode steps"}
    return Facts(
        title=f"Request metrics ({kind}{': times are lower bounds' if kind == 'ideal' else _engine(answer)})",
        lines=tuple(
            (one.label, fmt.figure(name, value), f"{meanings.get(name, one.meaning)}{interval.get(name, '')}")
            for name, one in METRICS.items()
            if ((value := one.of(metrics)) is not None or one.rank == 0) and not one.adds_nothing(metrics)
        ),
    )


def _engine(answer: dict[str, Any]) -> str:
    """Returns the engine whose overhead calibrated times include."""
    return ": kernel times only" if kernels_alone(answer) else f": engine {answer['efficiency']['engine']}"


def _advice(answer: dict[str, Any]) -> Facts:
    """Returns the survey's advice for the bottleneck."""
    return Facts(lines=(("Advice", f"{bottleneck.advice(answer)} [{bottleneck.SURVEY}]"),))


def _sources(answer: dict[str, Any]) -> Facts:
    """Returns which numbers are counted, published, predicted or assumed."""
    provenance = answer["provenance"]
    model, chip = answer["model"]["name"], answer["hardware"]["name"]
    pairs = [
        ("Counted", f"FLOPs, bytes and memory, from the shapes in the model config (llmviewer models show {model})"),
        ("Data sheet", f"peak rates, bandwidth, capacity (sources: llmviewer hardware show {chip})"),
        ("Times", f"{answer['efficiency']['kind']}: {provenance['times']}"),
        ("Assumed", "; ".join(provenance["assumed"]) or "nothing"),
    ]
    price = provenance["price"]
    if price is not None:
        told = f"${price['usd_per_hour']:.2f} per device and hour, {price['kind']}, {price['term']}, {price['date']}"
        pairs.insert(2, ("Price", f"{told}: {price['source']}"))
    return Facts(title="Sources", lines=tuple(pairs), emphasis=Emphasis.FAINT)


def _warnings(answer: dict[str, Any]) -> tuple[Facts, ...]:
    memory = answer["memory"]
    texts = [text for text in answer["warnings"] if text != memory["refusal"]]  # the first line says it
    if not memory["fits"]:
        texts.append(shortage(memory))
    texts += beside_budget(memory)
    if not texts:
        return ()
    return (Facts(lines=tuple(("Warning", text) for text in texts), emphasis=Emphasis.WARNING),)

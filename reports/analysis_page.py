"""An analysis as a page: what was asked, both stages operator by operator, memory, metrics, the bottleneck, sources."""

from __future__ import annotations

from typing import Any

from llmviewer.reports import bottleneck
from llmviewer.reports import format as fmt
from llmviewer.reports.fusions import fusions
from llmviewer.reports.generation import generation
from llmviewer.reports.memory_bar import memory_parts, shortage
from llmviewer.reports.page import Emphasis, Facts, Page
from llmviewer.reports.serving import answer_tokens, between, first, prompts, room_tokens, sequences, serving, steady
from llmviewer.reports.stage_table import stage_table
from llmviewer.result.result import Result


def page(result: Result, point: int = 0) -> Page:
    """The page of one point of a Result."""
    answer = result.to_dict(point)
    return (header(answer), *stages(answer, result.token_budget), *below(answer, result.token_budget))


def stages(answer: dict[str, Any], token_budget: float) -> Page:
    """Both stages, operator by operator."""
    return (
        stage_table("Prefill", answer["stages"]["prefill"], prompts(answer, token_budget)),
        stage_table("Decode step", answer["stages"]["decode"], _decode_tokens(answer)),
    )


def below(answer: dict[str, Any], token_budget: float) -> Page:
    """What stands below the stages: generation, serving, fusions, memory, metrics, bottleneck, sources, warnings."""
    return (
        *generation(answer["generation"], answer["memory"]),
        *serving(answer),
        *fusions(answer["fusions"]),
        *memory_parts(answer["memory"], _longest(answer), _cache(answer), placed=_placed(answer)),
        _metrics(answer, first(answer, token_budget)),
        _bottleneck(answer),
        _sources(answer),
        *_warnings(answer),
    )


def header(answer: dict[str, Any]) -> Facts:
    """Model, hardware, workload."""
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
    """`bf16`, or where several formats are stored `bf16; weights 6.476B int4-g128, 262.4M bf16`."""
    stored = model["weight_formats"]
    if list(stored) == [model["dtype"]]:
        return str(model["dtype"])
    return f"{model['dtype']}; weights " + ", ".join(f"{fmt.parameters(n)} {name}" for name, n in stored.items())


def _hardware(answer: dict[str, Any]) -> str:
    hardware, roof = answer["hardware"], answer["roofline"]
    devices = answer["parallelism"]["devices"]
    return (
        f"{f'{devices} × ' if devices > 1 else ''}{hardware['name']} ({hardware['title']}), "
        f"{fmt.flops_per_s(roof['peak_flops_per_s'])} dense {roof['compute_dtype']}, "
        f"{fmt.bandwidth(roof['bandwidth_bytes_per_s'])}, {fmt.capacity(hardware['memory_bytes'])}; "
        f"ridge at {fmt.intensity(roof['ridge_flops_per_byte'])} FLOP/B"
    )


def _longest(answer: dict[str, Any]) -> dict[str, Any]:
    """The workload with answers as long as sequences hold their places."""
    return {**answer["workload"], "output_len": answer_tokens(answer)}


def _workload(answer: dict[str, Any]) -> str:
    sizes = answer["workload"]
    passes = ", ".join(answer["passes"]) or "none"
    batch = "users" if steady(answer) else "batch"
    return (
        f"{batch} {fmt.whole(sizes['batch_size'])}, input {fmt.whole(sizes['input_len'])}, "
        f"output {fmt.whole(sizes['output_len'])}; passes: {passes}; efficiency: {answer['efficiency']['kind']}"
    )


def _decode_tokens(answer: dict[str, Any]) -> str:
    stage = answer["stages"]["decode"]
    keys, new = fmt.whole(stage["cached_tokens"] + stage["new_tokens"]), stage["new_tokens"]
    tokens = "1 token" if new == 1 else f"{fmt.whole(new)} tokens (verified)"
    return f"{sequences(answer)} × {tokens} over {keys} keys, a representative step"


def _cache(answer: dict[str, Any]) -> str:
    """What the cache holds, in words."""
    sizes, model = answer["workload"], answer["model"]
    tokens = sizes["input_len"] + room_tokens(answer) - 1
    words = []
    if answer["generation"] is not None:
        tokens += answer["generation"]["new_tokens"] - 1  # drafted ones, kept until they are rejected
    if model["kv_cache_bytes_per_token"]:
        words.append(f"{sequences(answer)} × {fmt.whole(tokens)} tokens")
        words.append(f"{fmt.memory(model['kv_cache_bytes_per_token'])} a token")
    if model["kv_cache_bytes_per_token"] != model["kv_cache_bytes_per_token_beyond_windows"]:
        words.append(f"{fmt.memory(model['kv_cache_bytes_per_token_beyond_windows'])} beyond the windows")
    if any(draft["kv_cache_bytes"] for draft in (answer["generation"] or {"drafts": ()})["drafts"]):
        words.append("and the drafts' own")
    if answer["generation"] is not None and answer["generation"]["pays_up_to_batch_size"] is None:
        words.append("more where branches hold a beginning each")
    if model["state_bytes_per_sequence"]:
        words.append(f"{fmt.memory(model['state_bytes_per_sequence'])} of state a sequence")
    return ", ".join(words)


def _placed(answer: dict[str, Any]) -> bool:
    """Whether tensors lie where a search put them for this request."""
    return any(name.startswith("offload(flexgen") for name in answer["passes"])


def _metrics(answer: dict[str, Any], first_token: str) -> Facts:
    metrics, sizes = answer["metrics"], answer["workload"]
    steps = answer_tokens(answer) - 1
    kind = answer["efficiency"]["kind"]
    of = "decode step" if answer["generation"] is None else "token"
    decoded = f"mean of {fmt.whole(steps)} {of}{'s' if steps > 1 else ''} after the first{' token' * (of != 'token')}"
    within = {name: f"; 80 %: {fmt.durations(*found['80'])}" for name, found in metrics["intervals"].items()}
    decoded += between(answer)
    each = f", {fmt.per_second(metrics['output_tokens_per_s_per_user'])} a sequence" if sizes["batch_size"] > 1 else ""
    return Facts(
        title=f"Request ({kind}{': times are lower bounds' if kind == 'ideal' else _engine(answer)})",
        lines=(
            ("TTFT", fmt.duration(metrics["ttft_s"]), f"{first_token}{within.get('ttft_s', '')}"),
            (
                "TPOT",
                fmt.duration(metrics["tpot_s"]),
                f"{decoded}{within.get('tpot_s', '')}" if steps else "nothing is decoded",
            ),
            ("E2E", fmt.duration(metrics["e2e_s"]), f"TTFT and all {of}s{within.get('e2e_s', '')}"),
            ("Output", f"{fmt.per_second(metrics['output_tokens_per_s'])} tokens/s", f"over E2E{each}"),
            ("Prefill MFU", fmt.share(metrics["prefill_mfu"]), "causal matmul FLOPs / (time × dense peak)"),
            ("Decode MBU", fmt.share(metrics["decode_mbu"]), "(weights + KV cache) / (time × bandwidth)"),
        ),
    )


def _engine(answer: dict[str, Any]) -> str:
    """What calibrated times are of."""
    engine = answer["efficiency"]["engine"]
    return ": kernels alone" if engine == "kernels" else f": served by {engine}"


def _bottleneck(answer: dict[str, Any]) -> Facts:
    return Facts(
        lines=(
            ("Bottleneck", bottleneck.sentence(answer)),
            ("Advice", f"{bottleneck.advice(answer)} [{bottleneck.SURVEY}]"),
        )
    )


def _sources(answer: dict[str, Any]) -> Facts:
    """Which numbers are facts, which are bounds, which are assumed."""
    provenance = answer["provenance"]
    model, chip = answer["model"]["name"], answer["hardware"]["name"]
    pairs = [
        ("Counted", f"FLOPs, bytes, memory, from the config's shapes (llmviewer models show {model})"),
        ("Data sheet", f"peaks, bandwidth, capacity (llmviewer hardware show {chip}: the source of each)"),
        ("Times", f"{answer['efficiency']['kind']}: {provenance['times']}"),
        ("Assumed", "; ".join(provenance["assumed"]) or "nothing"),
    ]
    return Facts(title="Where the numbers come from", lines=tuple(pairs), emphasis=Emphasis.FAINT)


def _warnings(answer: dict[str, Any]) -> tuple[Facts, ...]:
    words = list(answer["warnings"])
    memory = answer["memory"]
    if not memory["fits"]:
        words.append(shortage(memory))
    if not words:
        return ()
    return (Facts(lines=tuple(("Warning", text) for text in words), emphasis=Emphasis.WARNING),)

"""Latencies of a request as trees (passes, queues, hand-over between pools), and utilizations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmviewer.core.counts import present
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Role
from llmviewer.language.quantity import LATENCIES, METRICS
from llmviewer.result.explanation.figures import rate
from llmviewer.result.explanation.kernels import sheet
from llmviewer.result.explanation.metrics import (
    ENGINE,
    Question,
    decode_nodes,
    own_prefill,
    per_token,
    prefill_nodes,
    sum_node,
)
from llmviewer.result.explanation.node import Node, of_formula, sum_of, unasked
from llmviewer.result.stages import ValueOf
from llmviewer.techniques.batching.continuous import ChunkedTimes
from llmviewer.techniques.batching.disaggregated import BOUNDS, DisaggregatedTimes

#: Latency -> what it is.
WHAT = {
    "ttft_s": "prefill of all prompts of the batch, and the time of the engine's host before it",
    "tpot_s": "mean over the real decode steps, per token",
    "e2e_s": "time to the first token, and from there to the last one",
    "generation_s": "all real decode steps",
}
SHARED = {
    "ttft_s": "queueing, prompts of others and the request's own, up to the first token",
    "tpot_s": "decode steps and other requests' prompts between them, per token",
    "generation_s": "decode steps and other requests' prompts between them",
}


def metric_time(one: Question, metric: str) -> Node:
    """A latency as a tree.  Raises UserError for one that has no value."""
    own = one.analysis
    value = one.at(getattr(own, metric))
    if np.isnan(value):
        raise UserError(f"{metric} is undefined: {LATENCIES[metric].undefined}")
    if metric == "e2e_s":
        parts: tuple[Node, ...] = metric_time(one, "ttft_s"), metric_time(one, "generation_s")
    elif metric == "ttft_s":
        alone = own.running is None
        parts = (*_images(one), *prefill_nodes(one), *_host(one)) if alone else first_token_nodes(one)
    else:
        share = 1.0 if metric == "generation_s" else 1.0 / one.at(own.schedule.tokens)
        parts = decode_nodes(one, share) if own.running is None else generation_nodes(one, share)
    source = (WHAT if own.running is None else {**WHAT, **SHARED})[metric]
    if own.towers and metric == "ttft_s":
        source += ", and the vision tower over their images"
    return sum_node(metric, value, parts, source)


QUEUE_FOR_A_SLOT = (
    "waiting for a slot of the KV cache: each becomes free once per cycle, users share them (serving/batching.py)"
)
CYCLE = "time between the starts of two requests in the same slot"
OTHERS = "prompts of the other running sequences: each starts one request during one of ours (serving/batching.py)"
MET = "{what} (serving/batching.py)"
ADDED = "time by which a prompt lengthens its passes (serving/batching.py)"
CHUNKS = "mixed steps between the tokens of a sequence: decodes and prompts (techniques/batching/continuous.py)"
AHEAD = "prompts ahead in mixed steps (techniques/batching/continuous.py)"
RANKS = "ranks that share experts step together: each waits for the one with the most prompts (serving/batching.py)"
PARTS = "micro-batches follow each other through a pipeline: each waits for the prompts before it (serving/batching.py)"
HOST = "HTTP, tokenization and first scheduling of a request, " + ENGINE
IMAGES = "all images of the batch in one pass of the vision tower, {patches} patches each (models/images.py)"
LATE = "output of a step is processed while the next one runs, " + ENGINE


def first_token_nodes(one: Question) -> tuple[Node, ...]:
    """Parts of the TTFT of a request that shares a replica with others (`RequestTimes.ttft_s`)."""
    times = one.analysis.times
    if isinstance(times, DisaggregatedTimes):
        return (*prefill_nodes(one), *_host(one), *first_token_of_pools(one, times))
    queued = _ahead(one, times) if isinstance(times, ChunkedTimes) else ()
    waits = _waits(one, "own_wait_s", 1.0)
    return (*prefill_nodes(one), *waits, *_met(one, 1.0), *queued, *_queue(one), *_host(one))


def generation_nodes(one: Question, share: float) -> tuple[Node, ...]:
    """Parts of the time from the first token to the last, times a share (`RequestTimes.generation_s`)."""
    times = one.analysis.times
    if isinstance(times, DisaggregatedTimes):
        return (*decode_nodes(one, share), *generation_of_pools(one, times, share))
    if isinstance(times, ChunkedTimes):
        steps = _mixed(one, times, share)
    else:
        steps = (*decode_nodes(one, share), *_others(one, share))
    return (*steps, *_waits(one, "waits_s - own_wait_s", share), *_met(one, -share))


def _waits(one: Question, formula: str, share: float) -> tuple[Node, ...]:
    """Waiting of a rank or micro-batch for prompts of others, times a share.  formula: of the parts that count."""
    times = one.analysis.times
    if one.at(times.ranks) == 1.0:
        return ()
    names = [name for name in formula.split() if name != "-"]
    values: dict[str, float] = {name: one.at(getattr(times, name)) for name in names}
    formula, tokens = per_token(f"({formula})", share)
    name, source = ("micro-batches", PARTS) if times.staged else ("ranks", RANKS)
    return (of_formula(f"prompts of other {name}", formula, (), source, {**values, **tokens}),)


def _others(one: Question, share: float) -> tuple[Node, ...]:
    """Prompts of others in a cycle, times a share."""
    times = one.analysis.times
    if not one.at(times.others_s):
        return ()
    inner = prefill_nodes(one, fill=False)
    values = {name: one.at(getattr(times, name)) for name in ("prompts_per_pass", "sequences")}
    prompts = sum_of("next_s", inner, "prompts that are prefilled together, until others may follow")
    formula = "next_s / prompts_per_pass * (sequences - prompts_per_pass)"
    others = of_formula("others_s", formula, (prompts,), OTHERS, values)
    formula, tokens = per_token("others_s", share)
    return (of_formula("others' prompts between tokens", formula, (others,), OTHERS, tokens),)


def _met(one: Question, share: float) -> tuple[Node, ...]:
    """Steps and prompts of others that a prompt meets before its first token, times a share; less after it."""
    times = one.analysis.times
    if not one.at(times.ahead_s):
        return ()
    names = ("rest_s", "share_before", "together", "prompts_per_pass", "most_ahead_s")
    values, rest = {name: one.at(getattr(times, name)) for name in names}, "rest_s"
    if one.at(times.parts) > 1.0:
        values, rest = {**values, "parts": one.at(times.parts)}, "rest_s / parts"
    if one.at(times.steps) > 0.0:
        formula = f"min({rest} + max(1 + share_before * together - prompts_per_pass, 0) * prompt_s, most_ahead_s)"
        prompt = Node(name="prompt_s", value=one.at(times.prompt_s), unit="s", source=ADDED)
        what = "the rest of the pass that a prompt meets, and other prompts of its own pass"
        ahead = of_formula("ahead_s", formula, (prompt,), MET.format(what=what), values)
    else:
        where = {"others_s": one.at(times.others_s)}
        ahead = of_formula("ahead_s", "others_s", (), MET.format(what="all prompts of others"), where)
    formula, tokens = per_token("ahead_s" if share > 0.0 else "0 - ahead_s", abs(share))
    name = "prompts of others before the first token" if share > 0.0 else "that is before the first token"
    return (of_formula(name, formula, (ahead,), MET.format(what="a request takes one cycle"), tokens),)


def _queue(one: Question) -> tuple[Node, ...]:
    """Waiting for a slot of the KV cache."""
    times = one.analysis.times
    if not one.at(times.queue_s):
        return ()
    values = {name: one.at(getattr(times, name)) for name in ("users", "running")}
    return (of_formula("queue_s", "(users / running - 1) * cycle_s", (_cycle(one),), QUEUE_FOR_A_SLOT, values),)


def _cycle(one: Question) -> Node:
    """Time from one request to the next in a slot."""
    times = one.analysis.times
    prefill_s = one.at(times.prefill_s)
    if isinstance(times, ChunkedTimes):
        steps = (*_mixed(one, times, 1.0), *_waits(one, "waits_s", 1.0))
        after = sum_of("between_s", steps, "steps without its own prompt")
        values = {"waiting_s": one.at(times.waiting_s), "prefill_s": prefill_s}
        return of_formula("cycle_s", "waiting_s + prefill_s + between_s", (after,), CYCLE, values)
    decode = sum_of("decode_s", decode_nodes(one, 1.0), "all decode steps")
    values = {"prefill_s": prefill_s, "others_s": one.at(times.others_s)}
    formula, waits = "prefill_s + others_s + decode_s", one.at(times.waits_s)
    if waits:
        formula, values = f"{formula} + waits_s", {**values, "waits_s": waits}
    return of_formula("cycle_s", formula, (decode,), CYCLE, values)


def _host(one: Question) -> tuple[Node, ...]:
    """Time of the host before the first token of a request, and of the step by which its user sees it late."""
    engine = one.analysis.system.engine
    late_s = one.at(one.analysis.request_s) - engine.request_s
    parts = {
        "engine: request": (engine.request_s, HOST.format(engine=engine.name)),
        "engine: a step late": (late_s, LATE.format(engine=engine.name)),
    }
    return tuple(Node(name=name, value=value, unit="s", source=text) for name, (value, text) in parts.items() if value)


def _images(one: Question) -> tuple[Node, ...]:
    """Passes of the vision tower over the images of all prompts, by their size."""
    return tuple(
        sum_of(
            f"vision tower: {seen.images.count} x {seen.images.width} x {seen.images.height}",
            tuple(map(unasked, own_prefill(Question(analysis=tower, point=one.point)))),
            IMAGES.format(patches=seen.patches),
        )
        for seen, tower in one.analysis.towers
    )


def _ahead(one: Question, times: ChunkedTimes) -> tuple[Node, ...]:
    """Queueing for the prompts ahead, if every step is mixed."""
    if not one.at(times.waiting_s):
        return ()
    together, each = one.at(times.chunked.together), one.at(times.prompts_per_pass)
    values = {"prefill_s": one.at(times.prefill_s), "together": together, "prompts_per_pass": each}
    formula = "prefill_s * (together - prompts_per_pass) / prompts_per_pass - others_s"
    return (of_formula("waiting_s", formula, (), AHEAD, {**values, "others_s": one.at(times.others_s)}),)


def _mixed(one: Question, times: ChunkedTimes, share: float) -> tuple[Node, ...]:
    """Pure decode steps, and mixed steps with chunks of others' prompts."""
    plan, steps = times.chunked.plan, max(one.at(times.chunked.steps), 1.0)
    mixed, chunks = one.at(plan.mixed), one.at(plan.chunks)
    found = []
    if mixed < steps:
        decode = sum_of("decode_s", decode_nodes(one, share), "decode steps as if none were mixed")
        formula, values = "(1 - mixed / steps) * decode_s", {"mixed": mixed, "steps": steps}
        found.append(of_formula("pure decode steps", formula, (decode,), CHUNKS, values))
    if mixed:
        prompt = sum_of("prefill_s", prefill_nodes(one), "all mixed steps of a prompt")
        formula, tokens = per_token("mixed / chunks * prefill_s", share)
        values = {"mixed": mixed, "chunks": chunks, **tokens}
        found.append(of_formula("mixed steps", formula, (prompt,), CHUNKS, values))
    return tuple(found)


WAITING = "all waiting of a request: users over the throughput, less what it is served (Little's law)"
RATE = "throughput of the slowest of prefill, links, decode and users (techniques/batching/disaggregated.py)"
QUEUE = "waiting before the first token (techniques/batching/disaggregated.py)"
HANDOVER = "waiting in the prefill instance, as far as it has room (techniques/batching/disaggregated.py)"
TRANSFER = "KV cache of the prompt on each device, over the link (--batching disaggregated,link=)"


def first_token_of_pools(one: Question, times: DisaggregatedTimes) -> tuple[Node, ...]:
    """The queue before the first token, if there is one."""
    if not one.at(times.queue_s):
        return ()
    waiting, handover = _waiting(one, times), one.at(times.handover_s)
    return (of_formula("queue_s", "waiting_s - handover_s", (waiting,), QUEUE, {"handover_s": handover}),)


def generation_of_pools(one: Question, times: DisaggregatedTimes, share: float) -> tuple[Node, ...]:
    """Waiting for a link or a place, and the transfer, times a share."""
    found = []
    if one.at(times.handover_s):
        formula, tokens = per_token("handover_s", share)
        handover = _handover(one, times)
        found.append(of_formula("waiting for the hand-over", formula, (handover,), HANDOVER, tokens))
    if one.at(times.load.transfer_s):
        formula, tokens = per_token("transfer_s", share)
        found.append(of_formula("transfer of the cache", formula, (_transfer(one, times),), TRANSFER, tokens))
    return tuple(found)


def _transfer(one: Question, times: DisaggregatedTimes) -> Node:
    own = times.disaggregated
    values = {"prompt_bytes": one.at(own.prompt_bytes), "link_bytes_per_s": one.at(own.link_bytes_per_s)}
    return of_formula("transfer_s", "prompt_bytes / link_bytes_per_s", (), TRANSFER, values)


def _handover(one: Question, times: DisaggregatedTimes) -> Node:
    load = times.load
    places = one.at(times.disaggregated.prefill_places) - one.at(load.prompts_per_pass)
    formula = "min(waiting_s, max(instances * places / requests_per_s - transfer_s, 0))"
    values = {
        "instances": load.prefill,
        "places": places,
        "requests_per_s": one.at(times.requests_per_s),
        "transfer_s": one.at(load.transfer_s),
    }
    return of_formula("handover_s", formula, (_waiting(one, times),), HANDOVER, values)


def _waiting(one: Question, times: DisaggregatedTimes) -> Node:
    formula = "max(users / requests_per_s - prefill_s - transfer_s - decode_s, 0)"
    values = {
        "prefill_s": one.at(times.prefill_s),
        "transfer_s": one.at(times.load.transfer_s),
        "decode_s": one.at(times.decode_s),
        "users": one.at(times.load.users),
    }
    return of_formula("waiting_s", formula, (_rate(one, times),), WAITING, values)


def _rate(one: Question, times: DisaggregatedTimes) -> Node:
    """Requests per second of the slowest resource, and those that the others would allow."""
    rates = zip(BOUNDS, times.rates, strict=True)
    children = tuple(
        Node(name=f"{name}_rate", value=one.at(rate), unit="1/s", source=f"requests/s that {name} would allow")
        for name, rate in rates
    )
    formula = f"min({', '.join(child.name for child in children)})"
    return of_formula("requests_per_s", formula, children, RATE, unit="1/s")


USEFUL = "matrix FLOP of attended pairs over all layers and passes of the prompts (analysis/analysis.py)"
STEPS = "matrix FLOP of attended pairs over all layers and real decode passes (analysis/analysis.py)"
AT_PEAK = "time of the products at the peak of the data sheet"
READS = "weights and cache read in every decode pass, over all its operators and layers"
PER_ROUND = "{what} of a round of passes over the tokens that it keeps"
PREFILL_MFU = "share of the peak of the matrix units that prefill reaches"
DECODE_MFU = "share of the peak of the matrix units that decode steps reach"
DECODE_MBU = "share of the memory bandwidth that decode steps use for weights and cache"


def utilization(one: Question, name: str) -> Node:
    """A utilization of a request.  Raises UserError for one without a value."""
    if np.isnan(getattr(one.analysis, name)[one.point]):
        raise UserError(f"{name} is undefined: {METRICS[name].undefined}")
    return {"prefill_mfu": _prefill_mfu, "decode_mfu": _decode_mfu, "decode_mbu": _decode_mbu}[name](one)


def _prefill_mfu(one: Question) -> Node:
    """Causal matmul FLOP of prefill over its time and the dense peak, each dtype at its own peak."""
    at_peak = _at_peak(one, one.summed("prefill"), "prefill", USEFUL)
    prefill = sum_of("prefill_s", tuple(own_prefill(one)), "prefill by the model without draft models")
    return of_formula("prefill_mfu", "at_peak_s / prefill_s", (at_peak, prefill), PREFILL_MFU, {}, "")


def _at_peak(one: Question, summed: ValueOf, stage: str, source: str) -> Node:
    """Time of the products of one model at the dense peak, by dtype and operator.  summed: over passes of a stage."""
    own, at = one.analysis, one.at_pass(one.shown[stage])
    work: dict[str, list[Node]] = {}
    for row in own.evaluation.rows:
        if present(row.operator.matmul_flops):
            flops = summed(row.operator.useful_flops * float(row.block.repeats))
            name = f"{row.block.name}.{row.operator.name}"
            found = Node(name=name, value=flops, unit="FLOP", source=f"{source}; {at.config}")
            work.setdefault(own.system.chip.compute_dtype(row.operator.compute), []).append(found)
    parts = []
    for dtype, nodes in work.items():
        flops_ = sum_of("flops", tuple(nodes), source, "FLOP")
        peak = rate(at, dtype)
        parts.append(of_formula(f"{dtype}_s", f"flops / {peak.name}", (flops_, peak), f"{dtype} products at the peak"))
    return sum_of("at_peak_s", tuple(parts), AT_PEAK)


def _decode_mfu(one: Question) -> Node:
    """Causal matmul FLOP of the real decode steps over their time and the dense peak."""

    def of_model(own: Question) -> Node:
        passes, chip = own.analysis.passes, own.analysis.chip_per_pass()
        if passes.is_whole:
            return _at_peak(own, _decode_sum(own), "decode", STEPS)
        return Node(name="at_peak_s", value=_decode_sum(own)(passes.at_peak_s(chip)), unit="s", source=AT_PEAK)

    done, batches = _of_rounds(one, of_model)
    decode = sum_of("decode_s", decode_nodes(one, 1.0), "all real decode steps")
    formula = f"micro_batches * {done.name} / decode_s"
    return of_formula("decode_mfu", formula, (done, decode), DECODE_MFU, {"micro_batches": batches}, "")


def _decode_mbu(one: Question) -> Node:
    """Weight and cache bytes of the real decode steps over their time and the bandwidth."""
    read, batches = _of_rounds(one, _reads)
    decode = sum_of("decode_s", decode_nodes(one, 1.0), "all real decode steps")
    chip = one.at_pass(one.shown["decode"]).chip
    bandwidth = Node(
        name="peak_bandwidth",
        value=float(np.max(chip.bandwidth_bytes_per_s)),
        unit="byte/s",
        source=sheet(chip, "bandwidth_bytes_per_s"),
    )
    formula = "micro_batches * read_bytes / (decode_s * peak_bandwidth)"
    return of_formula("decode_mbu", formula, (read, decode, bandwidth), DECODE_MBU, {"micro_batches": batches}, "")


def _of_rounds(one: Question, of_model: Callable[[Question], Node]) -> tuple[Node, float]:
    """A quantity of all decode passes per kept token, of the model and its drafts, and how many micro-batches run."""
    own, generation = one.analysis, one.analysis.system.generation
    verified = of_model(one)
    name, unit, source = verified.name, verified.unit, verified.source
    parts = [verified]
    for draft, drafting in one.drafts:
        passes = {"draft_passes": one.at(draft.passes)}
        inner = (of_model(drafting),)
        parts.append(of_formula(f"draft: {draft.name}", f"draft_passes * {name}", inner, source, passes, unit))
    ending = name.rpartition("_")[2]
    rounds = sum_of(f"rounds_{ending}", tuple(parts), source, unit)
    kept = {"tokens_per_round": one.at(generation.tokens)}
    told = PER_ROUND.format(what="bytes" if unit == "byte" else "time")
    found = of_formula(name, f"{rounds.name} / tokens_per_round", (rounds,), told, kept, unit)
    return found, 1.0 if own.system.parallelism.microbatches == 1 else one.at(own.in_flight)


def _decode_sum(one: Question) -> ValueOf:
    """Function from a quantity of every pass to its sum over the real decode steps."""
    return lambda values: one.at(one.analysis.schedule.decode_sum(values))


def _reads(one: Question) -> Node:
    """Bytes that one model reads in its decode passes, by operator where these are kept."""
    own, summed = one.analysis, _decode_sum(one)
    if not own.passes.is_whole:
        return Node(name="read_bytes", value=summed(own.passes.read_bytes), unit="byte", source=READS)
    found = []
    for row in own.evaluation.rows:
        value = summed(row.operator.read_bytes(Role.WEIGHT, Role.CACHE)) * float(row.block.repeats)
        if value:
            name = f"{row.block.name}.{row.operator.name}"
            found.append(Node(name=name, value=value, unit="byte", source=READS))
    return sum_of("read_bytes", tuple(found), READS, "byte")

"""Waiting where sequences share a replica: queues, and prompts of others before the first token and between tokens."""

from __future__ import annotations

from llmviewer.result.explanation.disaggregated import first_token_of_pools, generation_of_pools
from llmviewer.result.explanation.metrics import ENGINE, Question
from llmviewer.result.explanation.node import Node, of_formula, sum_of
from llmviewer.result.explanation.rounds import decode_nodes, per_token, prefill_nodes
from llmviewer.techniques.batching.chunked import ChunkedTimes
from llmviewer.techniques.batching.disaggregated import DisaggregatedTimes

QUEUE = "waiting for a slot of the KV cache: each becomes free once per cycle, users share them (serving/batching.py)"
CYCLE = "time between the starts of two requests in the same slot"
OTHERS = "prompts of the other running sequences: each starts one request during one of ours (serving/batching.py)"
PART = "part of the others' prompts that runs {where} (interference of the engine {engine}, calibrate/engines)"
CHUNKS = "mixed steps between the tokens of a sequence: decodes and chunks of prompts (techniques/batching/chunked.py)"
AHEAD = "prompts ahead in mixed steps (techniques/batching/chunked.py)"
HOST = "HTTP, tokenization and first scheduling of a request, " + ENGINE


def first_token_nodes(one: Question) -> tuple[Node, ...]:
    """Parts of the TTFT of a request that shares a replica with others (`RequestTimes.ttft_s`)."""
    times = one.analysis.times
    if isinstance(times, DisaggregatedTimes):
        return (*prefill_nodes(one), *_host(one), *first_token_of_pools(one, times))
    if isinstance(times, ChunkedTimes):
        before = _ahead(one, times)
    else:
        part = 1.0 - times.interference if one.at(times.steps) > 0.0 else 1.0
        before = _others(one, part, "before the first token", 1.0)
    return (*prefill_nodes(one), *before, *_queue(one), *_host(one))


def generation_nodes(one: Question, share: float) -> tuple[Node, ...]:
    """Parts of the time from the first token to the last, times a share (`RequestTimes.generation_s`)."""
    times = one.analysis.times
    if isinstance(times, DisaggregatedTimes):
        return (*decode_nodes(one, share), *generation_of_pools(one, times, share))
    if isinstance(times, ChunkedTimes):
        return _mixed(one, times, share)
    between = times.interference if one.at(times.steps) > 0.0 else 0.0
    return (*decode_nodes(one, share), *_others(one, between, "between tokens", share))


def _others(one: Question, part: float, where: str, share: float) -> tuple[Node, ...]:
    """Prompts of others before the first token, or between tokens."""
    times = one.analysis.times
    if not part or not one.at(times.others_s):
        return ()
    inner = prefill_nodes(one, fill=False)
    values = {name: one.at(getattr(times, name)) for name in ("prompts_per_pass", "running")}
    prompts = sum_of("next_s", inner, "prompts that are prefilled together, until others may follow")
    formula = "next_s / prompts_per_pass * (running - prompts_per_pass)"
    others = of_formula("others_s", formula, (prompts,), OTHERS, values)
    source = PART.format(where=where, engine=one.analysis.system.engine.name)
    engine = Node(name="part", value=part, source=source)
    formula, tokens = per_token("part * others_s", share)
    return (of_formula(f"others' prompts {where}", formula, (engine, others), OTHERS, tokens),)


def _queue(one: Question) -> tuple[Node, ...]:
    """Waiting for a slot of the KV cache."""
    times = one.analysis.times
    if not one.at(times.queue_s):
        return ()
    values = {name: one.at(getattr(times, name)) for name in ("users", "running")}
    return (of_formula("queue_s", "(users / running - 1) * cycle_s", (_cycle(one),), QUEUE, values),)


def _cycle(one: Question) -> Node:
    """Time from one request to the next in a slot."""
    times = one.analysis.times
    prefill_s = one.at(times.prefill_s)
    if isinstance(times, ChunkedTimes):
        after = sum_of("generation_s", _mixed(one, times, 1.0), "from the first token to the last")
        values = {"waiting_s": one.at(times.waiting_s), "prefill_s": prefill_s}
        return of_formula("cycle_s", "waiting_s + prefill_s + generation_s", (after,), CYCLE, values)
    decode = sum_of("decode_s", decode_nodes(one, 1.0), "all decode steps")
    values = {"prefill_s": prefill_s, "others_s": one.at(times.others_s)}
    return of_formula("cycle_s", "prefill_s + others_s + decode_s", (decode,), CYCLE, values)


def _host(one: Question) -> tuple[Node, ...]:
    """Time of the host before the first token of a request."""
    seconds = one.analysis.times.request_s
    source = HOST.format(engine=one.analysis.system.engine.name)
    return (Node(name="engine: request", value=seconds, unit="s", source=source),) if seconds else ()


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

"""Waiting between pools of prefill and decode instances: queues, hand-over, and the transfer of the KV cache."""

from __future__ import annotations

from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node, of_formula
from llmviewer.result.explanation.rounds import per_token
from llmviewer.techniques.batching.disaggregated import BOUNDS, DisaggregatedTimes

WAITING = "all waiting of a request: users over the throughput, less what it is served (Little's law)"
RATE = "throughput of the slowest of prefill, links, decode and users (techniques/batching/pools.py)"
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

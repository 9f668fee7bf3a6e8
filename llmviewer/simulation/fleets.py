"""From configurations to the pools of a fleet: prices, cache, scheduler, and the link between prefill and decode."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from llmviewer.analysis.capacity import replica_of
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware.specs import network
from llmviewer.serving.scheduling import SCHEDULERS, USUAL
from llmviewer.simulation.cache_capacity import cache_capacity
from llmviewer.simulation.fleet import ROUTER_OF_RANKS, ROUTERS, USUAL_ROUTER, Fleet, Pool
from llmviewer.simulation.input_times import InputTimes
from llmviewer.simulation.step_times import step_times
from llmviewer.techniques.batching.disaggregated import Disaggregated
from llmviewer.timing import engine as engines

#: Options that a layout of `--pools` sets, by their prefix.
LAYOUT = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "expert_parallel_size",
}
POOLS = ("prefill", "decode")
ALLOWED = "allowed: prefill=2xtp2@h100-sxm,decode=1xtp8@h200[,link=GB/s or network]"
#: `2xtp2+ep2@h200`: instances, layout, chip; each part but the first may be missing.
INSTANCES = re.compile(r"(?P<count>[1-9][0-9]{0,4})(?:[x×](?P<layout>[a-z0-9+]*))?(?:@(?P<chip>.+))?")  # noqa: RUF001


def pool_of(
    one: Configuration,
    router: str | None,
    instances: int = 1,
    length: float = 4096.0,
    inputs: InputTimes | None = None,
) -> Pool:
    """The replicas of a configuration, `instances` times its data parallelism.

    router: as of --router; None: the usual one.  length: mean tokens of a request.  inputs: times of an
    encoder-decoder, whose inputs have passes of their own.

    Raises UserError for an engine that does not serve requests, and for techniques that are not simulated.
    """
    system = one.system
    scheduler = system.engine.scheduler or ("" if system.engine.source else USUAL)
    if not scheduler:
        serving = [name for name in engines.names() if engines.load(name).scheduler]
        raise UserError(f"engine {system.engine.asked} does not serve requests; allowed: {', '.join(serving)}")
    router = router or (ROUTER_OF_RANKS if system.parallelism.ranks > 1 else USUAL_ROUTER)
    if router not in ROUTERS:
        raise unknown("router", router, ROUTERS)
    times = inputs or step_times(one)
    merged = system.batching.name == "chunked"
    policy = replace(SCHEDULERS[USUAL], name="chunked") if merged else SCHEDULERS[scheduler]
    if one.model.is_encoder:
        policy = replace(policy, chunks=False)
    if inputs is not None:
        policy = replace(policy, chunks=False, mixes=False)
    room = cache_capacity(one, length)
    whole = policy.chunks or (policy.alone and one.options.max_num_batched_tokens is None)
    return Pool(
        prices=times,
        room=room,
        scheduler=policy,
        replicas=instances * system.parallelism.data,
        router=ROUTERS[router],
        max_context=float(room.max_context),
        max_prompt=float("inf") if whole else float(room.token_budget),
        host_s=times.request_s,
        devices=system.parallelism.devices // (system.parallelism.data * system.parallelism.instances),
        ranks=system.parallelism.ranks,
        stages=system.parallelism.pipeline if policy.pipelined else 1,
        kv_cache=system.kv_cache,
    )


def fleet_of(one: Configuration, router: str | None, length: float, inputs: InputTimes | None = None) -> Fleet:
    """The fleet of a configuration: its replicas, or the two pools of `--batching disaggregated`.  Raises UserError."""
    batching = one.system.batching
    if one.options.techniques.get("batching", "").startswith("static"):
        raise UserError("batching static is not simulated; allowed: continuous, chunked, disaggregated")
    if not isinstance(batching, Disaggregated):
        return Fleet(prefill=pool_of(one, router, length=length, inputs=inputs))
    first, then = (pool_of(one, router, int(count), length) for count in (batching.prefill, batching.decode))
    return Fleet(prefill=first, decode=then, transfer_s=_transfer(one, one, batching.link_bytes_per_s))


@frozen
class PoolText:
    """One pool of `--pools`.  chip: empty for that of the command.  options: of its layout."""

    instances: int
    options: Mapping[str, str]
    chip: str = ""


def pools_of(text: str) -> tuple[dict[str, PoolText], str]:
    """The pools of `--pools` by name, and its link, empty if not given.  Raises UserError."""
    found: dict[str, PoolText] = {}
    link = ""
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if name == "link" and value and not link:
            link = value
            continue
        if equals and name not in (*POOLS, "link"):
            raise unknown("pool", name, (*POOLS, "link"))
        matched = INSTANCES.fullmatch(value)
        if not equals or matched is None or name in found or name == "link":
            raise UserError(f"pools has {quoted(part)}; {ALLOWED}")
        options = _layout(matched["layout"] or "", part)
        found[name] = PoolText(instances=int(matched["count"]), options=options, chip=matched["chip"] or "")
    for name in POOLS:
        if name not in found:
            raise UserError(f"pools is {quoted(text)}: {name} is missing; {ALLOWED}")
    return found, link


def _layout(text: str, part: str) -> dict[str, str]:
    options = {}
    for word in filter(None, text.split("+")):
        kind, size = word[:2], word[2:]
        if kind not in LAYOUT or not size.isdigit() or LAYOUT[kind] in options:
            raise UserError(
                f"pools has {quoted(part)}; allowed layouts: {', '.join(f'{one}N' for one in LAYOUT)}, as tp2+ep2"
            )
        options[LAYOUT[kind]] = size
    return options


def pooled(
    model: Any, hardware: Any, options: Mapping[str, Any], text: str, router: str | None, length: float
) -> tuple[Fleet, tuple[Configuration, Configuration]]:
    """The fleet of `--pools`, and the configurations of its pools.  Raises UserError."""
    pools, link = pools_of(text)
    batching = str(options.get("batching", ""))
    if batching.startswith(("static", "disaggregated")):
        raise UserError(f"batching {batching} and pools both say how requests share devices; remove one of them")
    first, then = (
        configuration(model, pools[name].chip or hardware, **{**options, **pools[name].options}) for name in POOLS
    )
    fleet = Fleet(
        prefill=pool_of(first, router, pools["prefill"].instances, length),
        decode=pool_of(then, router, pools["decode"].instances, length),
        transfer_s=_transfer(first, then, _link(link, first, then)),
    )
    return fleet, (first, then)


def _link(text: str, first: Configuration, then: Configuration) -> float:
    """Rate of the link of one device [byte/s]: GB/s, a network's name, else the slower of the chips' own."""
    if text:
        try:
            rate = float(text) * 1e9
        except ValueError:
            return float(np.max(network(text)[0].bandwidth_bytes_per_s))
        if not 0.0 < rate < np.inf:
            raise UserError(f"pools has link={text}; allowed: GB/s above 0, or a network's name")
        return rate
    rates = []
    for one in (first, then):
        chip = one.system.chip
        own = chip.network_rate if chip.network_rate is not None else chip.link_rate
        if own is None:
            raise UserError(f"pools: {chip.name} publishes no link; give link=GB/s or a network's name")
        rates.append(float(np.max(own)))
    return min(rates)


def _transfer(first: Configuration, then: Configuration, rate: Any) -> Callable[[int], float]:
    """Time to move the cache of a prompt between two replicas [s], linear in its tokens.

    Every device of the receiver gets its part, which several may hold alike (latent attention), over as many links as
    the smaller replica has devices.
    """
    request = Request(batch_size=np.ones(2), input_len=np.array([1024.0, 2048.0]), output_len=np.ones(2))
    receiver = replica_of(then.model, then.system.one_replica(), np.inf)
    short, long = np.broadcast_to(receiver.prompt_bytes(request), 2)
    senders, receivers = (
        one.system.parallelism.tensor * one.system.parallelism.pipeline * one.system.parallelism.context
        for one in (first, then)
    )
    share = receivers / min(senders, receivers) / float(np.max(rate))
    per_token = float(long - short) / 1024.0 * share
    fixed = float(short) * share - 1024.0 * per_token
    return lambda tokens: fixed + per_token * tokens

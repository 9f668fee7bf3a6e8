"""`--batching disaggregated`: some machines prefill, others decode; the cache of a prompt moves between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.workload import Request, decode
from llmviewer.hardware.specs import network
from llmviewer.serving.batching import Batching, Facts, Replica, RequestTimes, Running, per_token, together
from llmviewer.techniques.batching.pools import BOUNDS, Load
from llmviewer.techniques.batching.sharing import check_mixable, sharing
from llmviewer.techniques.technique import Change, Parameter, Technique, named

WHERE = "--batching disaggregated"
POOLS = tuple(Parameter(name=name, default=1.0, low=1, high=65536, whole=True) for name in ("prefill", "decode"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Apart(Running):
    """What decodes on one instance, and where its prompts come from."""

    load: Load
    prefill_places: Count
    prompt_bytes: Count
    link_bytes_per_s: Count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DisaggregatedTimes(RequestTimes):
    """Throughput is that of the slowest resource, and users = throughput x E2E (Little).

    Whoever waits for prefill or for a place in the decode pool waits before the first token, whoever waits for a link
    before the second.
    """

    apart: Apart

    @property
    def load(self) -> Load:
        """With the prefill time of the passes as they are cut."""
        return replace(self.apart.load, prefill_s=self.prefill_s)

    @property
    def requests_per_s(self) -> Array:
        """Of the whole [1/s]."""
        return np.asarray(np.min(self.load.rates(self.decode_s), axis=0))

    @property
    def bound(self) -> Array:
        """Index into BOUNDS of what is slowest."""
        return np.asarray(np.argmin(self.load.rates(self.decode_s), axis=0))

    @property
    def waiting_s(self) -> Array:
        """In all [s]."""
        busy = self.prefill_s + self.load.transfer_s + self.decode_s
        return np.maximum(self.load.users / self.requests_per_s - busy, 0.0)

    @property
    def queue_s(self) -> Array:
        """Before the first token [s]."""
        return np.where(self.bound == BOUNDS.index("link"), 0.0, self.waiting_s)

    @property
    def transfer_s(self) -> Array:
        """Of the cache, the wait for a link included [s]."""
        return self.load.transfer_s + self.waiting_s - self.queue_s

    @property
    def others_s(self) -> Array:
        """Nobody's prefill stands between the tokens of another [s]."""
        return np.zeros_like(self.prefill_s)

    @property
    def ttft_s(self) -> Array:
        """The first token comes from the prefill instance [s]."""
        return self.queue_s + self.prefill_s

    @property
    def generation_s(self) -> Array:
        """The transfer delays the second token [s]."""
        return np.asarray(self.transfer_s + self.decode_s)

    def facts(self) -> Facts:
        """Instances, rates [1/s], shares of time in use, times [s], bytes."""
        load, rate = self.load, self.requests_per_s
        return {
            "prefill_instances": load.prefill,
            "decode_instances": load.decode,
            "bound": [BOUNDS[at] for at in self.bound],
            "requests_per_s": rate,
            "prefill_busy": rate * self.prefill_s / (load.prefill * load.together),
            "link_busy": rate * load.transfer_s / load.ways,
            "decode_batch": rate * self.decode_s / load.decode,
            "decode_places": load.places,
            "prefill_places": self.apart.prefill_places,
            "prompts_together": load.together,
            "transfer_bytes": self.apart.prompt_bytes,
            "link_bytes_per_s": self.apart.link_bytes_per_s,
            "transfer_s": load.transfer_s,
            "decode_step_s": per_token(self.decode_s, self.steps),
            "queue_s": self.waiting_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Disaggregated(Batching):
    """P instances prefill and D decode, each the whole system that is asked for; users are shared out evenly.

    The first token comes from a prefill instance; the cache of the prompt then moves to a decode instance, where the
    sequence joins a continuous batch.  Every device of an instance sends its own part over a link of its own.
    """

    name: str = "disaggregated"
    prefill: float = 1.0
    decode: float = 1.0
    link_bytes_per_s: Count = np.inf

    def admit(self, request: Request, machine: Replica) -> Running | None:
        """The batch of each decode instance that results."""
        columns = np.broadcast_arrays(*(np.atleast_1d(c) for c in (request.batch_size, request.input_len)))
        users, prompt = (np.asarray(column, dtype=np.float64) for column in columns)
        steps = request.output_len - 1.0 + 0.0 * users
        moved = machine.prompt_bytes(request)
        load = self._load(request, users, np.where(steps > 0.0, moved, 0.0), machine)

        def decode_s(batches: Array) -> Array:
            """At the mean context: steps are linear in it."""
            context = prompt + np.maximum(steps - 1.0, 0.0) / 2.0
            seconds = machine.step_s(decode(batches.ravel(), np.broadcast_to(context, batches.shape).ravel()))
            return np.asarray(seconds).reshape(batches.shape) * steps

        return Apart(
            request=replace(request, batch_size=load.batch(decode_s)),
            together=load.together,
            load=load,
            prefill_places=machine.places(_first_token(request), machine.token_budget),
            prompt_bytes=moved,
            link_bytes_per_s=self.link_bytes_per_s,
        )

    def _load(self, request: Request, users: Array, moved: Array, machine: Replica) -> Load:
        """What the users ask of the pools.  moved: bytes of each prompt's cache that cross the link of a device."""
        shared = together(replace(request, batch_size=np.ceil(users / self.prefill)))
        return Load(
            users=users,
            prefill=self.prefill,
            decode=self.decode,
            prefill_s=machine.prefill_s(replace(_first_token(request), batch_size=shared)),
            transfer_s=moved / self.link_bytes_per_s,
            places=machine.places(request, np.maximum(np.ceil(users / self.decode), 1.0)),
            together=shared,
        )

    def times(self, passes: RequestTimes, running: Running, users: Count) -> RequestTimes:
        """Who waits for whom."""
        assert isinstance(running, Apart)
        return Batching.times(self, passes, running, users).knowing(DisaggregatedTimes, apart=running)


def _first_token(request: Request) -> Request:
    """The request as a prefill instance answers it."""
    return replace(request, output_len=0.0 * request.output_len + 1.0)


def _make(text: str) -> Change:
    given = named(WHERE, text, (*(pool.name for pool in POOLS), "link")) if text else {}
    prefill, decoding = (pool.of(given, WHERE) for pool in POOLS)
    link = _link(given["link"]) if "link" in given else None

    def change(system: System) -> System:
        check_mixable("disaggregated", system)
        rate = link if link is not None else system.chip.network_rate
        rate = rate if rate is not None else system.chip.link_rate
        if rate is None:
            raise UserError(f"{WHERE}: {system.chip.name} publishes no link; give one, link=GB/s or a network's name")
        batching = Disaggregated(prefill=prefill, decode=decoding, link_bytes_per_s=rate)
        parallelism = replace(system.parallelism, instances=int(prefill + decoding))
        return sharing(batching)(replace(system, parallelism=parallelism))

    return change


def _link(text: str) -> Count:
    """Bytes per second and direction of a network by name, or of so many GB/s."""
    try:
        rate = float(text)
    except ValueError:
        return network(text)[0].bandwidth_bytes_per_s
    if not 0.0 < rate <= 1e6:
        raise UserError(f"{WHERE}: link is {quoted(text)}; allowed: GB/s above 0 to 1,000,000, or a network's name")
    return rate * 1e9


TECHNIQUE = Technique(
    name="disaggregated",
    kind="batching",
    summary="Some instances prefill, others decode, each the whole system asked for; the cache of a prompt moves "
    "over a link.",
    parameters={
        "prefill": "instances that prefill; 1 unless said",
        "decode": "instances that decode; 1 unless said",
        "link": "GB/s of each device, or a network's name; the --network, else the chip's own link unless said",
    },
    formula="t_x = cache bytes of the prompt on a device (2 L k_v d S bytes in all) / link; X = "
    "min(P / t_p, "
    "min(P, D) / t_x, D places / t_d, users / (t_p + t_x + t_d)), t_d(b) at the batch b = X t_d / D that results; "
    "X in requests/s; TTFT = wait + t_p, TPOT = (t_x + t_d) / n, E2E = users / X",
    source="DistServe arXiv 2401.09670, Splitwise arXiv 2311.18677",
    example="llmviewer analyze llama-2-13b --hardware a100-sxm --batch-size 64 "
    "--batching disaggregated,prefill=2,decode=1,link=infiniband-hdr",
    make=_make,
)

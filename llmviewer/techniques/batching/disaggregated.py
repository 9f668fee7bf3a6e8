"""`--batching disaggregated`: prefill and decode on separate instances, with KV-cache transfer between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import Request
from llmviewer.hardware.specs import network
from llmviewer.language.grammar import Form
from llmviewer.serving.batching import (
    Batching,
    BatchingFacts,
    Replica,
    RequestTimes,
    Running,
    per_token,
)
from llmviewer.techniques.batching.batching import check_mixable, with_batching
from llmviewer.techniques.technique import Change, Whole, technique

WHERE = "--batching disaggregated"
#: Resources that may bound the throughput; ties go to the first.
BOUNDS = ("prefill", "link", "decode", "users")
#: Prompt tokens of a prefill pass that shorter prompts share: compute-bound on most accelerators.
SHARED_PASS_TOKENS = 1024.0


def prompts_per_pass(request: Request) -> Count:
    """Prompts that share a pass of a prefill instance."""
    prompts = np.floor(SHARED_PASS_TOKENS / np.maximum(request.input_len, 1.0))
    return np.clip(prompts, 1.0, np.maximum(request.batch_size, 1.0))


@frozen(eq=False)
class Load:
    """Load of both pools and of the links between them, per point.

    users: concurrent requests of the whole system.  prefill, decode: instances.
    transfer_s: KV-cache transfer of one prompt over one of as many links as the smaller pool has instances [s].
    places: sequences that fit on a decode instance.  prompts_per_pass: prompts of a prefill pass.
    """

    users: Count
    prefill: float
    decode: float
    transfer_s: Count
    places: Count
    prompts_per_pass: Count = 1.0

    @property
    def links(self) -> float:
        """Concurrent transfers: each instance sends or receives one at a time."""
        return min(self.prefill, self.decode)

    @property
    def batch(self) -> Count:
        """Sequences of a full decode instance: its part of the users, as many as its KV cache stores.

        It depends on no rate of the chip.  Were it the mean batch X t_d / D instead, a faster prefill would let more
        sequences decode at once and slow down the tokens of each, although nothing became slower.
        """
        return np.maximum(np.minimum(self.users / self.decode, self.places), 1.0)

    def rates(self, prefill_s: Count, decode_s: Count) -> tuple[Array, ...]:
        """Requests per second that each of BOUNDS allows.

        prefill_s: a prefill pass [s].  decode_s: all decode steps of a request in a batch of `batch` sequences [s].
        """
        with np.errstate(divide="ignore"):
            allowed = (
                self.prefill * self.prompts_per_pass / prefill_s,
                self.links / np.asarray(self.transfer_s),
                self.decode * self.places / np.asarray(decode_s),
                self.users / (prefill_s + self.transfer_s + decode_s),
            )
        return tuple(np.asarray(rate, dtype=np.float64) for rate in np.broadcast_arrays(*allowed))


@frozen(eq=False)
class DisaggregatedRunning(Running):
    """Sequences that decode on one instance, and the load of both pools.  prompt_bytes: KV cache per device [byte]."""

    load: Load
    prefill_places: Count
    prompt_bytes: Count
    link_bytes_per_s: Count


@frozen(eq=False)
class DisaggregatedTimes(RequestTimes):
    """Times by Little's law: users = throughput x E2E, with the throughput of the slowest resource.

    Decode steps are those of full decode instances, whatever limits the throughput.  Requests wait for the slowest
    resource: for a prefill instance before the first token, for a link or a place in a decode instance after it.  While
    they wait there, the memory of the prefill instance keeps their caches; when it is full, further requests wait for
    it, before their first token.  A higher rate of the chip never raises E2E; it may move the queue.
    Source: DistServe, arXiv 2401.09670, sections 2.1 and 4.3 (pull-based transfer).
    """

    disaggregated: DisaggregatedRunning

    @property
    def load(self) -> Load:
        """The load of both pools."""
        return self.disaggregated.load

    @property
    def rates(self) -> tuple[Array, ...]:
        """Requests per second that each of BOUNDS allows."""
        return self.load.rates(self.prefill_s, self.decode_s)

    @property
    def requests_per_s(self) -> Array:
        """Throughput of the whole system [requests/s]."""
        return np.asarray(np.min(self.rates, axis=0))

    @property
    def bound(self) -> Array:
        """Index into BOUNDS of the slowest resource."""
        return np.asarray(np.argmin(self.rates, axis=0))

    @property
    def _waiting_s(self) -> Array:
        """All queueing time of a request [s]."""
        busy = self.prefill_s + self.load.transfer_s + self.decode_s
        return np.maximum(self.load.users / self.requests_per_s - busy, 0.0)

    @property
    def handover_s(self) -> Array:
        """Queueing time between the first token and the transfer [s].

        The prompts of a pass have places of their own; the others of a prefill instance are held during this wait and
        the transfer, together for at most P places / X by Little's law.
        """
        places = self.disaggregated.prefill_places - self.load.prompts_per_pass
        room = np.maximum(self.load.prefill * places / self.requests_per_s - self.load.transfer_s, 0.0)
        return np.where(self.bound == BOUNDS.index("prefill"), 0.0, np.minimum(self._waiting_s, room))

    @property
    def queue_s(self) -> Array:
        """Queueing time of a request before its first token [s]."""
        return self._waiting_s - self.handover_s

    @property
    def others_s(self) -> Array:
        """Zero: no prefill runs between the tokens of other requests [s]."""
        return np.zeros_like(self.prefill_s)

    @property
    def ttft_s(self) -> Array:
        """Queueing, prefill and host time; the prefill instance returns the first token [s]."""
        return self.queue_s + self.prefill_s + self.request_s

    @property
    def generation_s(self) -> Array:
        """Wait for a link or a place, transfer and decode; the first two delay the second token [s]."""
        return np.asarray(self.handover_s + self.load.transfer_s + self.decode_s)

    def facts(self) -> BatchingFacts:
        """Instances, rates [1/s], utilization, times [s], bytes."""
        load, rate = self.load, self.requests_per_s
        return {
            "prefill_instances": load.prefill,
            "decode_instances": load.decode,
            "bound": [BOUNDS[at] for at in self.bound],
            "requests_per_s": rate,
            "prefill_busy": rate * self.prefill_s / (load.prefill * load.prompts_per_pass),
            "link_busy": rate * load.transfer_s / load.links,
            "decode_batch": load.batch,
            "decode_batch_mean": rate * self.decode_s / load.decode,
            "decode_places": load.places,
            "prefill_places": self.disaggregated.prefill_places,
            "prompts_together": load.prompts_per_pass,
            "transfer_bytes": self.disaggregated.prompt_bytes,
            "link_bytes_per_s": self.disaggregated.link_bytes_per_s,
            "transfer_s": load.transfer_s,
            "decode_step_s": per_token(self.decode_s, self.steps),
            "queue_s": self.queue_s,
            "handover_s": self.handover_s,
        }


@frozen(eq=False)
class Disaggregated(Batching):
    """P prefill and D decode instances, each the whole requested system; users are spread evenly.

    A prefill instance returns the first token and keeps the prompt's KV cache until it moves to a decode instance,
    where the sequence joins a continuous batch.  Every device of an instance sends its part over its own link.
    """

    name: str = "disaggregated"
    prefill: float = 1.0
    decode: float = 1.0
    link_bytes_per_s: Count = np.inf

    def admit(self, request: Request, replica: Replica) -> Running | None:
        """The batch of a full decode instance."""
        users = np.atleast_1d(np.asarray(request.batch_size, dtype=np.float64)) + 0.0 * request.input_len
        prompt_bytes = replica.prompt_bytes(request)
        load = Load(
            users=users,
            prefill=self.prefill,
            decode=self.decode,
            transfer_s=np.where(request.output_len > 1.0, prompt_bytes, 0.0) / self.link_bytes_per_s,
            places=replica.max_sequences(request, np.maximum(np.ceil(users / self.decode), 1.0)),
            prompts_per_pass=prompts_per_pass(replace(request, batch_size=np.ceil(users / self.prefill))),
        )
        return DisaggregatedRunning(
            request=replace(request, batch_size=load.batch),
            prompts_per_pass=load.prompts_per_pass,
            load=load,
            prefill_places=replica.max_sequences(_first_token(request), replica.token_budget),
            prompt_bytes=prompt_bytes,
            link_bytes_per_s=self.link_bytes_per_s,
        )

    def times(self, passes: RequestTimes, running: Running, users: Count) -> RequestTimes:
        """Times with queueing at both pools and the links."""
        assert isinstance(running, DisaggregatedRunning)
        return Batching.times(self, passes, running, users).extended(DisaggregatedTimes, disaggregated=running)


def _first_token(request: Request) -> Request:
    """The request on a prefill instance: its prompt and one output token."""
    return replace(request, output_len=0.0 * request.output_len + 1.0)


def read_link(text: str) -> Count:
    """Bandwidth of a network by name, or of a number of GB/s [byte/s per direction]."""
    try:
        rate = float(text)
    except ValueError:
        return network(text)[0].bandwidth_bytes_per_s
    if not 0.0 < rate <= 1e6:
        raise ValueError("allowed: GB/s above 0 to 1,000,000, or a network's name")
    return rate * 1e9


@technique(
    "disaggregated",
    where=WHERE,
    kind="batching",
    formula="t_x = KV-cache bytes of the prompt on a device (2 L k_v d S bytes in total) / link; X = "
    "min(P / t_p, "
    "min(P, D) / t_x, D places / t_d, users / (t_p + t_x + t_d)), t_d at the batch of a full decode instance, "
    "min(users / D, places); X in requests/s; TTFT = queue + t_p, "
    "TPOT = (wait for a link or place + t_x + t_d) / n, E2E = users / X",
    source="DistServe arXiv 2401.09670, Splitwise arXiv 2311.18677",
    example="llama-2-13b --hardware a100-sxm --batch-size 64 "
    "--batching disaggregated,prefill=2,decode=1,link=infiniband-hdr",
)
def disaggregated(
    *,
    prefill: Annotated[float, Whole("prefill instances", 1, 65536)] = 1.0,
    decode: Annotated[float, Whole("decode instances", 1, 65536)] = 1.0,
    link: Annotated[
        Count | None,
        Form(
            help="GB/s per device, or a network's name",
            parse=read_link,
            unset="--network, else the chip's own link",
        ),
    ] = None,
) -> Change:
    """Prefill and decode run on separate instances, each the whole requested system; the KV cache of a prompt moves
    over a link.
    """

    def change(system: System) -> System:
        check_mixable("disaggregated", system)
        rate = link if link is not None else system.chip.network_rate
        rate = rate if rate is not None else system.chip.link_rate
        if rate is None:
            raise UserError(f"{WHERE}: {system.chip.name} publishes no link; give link=GB/s or a network's name")
        batching = Disaggregated(prefill=prefill, decode=decode, link_bytes_per_s=rate)
        parallelism = replace(system.parallelism, instances=int(prefill + decode))
        return with_batching(batching)(replace(system, parallelism=parallelism))

    return change

"""How a training step is spread over devices: who holds which states, what they exchange, and how long they wait."""

from __future__ import annotations

from enum import Enum

import numpy as np

from llmviewer.analysis.system import System
from llmviewer.core.dtypes import get_dtype
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Role, Tensor, whole
from llmviewer.hardware.chip import Host
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.timing.calibrated import PINNED_SHARE
from llmviewer.timing.roofline import ideal, time_operator

#: Bytes of a gradient, and of a weight that replicas send each other: 16 bit.
GRADIENT_BYTES = 2.0
#: Time of a kernel in a training step over that of the profile, by generation; others take that of BORROWED.  BACKWARD:
#: of a backward kernel over a forward one of the same work.  BESIDE: while weights are gathered and gradients reduced
#: beside it (ZeRO 3).  HIDDEN: share of an exchange that kernels of the same time hide.  The four are chosen on
#: published steps (calibrate/ledger/train-*.yaml without the sources held out, docs/guide/training.md).
SUSTAINED, BORROWED = {"ampere": 1.0, "hopper": 1.26}, "hopper"
BACKWARD, BESIDE, HIDDEN = 1.15, 1.14, 0.7
#: Factor of the interval that holds 80 % and 95 % of these steps.
SPREAD80, SPREAD95 = 1.15, 1.35


class Offload(Enum):
    """Tensors that the memory of the host holds: the optimizer's with gradients (ZeRO-Offload, arXiv 2101.06840), or
    weights too (ZeRO-Infinity, arXiv 2104.07857)."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"


@frozen
class Times:
    """Times of the kernels of a micro-batch [s]."""

    forward_s: float = 0.0
    recompute_s: float = 0.0
    backward_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Time of all passes [s]."""
        return self.forward_s + self.recompute_s + self.backward_s

    def __add__(self, other: Times) -> Times:
        return Times(
            forward_s=self.forward_s + other.forward_s,
            recompute_s=self.recompute_s + other.recompute_s,
            backward_s=self.backward_s + other.backward_s,
        )


@frozen
class States:
    """Weights of one pipeline stage on one device, before replicas divide them.

    split, split_bytes: trained weights, and bytes of all weights, that every replica has alike.  own, own_bytes: of
    experts that no other replica has.  largest_bytes, largest_trained: of the largest of `units` layers.
    """

    split: float
    own: float
    split_bytes: float
    own_bytes: float
    largest_bytes: float
    largest_trained: float
    units: float


@frozen
class Offloaded:
    """Bytes on the host per device, and time that offloading adds to a step [s]."""

    host_bytes: float = 0.0
    time_s: float = 0.0


@frozen
class Layout:
    """Data parallelism and micro-batches of a step.

    micro_batch: sequences of one pass; micro_batches: passes of a replica before the optimizer's step.  data: replicas.
    zero: what they divide: 1 states of the optimizer, 2 gradients too, 3 weights too (ZeRO, arXiv 1910.02054; 3 is
    PyTorch's FSDP, arXiv 2304.11277).  experts: devices that share out experts.  virtual: parts of the layers that each
    pipeline stage has (arXiv 2104.04473, section 2.2).  host: that of `offload`.
    """

    micro_batch: float
    micro_batches: float = 1.0
    data: int = 1
    zero: int = 0
    experts: int = 1
    virtual: int = 1
    offload: Offload = Offload.NONE
    host: Host | None = None

    def divided(self, stage: int) -> float:
        """Replicas that divide what a stage of ZeRO divides: 1 states, 2 gradients, 3 weights."""
        return float(self.data) if self.zero >= stage else 1.0

    def weights_bytes(self, of: States) -> float:
        """Bytes of the weights of one device."""
        return of.split_bytes / self.divided(3) + of.own_bytes

    def memory(self, of: States, state_bytes: float) -> dict[str, float]:
        """Bytes on one device by kind.  state_bytes: of the optimizer per trained weight."""
        on_host = self.offload is not Offload.NONE
        gathers = self.divided(3) > 1.0 or self.offload is Offload.PARAMETERS
        reduces = self.divided(2) > 1.0 or on_host
        return {
            "weights_bytes": 0.0 if self.offload is Offload.PARAMETERS else self.weights_bytes(of),
            "gradients_bytes": 0.0 if on_host else GRADIENT_BYTES * (of.split / self.divided(2) + of.own),
            "optimizer_bytes": 0.0 if on_host else state_bytes * (of.split / self.divided(1) + of.own),
            # the layer at work and the next one, and the gradients of one
            "gathered_bytes": 2.0 * gathers * of.largest_bytes + reduces * GRADIENT_BYTES * of.largest_trained,
        }

    def kernel_times(self, seconds: float, again: float, back: float, system: System) -> Times:
        """Times of an operator.  seconds: of its forward kernel.  again, back: share that runs again, backward work."""
        slower, backward = 1.0, 1.0
        if system.efficiency is not ideal:
            slower = SUSTAINED.get(system.chip.generation, SUSTAINED[BORROWED])
            slower, backward = slower * (BESIDE if self.divided(3) > 1.0 else 1.0), BACKWARD
        one = slower * seconds
        return Times(forward_s=one, recompute_s=again * one, backward_s=backward * back * one)

    def in_flight(self, stage: int, stages: int) -> float:
        """Micro-batches whose activations a pipeline stage keeps under 1F1B (arXiv 2205.05198, section 4.2.3)."""
        more = (stages - 1.0) / self.virtual if self.virtual > 1 else 0.0
        return min(self.micro_batches, stages - stage + more)

    def bubble(self, stages: int) -> float:
        """Time that stages wait over time that they work: (p - 1) / (v m) (arXiv 2104.04473, section 2.2)."""
        return (stages - 1.0) / (self.virtual * self.micro_batches)

    def sends(self, tensor: int) -> float:
        """Messages between stages over those of one pass: every part of the layers sends, devices of a tensor group
        send a part each (arXiv 2104.04473, section 4.1)."""
        return self.virtual / tensor

    def exchange_s(self, of: States, times: Times, system: System) -> float:
        """Time of the exchange of gradients and weights between replicas that no kernel hides [s]."""
        if self.data == 1:
            return 0.0
        sent, passes = of.split * GRADIENT_BYTES, self.micro_batches

        def seconds(pattern: Collective, size: float) -> float:
            return of.units * self._collective_s(pattern, size / of.units, system)

        reduced, back = seconds(Collective.REDUCE_SCATTER, sent), times.recompute_s + times.backward_s
        if self.zero == 0:
            return _exposed(seconds(Collective.ALL_REDUCE, sent), back, system)
        if self.zero < 3:
            many = passes if self.zero == 2 else 1.0
            gathered = seconds(Collective.ALL_GATHER, sent)
            return many * _exposed(reduced, back, system) + _exposed(gathered, times.forward_s, system)
        gathered = seconds(Collective.ALL_GATHER, of.split_bytes)
        return passes * (_exposed(gathered, times.forward_s, system) + _exposed(gathered + reduced, back, system))

    def _collective_s(self, pattern: Collective, size: float, system: System) -> float:
        """Time of one collective of the replicas [s].  Devices of a tensor group are neighbours, replicas are not."""
        chip, own = system.chip, system.parallelism.tensor
        tensor = Tensor(name="states", elements=size / GRADIENT_BYTES, dtype=get_dtype("bf16"), role=Role.ACTIVATION)
        part = Access(tensor, tensor.elements / self.data)
        reads, writes = (part, whole(tensor)) if pattern is Collective.ALL_GATHER else (whole(tensor), part)
        shape = CollectiveShape(
            pattern=pattern,
            devices=float(self.data),
            size_bytes=size,
            near=max(1.0, np.floor(chip.near / own)),
            through_host=chip.through_host,
        )
        one = collective("exchange", (reads,), (writes,), 1.0, shape)
        return float(np.max(time_operator(one, chip, system.efficiency, one.traffic_bytes).time_s))

    def offloaded(self, of: States, mine: float, state_bytes: float, times: Times, system: System) -> Offloaded:
        """Memory and time that offloading takes.  mine: trained weights that this device updates."""
        if self.offload is Offload.NONE:
            return Offloaded()
        host, rate = self.host, host_rate(system, "remove --cpu-offload")
        assert host is not None
        held, copied = mine * (state_bytes + GRADIENT_BYTES), 2.0 * GRADIENT_BYTES * mine / rate
        moved = updated_bytes(mine, state_bytes)
        seconds = copied + moved * host.devices / (host.bandwidth_bytes_per_s * host.memory_share)
        if self.offload is Offload.PARAMETERS:
            weights = self.weights_bytes(of)
            held += weights
            passes = (times.forward_s, times.recompute_s + times.backward_s)
            seconds += self.micro_batches * sum(_exposed(weights / rate, window, system) for window in passes)
        return Offloaded(host_bytes=held, time_s=seconds)


def updated_bytes(weights: float, state_bytes: float) -> float:
    """Bytes that the optimizer moves: it reads and writes its state and the weights, and reads the gradients."""
    return weights * (2.0 * state_bytes + 3.0 * GRADIENT_BYTES)


def host_rate(system: System, instead: str) -> float:
    """Rate of copies between a device and pinned memory of its host [byte/s].  Raises UserError without a link."""
    link = system.chip.host_link_rate
    if link is None:
        raise UserError(f"{system.chip.name} has no link to a host; {instead}")
    return float(np.max(link)) * (1.0 if system.efficiency is ideal else PINNED_SHARE)


def _exposed(seconds: float, window: float, system: System) -> float:
    """Time of copies that kernels of `window` seconds do not hide [s]."""
    return seconds - (1.0 if system.efficiency is ideal else HIDDEN) * min(seconds, window)

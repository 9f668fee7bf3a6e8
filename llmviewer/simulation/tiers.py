"""KV cache beyond the device: blocks on the memory and the disk of the host, and what it takes to load them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated

import numpy as np

from llmviewer.api.configuration import Configuration
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.hardware import specs
from llmviewer.hardware.chip import DEFAULT_HOST, Host
from llmviewer.hardware.specs import DEFAULT_DISK
from llmviewer.language.grammar import Form, Grammar, Number
from llmviewer.simulation.cache_capacity import block_bytes
from llmviewer.techniques.technique import called

GIB = 2.0**30
#: Most memory of a tier [GiB].
MOST_GIB = 1e6
OPTION = "--kv-tiers"


@frozen
class Tier:
    """A memory behind that of the device, of one replica.  blocks: that it holds.  block_s: time to load one [s]."""

    name: str
    blocks: int
    block_s: float


class Kept:
    """The content of a tier: leading blocks of prefixes by name, those used least recently lost first.

    All that a replica computes is written to all tiers when a request lets go of it (write-through): as vLLM's
    offloading connector and SGLang's HiCache do (`write_through`), so that nothing has to be written before the device
    can evict.  https://github.com/vllm-project/vllm/tree/main/vllm/distributed/kv_transfer/kv_connector/v1,
    https://docs.sglang.io/advanced_features/hicache_design.html
    """

    __slots__ = ("_free", "_stored", "tier")

    def __init__(self, tier: Tier) -> None:
        self.tier, self._free = tier, tier.blocks
        self._stored: OrderedDict[int, int] = OrderedDict()

    def stored(self, name: int) -> int:
        """Leading blocks of a name that are there."""
        return self._stored.get(name, 0)

    def keep(self, name: int, blocks: int) -> None:
        """Store the first blocks of a name, as the ones used last."""
        stored, before = self._stored, self._stored.pop(name, 0)
        stored[name] = max(blocks, before)
        self._free -= stored[name] - before
        while self._free < 0:
            oldest, held = next(iter(stored.items()))
            lost = min(held, -self._free)
            self._free += lost
            if lost == held:
                del stored[oldest]
            else:
                stored[oldest] = held - lost


def _options(
    *,
    host: Annotated[float, Number("memory of the host for the cache of one replica [GiB]", 0.0, MOST_GIB)],
    disk: Annotated[float, Number("its disk for the cache of one replica [GiB]", 0.0, MOST_GIB)] = 0.0,
    cpu: Annotated[str, Form(help="name of the host", unset=f"that of the chip's file, else {DEFAULT_HOST}")] = "",
    drive: Annotated[str, Form(help="name of the disk")] = DEFAULT_DISK,
) -> tuple[float, float, str, str]:
    return host, disk, cpu, drive


def sizes_of(text: str) -> tuple[float, float, str, str]:
    """Memory and disk [GiB], host and disk by name, of the text of `--kv-tiers`.  Raises UserError."""
    return called(_options, OPTION, Grammar.of(_options), text)


def tiers_of(one: Configuration, text: str) -> tuple[Tier, ...]:
    """The tiers of `--kv-tiers host=64,disk=1000` for a replica of a configuration, the fastest first.

    A device loads its own part of a block over its own link; the memory and the disk of the host are shared by all
    devices of the replica.  Raises UserError.
    """
    memory, disk, cpu, drive = sizes_of(text)
    system, each = one.system, block_bytes(one)
    rate = system.chip.host_link_rate
    if rate is None:
        raise UserError(f"{OPTION}: {system.chip.name} publishes no link to its host")
    if not each:
        raise UserError(f"{OPTION}: the cache of {one.model.name} has no blocks per token")
    devices = system.parallelism.devices // (system.parallelism.data * system.parallelism.instances)
    host: Host = specs.host(cpu or system.chip.usual_host)[0]
    whole = each * devices
    over_link = max(each / float(np.max(rate)), whole / host.bandwidth_bytes_per_s)
    found = [Tier(name="host", blocks=int(memory * GIB / whole), block_s=over_link)]
    if disk:
        read_s = whole / specs.disk(drive)[0].read_bytes_per_s
        found.append(Tier(name="disk", blocks=int(disk * GIB / whole), block_s=max(over_link, read_s)))
    return tuple(found)

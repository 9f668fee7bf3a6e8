"""Group sizes of a system, with one shard pass for tensor, sequence, data and expert parallelism."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import AppliedTechnique, Parallelism, System
from llmviewer.core.errors import UserError
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.specs import network_names
from llmviewer.techniques.parallel.shard import shard
from llmviewer.techniques.parallel.sharding import Sharding
from llmviewer.techniques.technique import Parameter, parse_numbers

#: Largest size of a group.
MAX_DEVICES = 65536


def parse_devices(option: str, text: str) -> int:
    """Parse the number of devices of an option; raises UserError."""
    return int(parse_numbers(option, text, (Parameter(name="size", low=1, high=MAX_DEVICES, whole=True),))["size"])


def with_parallelism(system: System, parallelism: Parallelism) -> System:
    """The system with new group sizes; its shard pass, if any, is replaced, and all devices share a host."""
    check_reach(system.chip, parallelism)
    p, host = parallelism, system.chip.host
    if host is not None:
        system = replace(system, chip=replace(system.chip, host=replace(host, devices=p.devices)))
    names = [applied.name for applied in system.passes]
    index = next((i for i, name in enumerate(names) if name.startswith("shard(")), len(names))
    before, after = system.passes[:index], system.passes[index + 1 :]
    if p.tensor == 1 and p.expert == 1:
        return replace(system, passes=(*before, *after), parallelism=p)
    sizes = {"tensor": p.tensor, "expert": p.expert} | ({"data": p.data} if p.expert > 1 else {})
    texts = [f"{name}={size}" for name, size in sizes.items() if size > 1] + ["sequence"] * p.sequence
    chip = system.chip
    sharding = Sharding(**sizes, sequence=p.sequence, near=chip.near, through_host=chip.through_host)
    applied = AppliedTechnique(name=f"shard({', '.join(texts)})", make=lambda _: shard(sharding), divides=True)
    return replace(system, passes=(*before, applied, *after), parallelism=p)


def check_reach(chip: Chip, parallelism: Parallelism) -> None:
    """Raise UserError if more devices exchange data than their link connects and the chip has no network."""
    if parallelism.exchanging > chip.near and chip.network_rate is None:
        raise UserError(
            f"{parallelism.exchanging} devices exchange data, but {chip.default_link} of {chip.name} connects "
            f"{chip.near:.0f}; choose a network for the rest: --network {', '.join(network_names())}"
        )

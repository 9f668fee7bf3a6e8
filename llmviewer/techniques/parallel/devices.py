"""Dealing the work to devices: one shard pass for all that tensor, sequence, data and expert parallelism ask."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import AppliedTechnique, Parallelism, System
from llmviewer.core.errors import UserError
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.specs import network_names
from llmviewer.techniques.parallel.shard import shard
from llmviewer.techniques.parallel.sharding import Sharding
from llmviewer.techniques.technique import Parameter, parse_numbers

#: Most devices of a group that anyone asks for.
MAX_DEVICES = 65536


def parse_devices(option: str, text: str) -> int:
    """The number of devices that an option's text asks for."""
    return int(parse_numbers(option, text, (Parameter(name="size", low=1, high=MAX_DEVICES, whole=True),))["size"])


def with_parallelism(system: System, parallelism: Parallelism) -> System:
    """The system with its work dealt so; the shard pass that stood there before gives way."""
    check_reach(system.chip, parallelism)
    if system.chip.host is not None and parallelism.devices > 1:
        raise UserError("--hot-neurons: several devices on one host are not modelled; use one device")
    p = parallelism
    at = next((at for at, applied in enumerate(system.passes) if applied.name.startswith("shard(")), len(system.passes))
    before, after = system.passes[:at], system.passes[at + 1 :]
    if p.tensor == 1 and p.expert == 1:
        return replace(system, passes=(*before, *after), parallelism=p)
    sizes = {"tensor": p.tensor, "expert": p.expert} | ({"data": p.data} if p.expert > 1 else {})
    said = [f"{name}={size}" for name, size in sizes.items() if size > 1] + ["sequence"] * p.sequence
    sharding = Sharding(**sizes, sequence=p.sequence, near=system.chip.near)
    applied = AppliedTechnique(name=f"shard({', '.join(said)})", make=lambda _: shard(sharding))
    return replace(system, passes=(*before, applied, *after), parallelism=p)


def check_reach(chip: Chip, parallelism: Parallelism) -> None:
    """Raise for more devices that talk to each other than their link joins, where no network joins the rest."""
    if parallelism.exchanging > chip.near and chip.network_rate is None:
        raise UserError(
            f"{parallelism.exchanging} devices exchange data, but {chip.default_link} of {chip.name} joins "
            f"{chip.near:.0f}; say what joins the rest: --network {', '.join(network_names())}"
        )

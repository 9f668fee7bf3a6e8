"""A configuration as a launch manifest needs it: the model's id, group sizes, formats and limits of the engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.planning.manifests import options as choices
from llmviewer.planning.manifests.speculation import Draft

#: Devices of one computer where it is not the 8 of a usual server.  GB200, GB300: a compute tray of NVL72, four GPUs,
#: https://docs.nvidia.com/multi-node-nvlink-systems/multi-node-tuning-guide/overview.html; GH200: one superchip.
DEVICES_PER_NODE = {"gb200": 4, "gb300": 4, "gh200": 1, "gh200-144gb": 1}
SERVER = 8


@frozen
class Serving:
    """One pool of equal replicas of an engine.

    model: Hub id, or path of a checkpoint.  hardware: file stem of the chip.  maker: of the chip.  engine: vllm, sglang
    or trtllm.  engine_version: as the user asked for it, may be empty.  tensor, pipeline, data, expert: group sizes of
    one replica; expert is 1 or tensor x data.  quantization: a name of `--quantization`.  None: the engine's default.
    kv_fraction: share of the free memory for the KV cache.  mixed: chunks of prompts share a step with decoding.
    draft: of speculative decoding.  power_limit: board power below the chip's own, "" for none.  role: prefill or
    decode, in disaggregated pools.  prefill: the pool before it.  notes: what a person must know of its limits.
    """

    model: str
    hardware: str
    engine: str
    maker: str = "NVIDIA"
    engine_version: str = ""
    replicas: int = 1
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    quantization: str = "none"
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_fraction: float | None = None
    kv_block_size: int | None = None
    enforce_eager: bool = False
    mixed: bool = False
    draft: Draft | None = None
    power_limit: str = ""
    role: str = ""
    prefill: Serving | None = None
    notes: tuple[str, ...] = ()

    @property
    def group(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline * self.data

    @property
    def node(self) -> int:
        """Devices of one computer with this chip."""
        return DEVICES_PER_NODE.get(self.hardware, SERVER)

    @property
    def nodes(self) -> int:
        """Computers that one replica takes."""
        return -(-self.group // self.node)

    @property
    def per_node(self) -> int:
        """Devices that one replica takes on each of its computers.  Raises UserError if they differ."""
        if self.group % self.nodes:
            raise UserError(
                f"a replica of {self.group} devices does not divide evenly over {self.nodes} computers of "
                f"{self.node} {self.hardware}; choose sizes of which it does"
            )
        return self.group // self.nodes

    @property
    def devices(self) -> int:
        """Devices of all replicas of this pool and of the pool before it."""
        return self.replicas * self.group + (self.prefill.devices if self.prefill else 0)

    @property
    def pools(self) -> tuple[Serving, ...]:
        """This pool, after the one before it."""
        return (*(self.prefill.pools if self.prefill else ()), self)

    @property
    def from_hub(self) -> bool:
        """Whether the model is a Hub id rather than a path."""
        return re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", self.model, re.ASCII) is not None

    @property
    def label(self) -> str:
        """A name for Kubernetes objects: the model's last word in lower case, as DNS allows (RFC 1123)."""
        word = re.sub(r"[^a-z0-9]+", "-", self.model.rstrip("/").rpartition("/")[2].lower()).strip("-")
        return re.sub(r"^(?=[0-9])", "m", word[:40].strip("-")) or "model"


def serving_of(configuration: Mapping[str, Any]) -> Serving:
    """The pools of a CONFIGURATION of `size`; `replicas` of data-parallel groups count whole groups.

    configuration: model, hardware (two chips as a+b), devices of all replicas, replicas, and options: long names of
    `simulate` with underscores, non-defaults only; engine here or beside them.  Raises UserError for an option that no
    launch has.
    """
    options = {"engine": configuration.get("engine")} | dict(configuration.get("options") or {})
    options = {name: value for name, value in options.items() if value is not False}
    pools = choices.pools(options)
    chips = str(configuration["hardware"]).split("+")
    model = choices.hub_id(str(configuration["model"]))
    if pools:
        first, serving = (
            _pool(model, pool.chip or chip, {**options, **pool.options}, role, pool.instances)
            for (role, pool), chip in zip(pools.items(), (chips[0], chips[-1]), strict=True)
        )
        serving = replace(serving, prefill=first)
    else:
        serving = _pool(model, chips[0], options)
    total = configuration.get("devices")
    if pools and total is not None:
        return _with_spare(serving, int(total))
    return _repeated(serving, int(configuration.get("replicas") or 1) if total is None else _times(serving, int(total)))


def _with_spare(serving: Serving, total: int) -> Serving:
    """Two pools with as many spare replicas of each as the devices allow, or so many times both of them."""
    assert serving.prefill is not None
    one, beyond = serving.group + serving.prefill.group, total - serving.devices
    if beyond > 0 and beyond % one == 0:
        first = replace(serving.prefill, replicas=serving.prefill.replicas + beyond // one)
        return replace(serving, replicas=serving.replicas + beyond // one, prefill=first)
    return _repeated(serving, _times(serving, total))


def _repeated(serving: Serving, times: int) -> Serving:
    """The pools with so many times their replicas."""
    before = serving.prefill and _repeated(serving.prefill, times)
    return replace(serving, replicas=serving.replicas * times, prefill=before)


def _times(serving: Serving, total: int) -> int:
    """How many times its devices a configuration of `total` devices holds.  Raises UserError if not a whole number."""
    if total % serving.devices or total < 1:
        raise UserError(f"the configuration has {total} devices, but its options need {serving.devices} or a multiple")
    return total // serving.devices


def _pool(model: str, chip: str, options: Mapping[str, Any], role: str = "", instances: int = 1) -> Serving:
    stem, maker = choices.chip(chip)
    serving = Serving(model=model, hardware=stem, maker=maker, role=role, replicas=instances, **choices.fields(options))
    if serving.expert not in (1, serving.tensor * serving.data):
        allowed = f"1 or {serving.tensor * serving.data}"
        raise UserError(f"expert_parallel_size is {quoted(serving.expert)}; allowed: {allowed}")
    separate = serving.data > 1 and serving.expert == 1  # replicas that exchange nothing
    if separate and (serving.group > serving.node or serving.engine == "trtllm"):
        return replace(serving, replicas=instances * serving.data, data=1)
    return serving

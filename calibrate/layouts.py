"""How a published run divides its devices: tensor, pipeline, data and expert parallelism of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from llmviewer.calibrate.cells import is_missing, size_of
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen

#: Sizes of a row, in columns of these names or as `name=size` in the column `note`.
LAYOUT_COLUMNS = ("n_gpus", "tp", "pp", "dp", "ep", "attention_dp", "moe_tp", "moe_ep")


@frozen
class Layout:
    """Group sizes of a run, as the parallelism options of `analyze` take them."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1

    @property
    def devices(self) -> int:
        """Number of all devices."""
        return self.tensor * self.pipeline * self.data

    @property
    def text(self) -> str:
        """Sizes above 1 as `tp 4, dp 2, ep 8`; `one device` if there are none."""
        sizes = {"tp": self.tensor, "pp": self.pipeline, "dp": self.data, "ep": self.expert}
        return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one device"

    def options(self) -> dict[str, str]:
        """Values of the parallelism options, by name."""
        sizes = {"tensor": self.tensor, "pipeline": self.pipeline, "expert": self.expert}
        sizes |= {"data": self.data} if self.data > 1 else {}
        return {f"{name}_parallel_size": str(size) for name, size in sizes.items()}


def layout_of(row: Mapping[str, Any], note: str, *, has_experts: bool) -> Layout:
    """Layout that a row states.  Raises UserError where its sizes contradict each other or are not modelled.

    Data-parallel attention (`attention_dp`, or `dp` with `ep`) has replicas whose experts are distributed over all of
    them.  SGLang and TensorRT-LLM count these replicas inside tp, vLLM beside it; n_gpus tells which.  Where tp is
    stated and neither is, dp is the number of devices over tp x pp.
    """
    sizes = _once(_sizes(row, note), note)
    replicas, left = divmod(sizes["n_gpus"], max(sizes["tp"], 1) * max(sizes["pp"], 1))
    if sizes["tp"] and not (left or sizes["dp"] or sizes["attention_dp"]):
        sizes["dp"] = replicas
    found = Layout(tensor=sizes["tp"] or 1, pipeline=sizes["pp"] or 1, data=sizes["attention_dp"] or sizes["dp"] or 1)
    if sizes["n_gpus"] not in (0, found.devices):
        inside = found.tensor * found.pipeline == sizes["n_gpus"] and found.tensor % found.data == 0
        if not inside:
            raise UserError("tp x pp x dp is not n_gpus: the row contradicts itself")
        found = replace(found, tensor=found.tensor // found.data)
    return _with_experts(found, sizes) if has_experts else found


def _with_experts(found: Layout, sizes: Mapping[str, int]) -> Layout:
    """The layout with whole experts distributed over its tensor and data groups, if the row states that."""
    group, experts, channels = found.tensor * found.data, sizes["moe_ep"] or sizes["ep"] or 1, sizes["moe_tp"] or 1
    if experts * channels not in (1, group):
        raise UserError("moe_tp x moe_ep is not tp x dp: the row contradicts itself")
    if experts > 1 and channels > 1:
        raise UserError("experts that are both distributed by moe_ep and split by moe_tp are not modelled")
    if sizes["attention_dp"] > 1 and not (sizes["moe_ep"] or sizes["ep"] or sizes["moe_tp"]):
        experts = group  # NVIDIA's runs state --ep beside enable_attention_dp: docs/guide/calibration.md
    if experts == 1 and found.data > 1 and (channels > 1 or sizes["attention_dp"] > 1):
        raise UserError("data-parallel attention beside experts that are split by channels is not modelled")
    return replace(found, expert=experts)


def _sizes(row: Mapping[str, Any], note: str) -> dict[str, int]:
    """Sizes of a row by name; 0 where it states none."""
    noted = dict(re.findall(rf"\b({'|'.join(LAYOUT_COLUMNS)})=([\d.]+)", note))
    cells = {name: noted.get(name) if is_missing(row.get(name)) else row[name] for name in LAYOUT_COLUMNS}
    return {name: int(size_of(cells, name, 0.0, whole=True)) for name in LAYOUT_COLUMNS}


def _once(sizes: dict[str, int], note: str) -> dict[str, int]:
    """Sizes of an InferenceX row with each device counted once.

    InferenceX states TP and EP of the same devices (`tp: 8, ep: 8` on a node of 8), and data-parallel attention over
    TP devices.  aiconfigurator's table multiplies the two: of its rows with 64 devices a tenth have a twin with 8
    devices and the same value to the last digit.  So g x g devices of which both sizes are g are g devices.
    """
    if "InferenceX" not in note:
        return sizes
    for first, second in (("moe_tp", "moe_ep"), ("tp", "attention_dp")):
        group = sizes[first]
        if group > 1 and group == sizes[second] and group * group == sizes["n_gpus"]:
            replicas = sizes["attention_dp"] > 1
            own = {"tp": 1 if replicas else group, "attention_dp": group if replicas else 1}
            return sizes | own | {"n_gpus": group, "moe_tp": 1, "moe_ep": group}
    return sizes

"""What serves a model beside kernels: launch gaps, host work per step, layer and sequence, sampling; each by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmviewer import data
from llmviewer.errors import unknown
from llmviewer.ir import Count, Graph, present
from llmviewer.workload import Step

FOLDER = "calibrate/engines"
#: Constants of an engine [us]: name -> what it is paid for.
CONSTANTS: dict[str, str] = {
    "launch": "each kernel of a step: the gap before it starts",
    "layer": "each decoder layer of a step",
    "step": "each forward pass: scheduling, preparing inputs, reading the result",
    "sequence": "each sequence of a pass: its metadata, its detokenization",
    "sampling": "each row of logits that is sampled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A preset.  kernels: whose kernels it runs, as profiles call them.  constants: of CONSTANTS [us]."""

    name: str
    title: str = ""
    kernels: str = "vllm"
    constants: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def terms(self, graph: Graph, step: Step) -> tuple[tuple[str, Count], ...]:
        """Seconds that a forward pass takes beside its kernels, by name; what is zero is left out."""
        if not self.constants:
            return ()
        layers = sum(block.times for block in graph.blocks if block.scope != "model")
        kernels = sum(block.times * len(block.operators) for block in graph.blocks)
        counts: dict[str, Count] = {
            "launch": float(kernels),
            "layer": float(layers),
            "step": 1.0,
            "sequence": sum(group.batch_size for group in step.groups),
            "sampling": sum(group.batch_size * group.logit_positions for group in step.groups),
        }
        seconds = {name: self.constants.get(name, 0.0) * 1e-6 * count for name, count in counts.items()}
        return tuple((name, value) for name, value in seconds.items() if present(value))


#: No engine: kernels alone.
KERNELS = Engine(name="kernels", title="kernels alone, one after another")


def names() -> tuple[str, ...]:
    """All presets."""
    return ("kernels", *data.stems(FOLDER))


def load(name: str) -> Engine:
    """A preset by name.  Raises UserError."""
    if name == KERNELS.name:
        return KERNELS
    if name not in names():
        raise unknown("engine", name, names())
    content = data.read_yaml(data.folder(FOLDER) / f"{name}.yaml")
    return Engine(
        name=name,
        title=str(content["title"]),
        kernels=str(content["kernels"]),
        constants={key: float(value) for key, value in content["constants"].items()},
        source=str(content["source"]),
    )

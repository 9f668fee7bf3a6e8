"""Graph passes that a preset adds beside the options: its kernels, number formats, and the routing of its requests."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.techniques.kernels import cache_write, expert_inputs
from llmviewer.timing.engine import ENGINE_ROUTING


def with_engine_kernels(system: System, *, routed: bool = False) -> System:
    """The system with the passes of its engine.

    Number formats come first: they concern those of the checkpoint, and --quantization takes precedence.  routed: the
    user states how experts are chosen.
    """
    engine = system.engine
    before, after = [], []
    if engine.mxfp8_inputs == system.chip.generation:
        make = expert_inputs.quantize_expert_inputs
        before.append(AppliedTechnique(name="mxfp8_expert_inputs", make=lambda _: make))
    if engine.expert_skew and not routed:
        before.append(_routing(engine.expert_skew))
    if engine.cache_write:
        after.append(AppliedTechnique(name=cache_write.NAME, make=lambda _: cache_write.cache_write))
    return replace(system, passes=(*before, *system.passes, *after)) if before or after else system


def _routing(alpha: float) -> AppliedTechnique:
    """Experts of unequal popularity, in models that have experts."""
    from llmviewer.techniques.sparsity.expert_skew import SERVED_REPEAT, expert_skew, has_routed_experts

    skew = expert_skew(alpha, SERVED_REPEAT)
    return AppliedTechnique(
        name=ENGINE_ROUTING,
        make=lambda _: lambda graph: skew(graph) if has_routed_experts(graph) else graph,
    )

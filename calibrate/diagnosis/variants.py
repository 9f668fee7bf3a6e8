"""Kernels that an engine fused in a recording, for operators that a configuration has apart: attention, gate and up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.diagnosis.patterns import kind_of
from llmviewer.calibrate.diagnosis.recording import Kernel
from llmviewer.calibrate.diagnosis.slots import JOINED, TWINS
from llmviewer.calibrate.diagnosis.times import Comparison
from llmviewer.core.kinds import OperatorRole
from llmviewer.core.workload import decode
from llmviewer.techniques.kernels.flash_attention import flash_attention
from llmviewer.techniques.technique import add_pass

FLASH = add_pass("flash_attention", flash_attention)
NOTE = "attention ran as one kernel, and is predicted so: without recorded kernels the engine's preset has three"


def as_recorded(chosen: Configuration, kernels: Sequence[Kernel]) -> tuple[Configuration, tuple[str, ...]]:
    """The configuration with attention as one kernel if the recording has it so, and a note.

    The preset of llama.cpp has the three kernels of 2024; builds since run one (`-fa`, flash_attn_ext_...).
    """
    graph = chosen.system.prepared(chosen.model.graph(decode(1.0, 1.0)))
    eager = any(operator.role is OperatorRole.SCORES for _, operator in graph)
    if eager and any(kind_of(kernel.name) == "attention" for kernel in kernels):
        return replace(chosen, system=FLASH(chosen.system)), (NOTE,)
    return chosen, ()


def join_gate_and_up(found: Comparison) -> None:
    """Make one operator of gate and up where one kernel ran both, as llama.cpp does; it has the time of both.

    https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-cuda/ggml-cuda.cu.
    """
    twins = [found.operators[name] for name in TWINS if name in found.operators]
    ran = [one for one in twins if one.kernels]
    if len(twins) < len(TWINS) or len(ran) != 1:
        return
    low, planned, high = (sum(getattr(one, name) for one in twins) for name in ("low_s", "predicted_s", "high_s"))
    joined = replace(ran[0], name=JOINED, low_s=low, predicted_s=planned, high_s=high)
    kept = [joined if one is ran[0] else one for one in found.operators.values() if one is ran[0] or one not in twins]
    found.operators = {one.name: one for one in kept}
    found.unplanned = {
        where.replace(f" beside {ran[0].name}", f" beside {JOINED}"): seconds
        for where, seconds in found.unplanned.items()
    }
    runs = found.runs.items()
    found.runs = {(name, kind, JOINED if of == ran[0].name else of): run for (name, kind, of), run in runs}

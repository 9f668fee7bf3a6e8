"""Early exit in a pipeline: every stage checks its own layers and has a head for the tokens that exit in it."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import PipelineExits
from llmviewer.core.counts import Count
from llmviewer.core.ir import Graph
from llmviewer.techniques.sparsity.early_exit import EarlyExit, ExitingStep, Fill, with_head

#: Blocks that the last stage has without early exit, and that others need for the exits after their layers.
ENDS = ("head", "exit_check", "exit_jump")


def in_pipeline(plan: EarlyExit, place: Count) -> PipelineExits:
    """Early exit of tokens at `place` of their answers, stage by stage.

    A pass leaves through the head of the stage in which its deepest token exits.  Unless the later stages fill the
    cache beside the next token, that one starts after all stages, as in a pipeline without exits.
    """

    def change(graph: Graph, stages: tuple[Graph, ...]) -> tuple[Graph, ...]:
        step = ExitingStep.of(plan, graph, place)
        return tuple(_stage(step, stage, stages[-1]) for stage in stages)

    def unknown(graph: Graph) -> tuple[Count, ...]:
        return ExitingStep.of(plan, graph, place).runs

    return PipelineExits(change=change, unknown=unknown if plan.fill is Fill.PIPELINE else None)


def _stage(step: ExitingStep, stage: Graph, last: Graph) -> Graph:
    """A stage with the work of its layers, checks and head times the probability that they run."""
    numbers = [block.numbers for block in stage.blocks if block.is_layer]
    own = sorted(number for listed in numbers for number in listed)
    ends = step.runs[-1] if stage is last else 0.0
    exited = step.runs[own[0]] - (step.runs[-1] if stage is last else step.runs[own[-1] + 1])
    if set(own) & set(step.checked):
        before = [block for block in stage.blocks if block.name not in (*ENDS, "send")]
        after = [block for block in stage.blocks if block.name == "send"]
        stage = replace(stage, blocks=(*before, *(block for block in last.blocks if block.name in ENDS), *after))
    return with_head(step.change(stage, numbers, exited), ends if step.head_is_checked else ends + exited)

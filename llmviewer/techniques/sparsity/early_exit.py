"""Early exit: expected work of layers that tokens with a confident prediction skip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Graph, Operator, Pass, Role
from llmviewer.core.kinds import Kind
from llmviewer.techniques.scaling import map_operators, scale_moved, with_probability
from llmviewer.techniques.sparsity.exit_checks import Confidence
from llmviewer.techniques.sparsity.exit_depth import Exits, StepTokens


class Fill(Enum):
    """Method that fills the cache of skipped layers for a token that exited early."""

    PROPAGATE = "propagate"  # computed from its last hidden state (CALM, arXiv 2207.07061)
    RECOMPUTE = "recompute"  # computed with the next token that runs deeper (FREE, arXiv 2310.05424)
    NONE = "none"  # not filled: a bound


#: Tensors that skipped layers still compute if hidden states are propagated.
KEYS_AND_VALUES = frozenset(
    "attn_norm attn_norm_quantize k_proj v_proj k_norm v_norm k_cache v_cache kv_a_proj kv_a_norm latent_cache".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit:
    """Exits, confidence measure and cache handling of early exit.

    jump: a linear map replaces the skipped layers.
    """

    exits: Exits
    confidence: Confidence = Confidence.CLASSIFIER
    fill: Fill = Fill.PROPAGATE
    jump: bool = False


def early_exit(plan: EarlyExit) -> Pass:
    """Scale the work of every layer by the probability that the step runs it.

    A batch runs as deep as its deepest token, with finished tokens in it: 1 - (1 - Pr(depth >= l))^B.  Only steps whose
    tokens all need logits exit early: decode and verification, not a prefill, a chunk or a batch with one of them.
    Skipped layers stay stored; `plan.fill` fills their cache.  With RECOMPUTE the FLOPs of tokens are deferred, not
    saved; weights and cached keys are read when a layer runs.  The checks are added by `exit_checks`; this pass runs
    last, so that collectives are skipped with their layers.
    """

    def change(graph: Graph) -> Graph:
        tokens = StepTokens.from_graph(graph)
        kinds = [block for block in graph.blocks if block.is_layer]
        depth = sum(block.repeats for block in kinds)
        reach, checked = plan.exits.reach(depth), plan.exits.checked(depth)
        runs = {
            block.name: tokens.mean(reach[layer] for layer in numbers)
            for block, numbers in zip(kinds, layer_numbers(kinds), strict=True)
        }
        exited = tokens.may_exit * np.power(1.0 - reach[-1], tokens.logits)
        probabilities = {
            "exit_check": tokens.may_exit * tokens.mean(reach[layer] for layer in checked),
            "exit_jump": exited / len(checked),  # a step uses one of the stored matrices
        }

        def change_block(block: Block) -> Block:
            if block.name in probabilities:  # pruning may have reduced the number of layers to check
                return map_operators(
                    replace(block, repeats=len(checked)),
                    partial(with_probability, probability=probabilities[block.name]),
                )
            if not block.is_layer:
                return block
            return map_operators(
                _check_fill(block, plan.fill), partial(_run_with_probability, runs=runs[block.name], fill=plan.fill)
            )

        return graph.map_blocks(change_block)

    return change


def _check_fill(block: Block, fill: Fill) -> Block:
    if fill is not Fill.RECOMPUTE and any(state.per_sequence for state in block.states):
        raise UserError(
            f"--early-exit: recurrent layers need every token, but kv={fill.value} skips some; try kv=recompute"
        )
    return block


def _run_with_probability(operator: Operator, runs: Count, fill: Fill) -> Operator:
    """An operator of a layer that runs with probability `runs`."""
    if fill is Fill.RECOMPUTE:
        reads = tuple(a if a.tensor.role is Role.ACTIVATION else scale_moved(a, runs) for a in operator.reads)
        return replace(operator, reads=reads)
    kept = _cached_share(operator) if fill is Fill.PROPAGATE else 0.0
    if kept == 0.0:
        return with_probability(operator, runs)
    if kept == 1.0:
        return operator
    writes = tuple(a if a.tensor.name in KEYS_AND_VALUES else scale_moved(a, runs) for a in operator.writes)
    return replace(with_probability(operator, runs + (1.0 - runs) * kept), writes=writes)


def _cached_share(operator: Operator) -> float:
    """Share of an operator's output that goes to the cache; a copy with such an output has no other."""
    sizes = [float(np.max(access.elements)) for access in operator.writes]  # not the first point: it may not run there
    kept = sum(size for size, a in zip(sizes, operator.writes, strict=True) if a.tensor.name in KEYS_AND_VALUES)
    if kept == 0.0:
        return 0.0
    return 1.0 if operator.kind is Kind.COPY else kept / sum(sizes)

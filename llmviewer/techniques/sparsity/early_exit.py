"""Early exit: expected work of layers that tokens with a confident prediction skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role
from llmviewer.core.kinds import Kind
from llmviewer.layers.encoder import after_encoder
from llmviewer.techniques.scaling import map_operators, scale_moved, sometimes, with_probability
from llmviewer.techniques.sparsity.exit_checks import Confidence
from llmviewer.techniques.sparsity.exit_depth import Exits, StepTokens, forced, has_cache, mean
from llmviewer.techniques.sparsity.exit_layers import depth, layer_indices


class Fill(Enum):
    """Method that fills the cache of skipped layers for a token that exited early."""

    PROPAGATE = "propagate"  # computed from its last hidden state (CALM, arXiv 2207.07061)
    RECOMPUTE = "recompute"  # computed with the next token that runs deeper (FREE, arXiv 2310.05424)
    PIPELINE = "pipeline"  # computed by the stages after the exit beside the next token (EE-LLM, arXiv 2312.04916)
    NONE = "none"  # not filled: a bound, or no later token needs them


#: Least probability of a layer whose tokens wait to be recomputed.
LEAST = 1e-9
#: Tensors that skipped layers still compute if hidden states are propagated.
KEYS_AND_VALUES = frozenset(
    "attn_norm attn_norm_quantize k_proj v_proj k_norm v_norm k_cache v_cache kv_a_proj kv_a_norm latent_cache".split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyExit:
    """Exits, confidence measure and cache handling of early exit.

    jump: a linear map replaces the skipped layers.  deficient: most steps in a row that leave caches unfilled, after
    which a step runs all layers; None without limit.
    """

    exits: Exits
    confidence: Confidence = Confidence.CLASSIFIER
    fill: Fill = Fill.PROPAGATE
    jump: bool = False
    deficient: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExitingStep:
    """Exits of the step that a graph describes.

    runs: probability that its deepest token runs each layer.  checked: layers after which the confidence is checked.
    """

    plan: EarlyExit
    tokens: StepTokens
    fill: Fill
    runs: tuple[Count, ...]
    checked: tuple[int, ...]

    @classmethod
    def of(cls, plan: EarlyExit, graph: Graph, place: Count) -> ExitingStep:
        """The exits of the whole graph's step.  place: of its tokens in their answers, as in Exits."""
        tokens, exits = StepTokens.from_graph(graph), plan.exits
        layers = depth(graph)
        if plan.confidence is Confidence.POSITION and not exits.at:
            runs = tuple(tokens.together(share) for share in exits.fixed(layers, place))
        else:
            deepest = tokens.together if plan.confidence is Confidence.POSITION else tokens.deepest
            runs = tuple(deepest(reach) for reach in exits.reach(layers, place))
        if plan.deficient is not None:
            runs = forced(runs, plan.deficient)
        fill = plan.fill if has_cache(graph) else Fill.NONE
        return cls(plan=plan, tokens=tokens, fill=fill, runs=runs, checked=exits.checked(layers))

    @property
    def head_is_checked(self) -> bool:
        """Whether a check has computed the logits of a step that exits, so that only others need the head once more."""
        return self.plan.confidence is Confidence.SOFTMAX and not self.plan.jump

    def change(self, graph: Graph, numbers: Sequence[Sequence[int]], exited: Count) -> Graph:
        """A graph of some of the layers with their work and that of its checks times the probability that it runs.

        numbers: of the layers of each kind.  exited: probability that the step exits within these layers.
        """
        own = {number for listed in numbers for number in listed}
        checked = [layer for layer in self.checked if layer in own]
        probabilities = {
            "exit_check": self.tokens.may_exit * mean(self.runs[layer] for layer in checked) if checked else 0.0,
            "exit_jump": exited / max(len(checked), 1),  # a step uses one of the stored matrices
        }
        kinds, passed = iter(numbers), after_encoder(graph)

        def change_block(block: Block) -> Block:
            if block.name in probabilities:  # pruning may have reduced the number of layers to check
                return map_operators(
                    replace(block, repeats=len(checked)),
                    partial(sometimes, probability=probabilities[block.name]),
                )
            if not block.is_layer:
                return block
            runs = mean(self.runs[layer] for layer in next(kinds))
            return map_operators(block, partial(_run_with_probability, runs=runs, fill=_fill_of(block, self.fill)))

        encoder = graph.blocks[: len(graph.blocks) - len(passed)]
        return replace(graph, blocks=(*encoder, *map(change_block, passed)))


def early_exit(plan: EarlyExit, place: Count = np.nan) -> Pass:
    """Scale the work of every layer by the probability that the step runs it.

    A batch runs as deep as its deepest token, with finished tokens in it: 1 - (1 - Pr(depth >= l))^B.  Only steps whose
    tokens all need logits exit early: decode and verification, not a prefill, a chunk or a batch with one of them; and
    the one pass of an encoder.  Encoder-decoders skip layers of the decoder, cross attention included, in all steps: in
    the first one it decodes a start token.  Their encoder runs whole and has filled the cache of cross attention.
    Skipped layers stay stored; `plan.fill` fills their cache.  With RECOMPUTE the FLOPs of tokens are deferred, not
    saved; weights and cached keys are read when a layer runs.  The checks are added by `exit_checks`; this pass runs
    last, so that collectives are skipped with their layers.  place: of tokens in their answers, as in Exits.
    """

    def change(graph: Graph) -> Graph:
        step = ExitingStep.of(plan, graph, place)
        found = step.change(graph, layer_indices(graph), 1.0 - step.runs[-1])
        return with_head(found, step.runs[-1]) if step.head_is_checked else found

    return change


def with_head(graph: Graph, probability: Count) -> Graph:
    """The graph whose head runs with `probability`."""
    head = partial(sometimes, probability=probability)
    return graph.map_blocks(lambda block: map_operators(block, head) if block.name == "head" else block)


def _fill_of(block: Block, fill: Fill) -> Fill:
    """The method that fills the cache of a block: NONE instead of PROPAGATE where it writes none (cross attention)."""
    if fill in (Fill.PROPAGATE, Fill.NONE) and any(state.per_sequence for state in block.states):
        raise UserError(
            f"--early-exit: recurrent layers need every token, but kv={fill.value} skips some; try kv=recompute"
        )
    writes = any(access.tensor.role is Role.CACHE for operator in block.operators for access in operator.writes)
    return Fill.NONE if fill is Fill.PROPAGATE and not writes else fill


def _run_with_probability(operator: Operator, runs: Count, fill: Fill) -> Operator:
    """An operator of a layer that runs with probability `runs`."""
    if fill is Fill.PIPELINE:
        return operator
    if fill is Fill.RECOMPUTE:
        return _recomputed(operator, runs)
    kept = _cached_share(operator) if fill is Fill.PROPAGATE else 0.0
    if kept == 0.0:
        return sometimes(operator, runs)
    if kept == 1.0:
        return operator
    writes = tuple(a if a.tensor.name in KEYS_AND_VALUES else scale_moved(a, runs) for a in operator.writes)
    return replace(sometimes(operator, runs + (1.0 - runs) * kept), writes=writes)


def _recomputed(operator: Operator, runs: Count) -> Operator:
    """An operator that runs with probability `runs`, then also for the tokens that have not run it."""
    waiting = 1.0 / np.maximum(runs, LEAST)

    def is_shared(access: Access) -> bool:
        return access.tensor.role is not Role.ACTIVATION

    reads = tuple(scale_moved(a, runs) if is_shared(a) else a for a in operator.reads)
    once = with_probability(operator, waiting)
    once_reads = tuple(a if is_shared(a) else b for a, b in zip(operator.reads, once.reads, strict=True))
    return replace(operator, reads=reads, one_run=replace(once, reads=once_reads), runs=1.0 / waiting)


def _cached_share(operator: Operator) -> float:
    """Share of an operator's output that goes to the cache; a copy with such an output has no other."""
    sizes = [float(np.max(access.elements)) for access in operator.writes]  # not the first point: it may not run there
    kept = sum(size for size, a in zip(sizes, operator.writes, strict=True) if a.tensor.name in KEYS_AND_VALUES)
    if kept == 0.0:
        return 0.0
    return 1.0 if operator.kind is Kind.COPY else kept / sum(sizes)

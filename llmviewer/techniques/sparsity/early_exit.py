"""`--early-exit` and `--skip-layers`: expected work of layers that tokens with a confident prediction, or all, skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Annotated

import numpy as np

from llmviewer.analysis.system import AppliedTechnique, PipelineExits, System
from llmviewer.core.counts import Count
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role
from llmviewer.core.kinds import Kind
from llmviewer.language.grammar import Choice, Flag, Form, Grammar, Number
from llmviewer.layers.encoder import after_encoder
from llmviewer.techniques.scaling import map_operators, scale_moved, sometimes, with_probability
from llmviewer.techniques.sparsity.exits import (
    DECAY,
    Confidence,
    Exits,
    StepTokens,
    depth,
    exit_checks,
    forced,
    has_cache,
    layer_indices,
    mean,
)
from llmviewer.techniques.technique import Change, Whole, add_pass, called, declared, technique, unchanged


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


@frozen
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


@frozen(eq=False)
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


WHERE = "--early-exit"
#: Names under which results list the technique, before its parameters, and the checks of confidence.
NAME, CHECKS = "early_exit", "exit_checks"
MEAN = Number("mean share", 0.0, 1.0)
DEPTH, PROBABILITY = Whole("layers run", 1, 10000), Number("share of the tokens", 0.0, 1.0)


def read_mean(text: str) -> Exits:
    """Parse `0.6`, or `0.9..0.4` for a share that falls over the answer."""
    start, dots, end = text.partition("..")
    first = MEAN.read("mean", start)
    return Exits(mean=first, end=MEAN.read("mean", end)) if dots else Exits(mean=first)


def read_exits(text: str) -> Exits:
    """Parse `8:0.3/16:0.4`: 30 % of the tokens exit after 8 layers, 40 % after 16."""
    at = []
    for pair in text.split("/"):
        layers, colon, probability = pair.partition(":")
        if not colon:
            raise UserError(f"{quoted(pair)} is not an exit; write layers:probability, as in exits=8:0.3/16:0.4")
        at.append((int(DEPTH.read("layer", layers)), PROBABILITY.read("probability", probability)))
    if len({layers for layers, _ in at}) < len(at) or sum(share for _, share in at) > 1.0 + 1e-9:
        raise UserError(f"exits {quoted(text)} must name different layers, with probabilities up to 1 in all")
    return Exits(at=tuple(sorted(at)))


def read_one_exit(text: str) -> Exits:
    """Parse `8:0.7`, a single exit."""
    if "/" in text:
        raise ValueError("allowed: one layer, as in two-exit=8:0.7")
    return read_exits(text)


Deciding = Annotated[
    Confidence,
    Choice(
        "what decides: classifier, softmax, similarity, policy (a network of two layers), position (no check; all "
        "sequences of a batch exit after the same layer)",
        Confidence,
    ),
]
Filling = Annotated[
    Fill,
    Choice(
        "method that fills the cache of skipped layers: propagate, recompute, none; pipeline: later pipeline "
        "stages run all layers while the next token is on its way",
        Fill,
    ),
]
MeanShare = Annotated[
    Exits | None,
    Form(
        help="mean share of the layers that a token runs; 0.9..0.4 falls from the start of the answer to its end",
        parse=read_mean,
    ),
]


def early_exit_plan(
    *,
    mean: MeanShare = None,
    tau: Annotated[
        float | None,
        Number("how fast that share falls, as exp(-tau t / N); 0: a straight line", 0.0, 100.0, unset=f"{DECAY:g}"),
    ] = None,
    exits: Annotated[
        Exits | None,
        Form(
            help="layers:probability/...: share of the tokens that exits after so many layers, 8:0.3/16:0.4",
            parse=read_exits,
        ),
    ] = None,
    two_exit: Annotated[
        Exits | None, Form(help="layers:probability of a single exit", parse=read_one_exit, name="two-exit")
    ] = None,
    confidence: Deciding = Confidence.CLASSIFIER,
    kv: Filling = Fill.PROPAGATE,
    deficient: Annotated[
        float | None,
        Whole("most steps in a row whose caches wait to be recomputed; then one runs all layers", 1, 1000),
    ] = None,
    jump: Annotated[bool, Flag("without a value: a linear map replaces the skipped layers")] = False,
) -> EarlyExit:
    """Tokens with a confident prediction exit before the last layer; a batch runs as deep as its deepest token.  Of an
    encoder, whole sequences exit.
    """
    given = [one for one in (mean, exits, two_exit) if one is not None]
    if not given:
        raise UserError("no exits are given; write mean=0.6, exits=8:0.3/16:0.4 or two-exit=8:0.7")
    if len(given) > 1:
        raise UserError("mean, exits and two-exit exclude each other")
    if tau is not None and given[0].end is None:
        raise UserError("tau needs a share that falls; write mean=0.9..0.4,tau=...")
    if deficient is not None and kv is not Fill.RECOMPUTE:
        raise UserError("deficient limits recomputation; add kv=recompute or remove it")
    return EarlyExit(
        exits=given[0] if tau is None else replace(given[0], tau=tau),
        confidence=confidence,
        fill=kv,
        jump=jump,
        deficient=None if deficient is None else int(deficient),
    )


PLAN = Grammar.of(early_exit_plan)


def parse(text: str) -> EarlyExit:
    """Parse `mean=0.9..0.4,tau=2,confidence=softmax,kv=recompute,deficient=8,jump`; raises UserError."""
    return called(early_exit_plan, WHERE, PLAN, text)


def _make(text: str) -> Change:
    plan = parse(text)
    name = f"{NAME}({text})"

    def change(system: System) -> System:
        if plan.exits.never:
            return system
        if plan.fill is Fill.PIPELINE and system.parallelism.pipeline == 1:
            raise UserError(f"{WHERE}: kv=pipeline needs pipeline stages; add --pipeline-parallel-size 2 or more")
        checks = AppliedTechnique(
            name=CHECKS, make=lambda _: exit_checks(plan.exits, plan.confidence, jump=plan.jump)
        )  # first, so that later passes quantize, fuse and shard the checks too
        changed = replace(system, passes=(checks, *system.passes)).listing(name)
        over_answer = partial(_exiting, plan=plan, name=name) if plan.exits.end is not None else None
        return replace(_exiting(changed, np.nan, plan=plan, name=name), over_answer=over_answer)

    return change


def plan_of(system: System) -> EarlyExit:
    """The plan of a system that lists early exit."""
    return parse(_listed(system).removeprefix(f"{NAME}(").removesuffix(")"))


def without_exits(system: System) -> System:
    """The system whose tokens all pass the layers that those of this one, which lists early exit, may skip."""
    left_out = (CHECKS, _listed(system))
    kept = tuple(applied for applied in system.passes if applied.name not in left_out)
    return replace(system, passes=kept, exits=None, over_answer=None)


def _listed(system: System) -> str:
    """The name under which a system lists early exit."""
    return next(applied.name for applied in system.passes if applied.name.startswith(f"{NAME}("))


def _exiting(system: System, place: Count, *, plan: EarlyExit, name: str) -> System:
    """The system whose passes exit as tokens at `place` of their answers do."""
    if system.parallelism.pipeline > 1:
        return replace(system, exits=in_pipeline(plan, place))
    passes = (
        replace(one, make=lambda _: early_exit(plan, place)) if one.name == name else one for one in system.passes
    )
    return replace(system, passes=tuple(passes))


EARLY_EXIT = declared(
    early_exit_plan,
    PLAN,
    _make,
    name=NAME,
    kind="sparsity",
    formula="work of layer l x (1 - (1 - Pr(depth >= l))^B); mean: Pr(depth > l) = r^l with mean r^l = share; checks: "
    "4 hidden (classifier), lm_head and 5 per logit (softmax), 6 hidden (similarity), 64 hidden (policy) FLOP per "
    "token; propagation keeps k_proj and v_proj; of an encoder-decoder the decoder's layers with cross attention; "
    "kv=pipeline: a token takes mean max(time to its exit, slowest stage)",
    source="CALM arXiv 2207.07061; FREE arXiv 2310.05424 (two exits, recomputation); linear jump arXiv 2303.09435; "
    "batches run to their deepest token arXiv 2407.20272; ConsistentEE arXiv 2312.11882; EE-LLM arXiv 2312.04916; "
    "SkipDecode arXiv 2307.02628; DeeBERT arXiv 2004.12993 (encoders)",
    example="llama-2-7b --hardware a6000 --early-exit mean=0.6",
)


def skip_layers(share: float) -> Pass:
    """Run 1 - `share` of the layers of every kind in every step; work, traffic and time fall in proportion.

    Prefill skips layers like decode.  The skipped layers may differ between steps, so weights and cache stay stored.
    Source: LLM inference unveiled, arXiv 2402.16363, section 4.1; LayerSkip's layer dropout,
    arXiv 2404.16710.
    """
    if share == 0.0:
        return lambda graph: graph
    kept = 1.0 - share
    return lambda graph: graph.map_blocks(
        lambda block: map_operators(block, lambda operator: sometimes(operator, kept)) if block.is_layer else block
    )


@technique(
    "skip_layers",
    kind="sparsity",
    formula="work and traffic of every layer x (1 - share); weights and cache stay stored",
    source="survey arXiv 2402.16363, section 4.1; LayerSkip arXiv 2404.16710",
    example="llama-2-7b --hardware a6000 --skip-layers 0.25",
)
def skip_layers_option(share: Annotated[float, Number("share of the layers that a step skips", 0.0, 0.99)]) -> Change:
    """Skips a share of the layers in every step, including prefill; their work falls in proportion."""
    return add_pass(f"skip_layers({share:g})", lambda _: skip_layers(share)) if share else unchanged

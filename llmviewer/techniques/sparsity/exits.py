"""Exits of tokens: the layers they may skip, the probability that a step runs each layer, the checks of confidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core.counts import Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block, Graph, Operator, Pass, Role, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.layers.encoder import after_encoder, decoder_depth
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.elementwise import activate, activation, elementwise
from llmviewer.ops.gemm import Linear

#: Default of `tau`, the value that CALM decays its thresholds with (arXiv 2207.07061, section 3.5).
DECAY = 4.0


#: FLOP per logit of a softmax: max, subtract, exponential, sum, divide, as for attention scores.
SOFTMAX_FLOPS = 5.0
#: FLOP per element of the cosine of two vectors: three inner products.
COSINE_FLOPS = 6.0
#: Classes of the classifier: done, not done.
CLASSES = 2
#: Width of a policy network between its two layers:
#: https://github.com/ZeroNLP/ConsistentEE/blob/main/ConsistentEE_LLM/llama/modeling_llama.py (class Policy).
POLICY_WIDTH = 32


def skippable(graph: Graph) -> list[Block]:
    """The blocks of layers that tokens may skip; the encoder of an encoder-decoder runs whole."""
    return [block for block in after_encoder(graph) if block.is_layer]


def depth(graph: Graph) -> int:
    """Number of layers that a token passes; a decoder layer with cross attention is one layer of two blocks."""
    return decoder_depth(graph) or sum(block.repeats for block in skippable(graph))


def layer_indices(graph: Graph) -> list[list[int]]:
    """For every block of `skippable`, the layers, from 0, that its repetitions belong to."""
    blocks = skippable(graph)
    blocks_of_a_layer = sum(block.repeats for block in blocks) // depth(graph)
    return [[number // blocks_of_a_layer for number in listed] for listed in layer_numbers(blocks)]


@frozen
class Exits:
    """Distribution of the number of layers that a token runs.

    mean: mean share of the layers, if a token exits after each layer with the same probability.  end: the mean share at
    the end of an answer, where `mean` is that at its start; None if it stays.  tau: how fast it falls, as
    exp(-tau t / N) at token t of N; 0 is a straight line.  at: (layers run, probability) of each exit, used instead of
    `mean` if not empty; the remaining tokens run all layers.
    """

    mean: float = 1.0
    end: float | None = None
    tau: float = DECAY
    at: tuple[tuple[int, float], ...] = ()

    @property
    def never(self) -> bool:
        """Whether every token runs all layers."""
        return self.mean == 1.0 and self.end in (None, 1.0) and not any(probability for _, probability in self.at)

    def share(self, place: Count = np.nan) -> Count:
        """Mean share of the layers of the token at `place`, t / N; where that is NaN, the mean over the answer."""
        if self.end is None:
            return self.mean
        tau, gone = self.tau, -np.expm1(-self.tau)
        left = (np.exp(-tau * place) - (1.0 - gone)) / gone if tau else 1.0 - place
        over_answer = 1.0 / tau - (1.0 - gone) / gone if tau else 0.5
        share = self.end + (self.mean - self.end) * np.where(np.isnan(place), over_answer, left)
        return share if isinstance(place, np.ndarray) else float(share)

    def reach(self, layers: int, place: Count = np.nan) -> tuple[Count, ...]:
        """Probability that a token at `place` of its answer runs each of `layers` layers."""
        if not self.at:
            stay = _stay_probability(self.share(place), layers)
            return tuple(stay**layer for layer in range(layers))
        self._check(layers)
        return tuple(1.0 - sum(p for depth, p in self.at if depth <= layer) for layer in range(layers))

    def fixed(self, layers: int, place: Count = np.nan) -> tuple[Count, ...]:
        """Share of each layer that runs if all tokens at `place` exit after as many layers as the mean share."""
        return tuple(np.clip(self.share(place) * layers - layer, 0.0, 1.0) for layer in range(layers))

    def checked(self, layers: int) -> tuple[int, ...]:
        """Indices of the layers after which the confidence is checked."""
        return tuple(depth - 1 for depth, _ in self.at) if self.at else tuple(range(layers - 1))

    def _check(self, layers: int) -> None:
        for depth, _ in self.at:
            if depth >= layers:
                raise UserError(f"--early-exit: an exit after layer {depth}; allowed: 1 to {layers - 1}")


def _stay_probability(mean: Count, layers: int) -> Count:
    """Probability r of running one layer more, from 1 + r + ... + r^(L-1) = mean L (truncated geometric depth)."""
    least = float(np.min(mean))
    if least * layers < 1.0:
        raise UserError(f"--early-exit: mean {least:g} of {layers} layers is less than one layer")
    low, high = 0.0 * mean, 0.0 * mean + 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        above = total(middle**n for n in range(layers)) > mean * layers
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high if isinstance(mean, np.ndarray) else float(high)


@frozen(eq=False)
class StepTokens:
    """Tokens of a step, and how many of them need logits (of an encoder: how many sequences it has).

    may_exit: 1.0 where all tokens of the step may exit early, else 0.0.
    """

    tokens: Count
    logits: Count
    may_exit: Count = 1.0

    @staticmethod
    def from_graph(graph: Graph) -> StepTokens:
        """The tokens of the step that a graph describes; of an encoder-decoder those of its decoder.

        Only tokens that need logits may exit early; if any token does not (a prompt, a chunk), every layer runs.  A
        graph without a cache is the one pass of an encoder, whose sequences exit as wholes, decided on one row each.
        """
        tokens = after_encoder(graph)[0].operators[0].output_shape[0]
        if not has_cache(graph):
            shape = next(op.shape for _, op in graph if isinstance(op.shape, AttentionShape))
            return StepTokens(tokens=tokens, logits=total(group.batch_size for group in shape.groups))
        head = (op for block, op in graph if block.name == "head")
        logits = next(op for op in head if "lm_head" in op.name.split("+")).output_shape[0]  # fusion joins names by +
        return StepTokens(tokens=tokens, logits=logits, may_exit=np.where(tokens > logits, 0.0, 1.0))

    def deepest(self, reach: Count) -> Count:
        """Probability that any token runs a layer that each one runs with `reach`: 1 - (1 - reach)^tokens."""
        return 1.0 - self.may_exit * np.power(1.0 - reach, self.logits)

    def together(self, reach: Count) -> Count:
        """Probability that the step runs a layer if all of its tokens exit after the same one."""
        return 1.0 - self.may_exit * (1.0 - reach)


def has_cache(graph: Graph) -> bool:
    """Whether later passes read keys, values or states of this one, so that skipped layers have to fill them."""
    return any(access.tensor.role is Role.CACHE for _, operator in graph for access in operator.writes)


def forced(runs: Sequence[Count], most: int) -> tuple[Count, ...]:
    """Probabilities that a step runs each layer if, after `most` steps that exited early, the next runs all layers.

    Without that, a share q of the steps runs all layers, so that of a run of steps up to a full one, n have exited with
    probability (1 - q)^n; at most `most` makes one in 1 + (1 - q) + ... + (1 - q)^most steps a full one (EE-LLM,
    arXiv 2312.04916, KV recomputation).
    """
    early = 1.0 - runs[-1]
    full = 1.0 / total(early**n for n in range(most + 1))
    return tuple(full + (1.0 - full) * (each - runs[-1]) / np.maximum(early, 1e-300) for each in runs)


def mean(values: Iterable[Count]) -> Count:
    """Mean of several counts, summed from the first to the last."""
    listed = tuple(values)
    return total(listed) / len(listed)


class Confidence(Enum):
    """Measure or network that decides whether a token exits (the first three: CALM, arXiv 2207.07061, section 3.5)."""

    SOFTMAX = "softmax"  # gap between the two most likely tokens: needs the whole head
    SIMILARITY = "similarity"  # cosine between input and output of a layer
    CLASSIFIER = "classifier"  # a linear layer to done / not done
    POLICY = "policy"  # a network of two layers that outputs the decision (ConsistentEE, arXiv 2312.11882)
    POSITION = "position"  # the token's place in the answer, without a check (SkipDecode, arXiv 2307.02628)


def exit_checks(exits: Exits, confidence: Confidence, *, jump: bool) -> Pass:
    """Add a block `exit_check`, repeated for every checked layer, and a block `exit_jump` if requested.

    Their cost is that of a run; `early_exit` scales it by the probability.  They follow the head because the softmax
    check reads its weights, which are stored once.  Classifiers, policy networks and jump matrices are stored per
    checked layer.
    """

    def change(graph: Graph) -> Graph:
        checked = exits.checked(depth(graph))
        step, head = StepTokens.from_graph(graph), graph.blocks[-1]
        hidden = _hidden(skippable(graph), step.tokens)
        rows = np.maximum(step.logits, 1.0)  # a step without logits runs no check: its probability is 0
        operators = {}
        if confidence is not Confidence.POSITION:
            operators["exit_check"] = _check(confidence, head, hidden, rows)
        if jump:
            operators["exit_jump"] = (_jump(hidden, rows),)
        added = (
            Block(name=name, operators=made, repeats=len(checked), scope="model") for name, made in operators.items()
        )
        return replace(graph, blocks=(*graph.blocks, *added))

    return change


def _hidden(layers: list[Block], tokens: Count) -> tuple[Tensor, float]:
    """The tensor of the residual stream, and its width."""
    reads = (access.tensor for block in layers for op in block.operators for access in op.reads)
    tensor = next(tensor for tensor in reads if tensor.name == "hidden")
    return tensor, float(np.ravel(tensor.elements / tokens)[0])


def _checked_rows(hidden: tuple[Tensor, float], rows: Count) -> Tensor:
    """The rows of the residual stream that are checked."""
    tensor, width = hidden
    return replace(tensor, elements=rows * width)


def _check(confidence: Confidence, head: Block, hidden: tuple[Tensor, float], rows: Count) -> tuple[Operator, ...]:
    x, (_, width) = _checked_rows(hidden, rows), hidden
    y = Tensor(name="exit_confidence", elements=rows * 1.0, dtype=x.dtype)
    if confidence is Confidence.SOFTMAX:
        logits = head.operators[-1].output
        scores = replace(logits, name="exit_confidence")
        softmax = elementwise("exit_confidence", (whole(logits),), scores, rows, flops=SOFTMAX_FLOPS, special=1.0)
        return (*head.operators, replace(softmax, kind=Kind.SOFTMAX))
    if confidence is Confidence.SIMILARITY:  # of the layer's input and output
        return (elementwise(y.name, (whole(x), whole(x)), y, rows, flops=COSINE_FLOPS * width),)
    if confidence is Confidence.POLICY:
        return _policy(x, width, rows)
    linear = Linear(name="exit_classifier", in_features=width, out_features=CLASSES, dtype=x.dtype)
    logit = linear.operator(x, rows)
    return (logit, elementwise(y.name, (whole(logit.output),), y, rows, flops=SOFTMAX_FLOPS * CLASSES))


def _policy(x: Tensor, width: float, rows: Count) -> tuple[Operator, ...]:
    """hidden -> 32, GELU, 32 -> 1, sigmoid; both layers have biases."""
    into = Linear(name="exit_policy_in", in_features=width, out_features=POLICY_WIDTH, dtype=x.dtype, bias=True)
    out = Linear(name="exit_policy_out", in_features=POLICY_WIDTH, out_features=1, dtype=x.dtype, bias=True)
    inner = into.operator(x, rows)
    active = activate("exit_policy_act", inner.output, rows, activation("gelu"))
    decision = out.operator(active.output, rows)
    return (inner, active, decision, activate("exit_confidence", decision.output, rows, activation("sigmoid")))


def _jump(hidden: tuple[Tensor, float], rows: Count) -> Operator:
    """A hidden x hidden matrix that approximates the skipped layers (arXiv 2303.09435)."""
    width = hidden[1]
    linear = Linear(name="exit_jump", in_features=width, out_features=width, dtype=hidden[0].dtype)
    return linear.operator(_checked_rows(hidden, rows), rows)

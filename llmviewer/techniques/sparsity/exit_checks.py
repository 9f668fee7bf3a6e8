"""Operators that early exit adds: confidence checks after layers, and a linear map that replaces skipped layers."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from llmviewer.core.counts import Count
from llmviewer.core.ir import Block, Graph, Operator, Pass, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.ops.elementwise import activate, activation, elementwise
from llmviewer.ops.gemm import Linear
from llmviewer.techniques.sparsity.exit_depth import Exits, StepTokens
from llmviewer.techniques.sparsity.exit_layers import depth, skippable

#: FLOP per logit of a softmax: max, subtract, exponential, sum, divide, as for attention scores.
SOFTMAX_FLOPS = 5.0
#: FLOP per element of the cosine of two vectors: three inner products.
COSINE_FLOPS = 6.0
#: Classes of the classifier: done, not done.
CLASSES = 2
#: Width of a policy network between its two layers:
#: https://github.com/ZeroNLP/ConsistentEE/blob/main/ConsistentEE_LLM/llama/modeling_llama.py (class Policy).
POLICY_WIDTH = 32


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

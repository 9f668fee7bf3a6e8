"""Kinds of kernels with their properties, and roles of operators in their layers."""

from __future__ import annotations

from enum import Enum

from llmviewer.core.frozen import frozen


@frozen
class KindFacts:
    """Properties of one kind; none has a default, so that a new kind must state all of them.

    matrix_units: its products run in the matrix units.
    by_channel: its work is divided by channels or heads, so one token occupies all units; otherwise by rows.
    whole_rows: it needs every column of its input, so split inputs are all-gathered before it.
    families: kernel families that price it (`timing/kernels/families.py`).
    fusion_rank: a fused kernel has the kind of its operator with the lowest rank.
    summary_group: the bar of a summary that includes it; "" if the operator's name decides.
    marker: the symbol of the interactive roofline.  Members are drawn in the order of declaration.
    flops: how its FLOP are counted, in words.
    recorded: kind of the kernel that runs it in recordings of profilers (`calibrate/diagnosis/kernels.yaml`).
    """

    matrix_units: bool
    by_channel: bool
    whole_rows: bool
    families: tuple[str, ...]
    fusion_rank: int
    summary_group: str
    marker: str
    flops: str
    recorded: str


#: Prefix of weights that several layers of a block share (the transformer block of Zamba).
TIED = "tied_"


class Kind(Enum):
    """The family of an operator's kernel.  The value is its name in results; `facts` has its properties."""

    facts: KindFacts

    def __new__(cls, name: str, facts: KindFacts) -> Kind:
        """A member whose value is its name."""
        member = object.__new__(cls)
        member._value_ = name
        member.facts = facts
        return member

    GEMM = "gemm", KindFacts(
        matrix_units=True, by_channel=False, whole_rows=False, families=("gemm",), fusion_rank=1,
        summary_group="", marker="circle", flops="2 · tokens · inputs · outputs (+ tokens · outputs for a bias)",
        recorded="matmul",
    )  # fmt: skip
    ATTENTION = "attention", KindFacts(
        matrix_units=True, by_channel=True, whole_rows=False, families=("attention_prefill", "attention_decode"),
        fusion_rank=0, summary_group="attention", marker="diamond",
        flops="2 · heads · pairs · (d_qk + d_v), pairs that the mask lets through; softmax 5 per score",
        recorded="attention",
    )  # fmt: skip
    NORM = "norm", KindFacts(
        matrix_units=False, by_channel=False, whole_rows=False, families=("streaming",), fusion_rank=4,
        summary_group="norms and sums", marker="triangle-up", flops="RMSNorm 7, LayerNorm 8 per element",
        recorded="norm",
    )  # fmt: skip
    ELEMENTWISE = "elementwise", KindFacts(
        matrix_units=False, by_channel=False, whole_rows=False, families=("streaming",), fusion_rank=6,
        summary_group="norms and sums", marker="square",
        flops="SiLU · up 5, GELU 8, a sum 1 per element; RoPE 6 per rotated pair; quantization 3 per element",
        recorded="elementwise",
    )  # fmt: skip
    SOFTMAX = "softmax", KindFacts(
        matrix_units=False, by_channel=False, whole_rows=False, families=("streaming",), fusion_rank=5,
        summary_group="attention", marker="pentagon", flops="5 per score, one of them an exponential", recorded="route",
    )  # fmt: skip
    COLLECTIVE = "collective", KindFacts(
        matrix_units=False, by_channel=False, whole_rows=False, families=("collective",), fusion_rank=-1,
        summary_group="collectives", marker="star", flops="sums of an all-reduce, 1 per element and device",
        recorded="collective",
    )  # fmt: skip
    RECURRENCE = "recurrence", KindFacts(
        matrix_units=False, by_channel=True, whole_rows=False, families=("streaming",), fusion_rank=2,
        summary_group="recurrence", marker="hexagram",
        flops="state space and lightning 4, gated delta rule 6 per state element and token", recorded="recurrence",
    )  # fmt: skip
    CONV = "conv", KindFacts(
        matrix_units=False, by_channel=True, whole_rows=False, families=("streaming",), fusion_rank=3,
        summary_group="recurrence", marker="triangle-down", flops="2 · kernel · channels per token", recorded="conv",
    )  # fmt: skip
    EMBEDDING = "embedding", KindFacts(
        matrix_units=False, by_channel=False, whole_rows=False, families=("streaming",), fusion_rank=7,
        summary_group="embedding", marker="cross", flops="none: rows of a table are gathered", recorded="embedding",
    )  # fmt: skip
    COPY = "copy", KindFacts(
        matrix_units=False, by_channel=False, whole_rows=False, families=("streaming",), fusion_rank=9,
        summary_group="copies", marker="x", flops="none: tensors move between host and device", recorded="copy",
    )  # fmt: skip


class OperatorRole(Enum):
    """The function of an operator in its layer.  Graph passes select operators by role; names are only for people.

    Roles that distinguish elementwise kernels are in the order of their precedence in a fused kernel.
    """

    ROPE = "rope"
    ACTIVATION = "activation"
    QUANTIZE = "quantize"
    RESIDUAL = "residual"
    QUERY = "query projection"
    QK_NORM = "norm of queries or keys"
    SCORES = "scores"
    SOFTMAX = "softmax of scores"
    WEIGHTED_VALUES = "weighted values"
    ATTENTION = "fused attention"
    ATTENTION_OUTPUT = "output projection of attention"
    INDEX_SCORES = "scores of an indexer"
    LATENT_EXPANSION = "expansion of the latent cache"
    FEED_FORWARD_INPUT = "first projections of a dense feed-forward part"
    FEED_FORWARD_OUTPUT = "last projection of a dense feed-forward part"
    ROUTER = "router"
    EXPERT_COMBINE = "weighted sum of experts"
    OTHER = "other"

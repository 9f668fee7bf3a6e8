"""Structured pruning of heads and feed-forward channels: narrower tensors between two linear layers.

The first linear layers (`starts`) have fewer outputs, the last ones (`ends`) fewer inputs, and every operator between
them that reads a narrow tensor does less work.  A cut therefore names only linear layers; their factors (`_low_a`,
`_lora_b` ...) are cut with them.  Models trained to be smaller: the nested slices of MatFormer, distilled students.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import floor

from llmviewer.core.counts import Count, total
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Operator, Pass, Role, as_built
from llmviewer.core.kinds import Kind
from llmviewer.language.grammar import Number
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape
from llmviewer.techniques.layer_settings import by_layer, layer_settings
from llmviewer.techniques.technique import Change, Technique, add_pass, refusing, unchanged

#: Name suffixes of a linear layer or of the factor of it that writes its outputs, or reads its inputs.
OUTPUT_FACTORS = ("", "_low_b", "_lora_b")
INPUT_FACTORS = ("", "_low_a", "_lora_a")


@frozen
class Cut:
    """Reduction from `old` to `new` channels (or heads) between the linear layers `starts` and `ends`.

    narrow: tensors that exist before the block runs and become narrow (caches).  kept: tensors that keep their size
    although their operators read narrow tensors.
    """

    starts: tuple[str, ...]
    ends: tuple[str, ...]
    old: float
    new: float
    narrow: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def scale(self, count: Count) -> Count:
        """The remaining part of a count; counts of whole channels stay whole numbers."""
        return count / self.old * self.new


def narrow_block(block: Block, cut: Cut) -> Block:
    """The block with fewer channels between the linear layers of `cut`.

    matmul FLOPs and weights of those layers scale with new/old; biases of the ends do not.  Weights of norms scale if
    they span all channels, and do not if all heads share one vector.
    """
    if cut.old == cut.new:
        return block
    walk = _BlockNarrowing(cut=cut, narrow=set(cut.narrow))
    operators = tuple(walk.operator(op) for op in block.operators)
    states = tuple(
        replace(s, per_token=float(cut.scale(s.per_token))) if s.name in cut.narrow else s for s in block.states
    )
    return replace(block, operators=operators, states=states)


@dataclass(slots=True, kw_only=True)
class _BlockNarrowing:
    """Traversal of the operators of one block.  narrow: names of the narrow tensors found so far."""

    cut: Cut
    narrow: set[str] = field(default_factory=set)
    starts: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self.starts = frozenset(name + ending for name in self.cut.starts for ending in OUTPUT_FACTORS)
        self.ends = frozenset(name + ending for name in self.cut.ends for ending in INPUT_FACTORS)

    def operator(self, operator: Operator) -> Operator:
        if operator.name in self.ends:
            return self._end(operator)
        if operator.name in self.starts or any(self._is_narrow(a) for a in operator.reads):
            return self._inner(operator)
        return operator

    def _is_narrow(self, access: Access) -> bool:
        return access.tensor.role is not Role.WEIGHT and access.tensor.name in self.narrow

    def _scaled(self, access: Access) -> Access:
        tensor = replace(access.tensor, elements=self.cut.scale(access.tensor.elements))
        return Access(tensor, self.cut.scale(access.elements))

    def _inner(self, operator: Operator) -> Operator:
        """The operator with narrow outputs and work in proportion; inputs are narrow if they already were."""
        cut, linear = self.cut, isinstance(operator.shape, GemmShape)
        self.narrow.update(a.tensor.name for a in operator.writes if a.tensor.name not in cut.kept)
        writes = tuple(self._scaled(a) if a.tensor.name not in cut.kept else a for a in operator.writes)
        reads = tuple(
            self._scaled(a) if self._is_narrow(a) or self._weight_scales(operator, a, linear) else a
            for a in operator.reads
        )
        whole = all(a.tensor.name not in cut.kept for a in operator.writes)
        before, after = (total(a.elements for a in accesses) for accesses in (operator.writes, writes))

        def scale(count: Count) -> Count:
            return cut.scale(count) if whole else count * (after / before)

        rows, width, *rest = operator.output_shape
        shape, output_shape = self._shape(operator.shape), (rows, scale(width), *rest)
        changed = replace(operator, reads=reads, writes=writes, shape=shape, output_shape=output_shape)
        return changed.map_work(scale)

    def _weight_scales(self, operator: Operator, access: Access, linear: bool) -> bool:  # noqa: FBT001
        if access.tensor.role is not Role.WEIGHT:
            return False
        return linear or operator.kind is not Kind.NORM or access.elements % operator.output_shape[1] == 0

    def _shape(self, shape: object) -> object:
        if isinstance(shape, GemmShape):
            return replace(shape, n=float(self.cut.scale(shape.n)))
        if isinstance(shape, AttentionShape):
            # a cached latent serves all heads: one KV head in the weight-absorbed form, as many as queries otherwise
            one = (shape.kv_heads == 1) & (shape.heads > 1)
            kv_heads = self.cut.scale(shape.kv_heads)
            return replace(shape, heads=float(self.cut.scale(shape.heads)), kv_heads=kv_heads * (1 - one) + 1.0 * one)
        return shape

    def _end(self, operator: Operator) -> Operator:
        """The operator with fewer inputs and as many outputs."""
        shape = operator.shape
        assert isinstance(shape, GemmShape)
        bias = any(a.tensor.name.endswith(".bias") for a in operator.reads)
        added = shape.m * (1.0 * shape.n) if bias else 0.0
        reads = tuple(
            a if a.tensor.name.endswith(".bias") or not (a.tensor.role is Role.WEIGHT or self._is_narrow(a))
            else self._scaled(a)
            for a in operator.reads
        )  # fmt: skip
        changed = replace(operator, reads=reads, shape=replace(shape, k=float(self.cut.scale(shape.k))))
        return replace(
            changed,
            matmul_flops=self.cut.scale(operator.matmul_flops),
            vector_flops=self.cut.scale(operator.vector_flops - added) + added,
        )


def nearest_size(old: float, share: float) -> float:
    """The whole number nearest to old x share, halves upward, at least 1."""
    return max(1.0, floor(old * share + 0.5))


def narrower_feed_forward(share: float) -> Pass:
    """Keep `share` of the intermediate channels of every feed-forward part, routed and shared experts included.

    The number of channels is rounded to a whole number.
    """

    def change(block: Block) -> Block:
        for prefix in ("", "shared_", "expert_"):
            for operator in block.operators:
                if operator.name == f"{prefix}down_proj":
                    shape = operator.shape
                    assert isinstance(shape, GemmShape)
                    starts = tuple(f"{prefix}{name}" for name in ("gate_proj", "up_proj", "gate_up_proj"))
                    cut = Cut(starts=starts, ends=(operator.name,), old=shape.k, new=nearest_size(shape.k, share))
                    block = narrow_block(block, cut)
        return block

    return lambda graph: graph.map_blocks(change)


def fewer_heads(share: float) -> Pass:
    """Keep `share` of the heads of softmax attention.

    A KV head and its query heads are kept or removed together, so KV heads are rounded to a whole number; in latent
    attention, whose heads share one latent, query heads are.  Raises UserError for a single KV head.
    """
    return lambda graph: graph.map_blocks(lambda block: _keep_heads(block, share))


def _keep_heads(block: Block, share: float) -> Block:
    shape = next((op.shape for op in block.operators if isinstance(op.shape, AttentionShape)), None)
    if shape is None or not block.is_layer:
        return block
    if any(a.tensor.name == "latent_cache" for op in block.operators for a in op.reads):
        old, caches = shape.heads, tuple[str, ...]()
    else:
        old, caches = float(shape.kv_heads), ("k_cache", "v_cache")
        if old == 1.0 and shape.heads > 1 and share != 1.0:
            raise UserError("--prune heads: one KV head serves all query heads; no group of heads can be removed")
    cut = Cut(
        starts=("q_proj", "k_proj", "v_proj", "qkv_proj", "q_b_proj", "kv_b_proj"),
        ends=("o_proj",),
        old=old,
        new=nearest_size(old, share),
        narrow=caches,
        kept=("latent_cache",),
    )
    return narrow_block(block, cut)


SHARE = Number("share of the feed-forward channels", 0.01, 1.0)


def _matformer(text: str) -> Change:
    """Store and run only the first `share` of the feed-forward channels, rounded to a whole number.

    Mix'n'Match gives ranges of layers shares of their own.

    Valid for models trained this way; for other models use `--prune width`.  Source: MatFormer, arXiv 2310.07707.
    """
    settings = layer_settings("--matformer", text)
    with refusing("--matformer"):
        shares = [SHARE.read("share", one.text.removeprefix("share=")) for one in settings]
    if all(share == 1.0 for share in shares):
        return unchanged
    passes = [as_built if share == 1.0 else narrower_feed_forward(share) for share in shares]
    change = by_layer("--matformer", settings, passes)
    return add_pass(f"matformer({text if len(shares) > 1 else f'{shares[0]:g}'})", lambda _: change)


def _distillation(_: str) -> Change:
    raise UserError("distillation has no option: compare teacher and student, `llmviewer compare TEACHER,STUDENT`")


MATFORMER = Technique(
    name="matformer",
    kind="compression",
    summary="Runs only the first channels of every feed-forward part, which MatFormer trains as a model of their own.",
    parameters={
        "SHARE": SHARE.help,
        "SHARE@LAYERS": "after a +: another share for these layers, counted from 0 (Mix'n'Match): 0.5+1@0-7",
    },
    formula="feed-forward FLOPs and weights x share of the intermediate channels, in whole numbers",
    source="MatFormer arXiv 2310.07707",
    example="llmviewer analyze llama-2-7b --hardware a6000 --matformer 0.5",
    make=_matformer,
)
DISTILLATION = Technique(
    name="distillation",
    kind="compression",
    summary="Trains a smaller model on the answers of a larger one; the saving is the difference between the two.",
    formula="the student's graph in the place of the teacher's: every count is that of its own config.json",
    source="arXiv 1503.02531; of language models MiniLLM arXiv 2306.08543",
    example="llmviewer compare llama-2-70b,llama-2-7b --hardware h100 --no-fit-check",
    make=_distillation,
)

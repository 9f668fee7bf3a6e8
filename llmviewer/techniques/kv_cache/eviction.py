"""`--kv-evict`: tokens that leave the KV cache, by a share of the context or a largest number of tokens per layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.analysis.system import System
from llmviewer.core.counts import Count, present
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role, as_built
from llmviewer.core.kinds import OperatorRole
from llmviewer.language.grammar import Grammar, Number
from llmviewer.ops.attention import SCORE_TENSORS, AttentionShape
from llmviewer.techniques.layer_settings import LayerSetting, by_layer, layer_settings
from llmviewer.techniques.technique import Change, Technique, Whole, add_pass, called, change_kv_cache, unchanged

WHERE = "--kv-evict"
#: Last tokens of the prompt that PyramidKV keeps in every layer beside those that it selects.
RECENT = 8.0
#: Tensors that eviction shortens, and the operators that read or write them.
CACHES = ("k_cache", "v_cache")
ATTENTION = (OperatorRole.SCORES, OperatorRole.SOFTMAX, OperatorRole.WEIGHTED_VALUES)


def at_most(limit: float) -> Pass:
    """Keep at most `limit` tokens of a sequence after a forward pass, in every layer with a cache of keys and values.

    As with a share, a pass attends to all its new tokens and to the min(cached, limit) ones that are left; a windowed
    layer keeps at most its window.  Generated tokens are evicted like those of the prompt (H2O, StreamingLLM); methods
    that only shorten the prompt (SnapKV, PyramidKV) store the generated tokens besides.  Raises UserError for layers
    whose keys are latents, chosen by an indexer, cut into chunks or those of another layer or input.
    """
    return lambda graph: graph.map_blocks(lambda block: _shortened(block, limit) if attends(block) else block)


def attends(block: Block) -> bool:
    """Whether layers of a block have softmax attention."""
    return any(operator.role is OperatorRole.SCORES for operator in block.operators)


def _shortened(block: Block, limit: float) -> Block:
    shape = next(operator.shape for operator in block.operators if operator.role is OperatorRole.SCORES)
    assert isinstance(shape, AttentionShape)
    _check(block, shape)
    groups = tuple(replace(group, cached_tokens=np.minimum(group.cached_tokens, limit)) for group in shape.groups)
    shorter = _Shorter(before=shape, after=replace(shape, groups=groups))
    operators = (shorter.operator(one) if one.role in ATTENTION else one for one in block.operators)
    states = (
        replace(state, window=min(state.window, limit)) if state.name in CACHES else state for state in block.states
    )
    return replace(block, operators=tuple(operators), states=tuple(states))


def _check(block: Block, shape: AttentionShape) -> None:
    """Raise UserError for layers whose cached keys are no tokens of their own sequence and layer."""
    own = {state.name for state in block.states if not state.of_input}
    others = (op for op in block.operators if op.role not in ATTENTION)
    read = {access.tensor.name for op in others for access in op.reads if access.tensor.role is Role.CACHE}
    selected = shape.chunk or shape.compress or shape.selected < np.inf
    if not own.issuperset(CACHES) or read.intersection(CACHES) or selected or not shape.causal:
        raise UserError(
            f"{WHERE}: a number of tokens needs layers that store keys and values and attend to all of them or a "
            f"window, not '{block.name}'; allowed: a share, as in {WHERE} 0.2"
        )


@frozen(eq=False)
class _Shorter:
    """Eager attention over fewer cached tokens: shape before and after."""

    before: AttentionShape
    after: AttentionShape

    def operator(self, operator: Operator) -> Operator:
        """The kernel over fewer keys: scores, work and reads of the cache in proportion."""
        pairs, attended = self.after.full_pairs(), self.after.attended_pairs()
        changed = replace(
            operator.map_work(self._scores),
            shape=self.after,
            reads=tuple(map(self._access, operator.reads)),
            writes=tuple(map(self._access, operator.writes)),
        )
        if operator.role is not OperatorRole.WEIGHTED_VALUES:
            queries, heads, keys = operator.output_shape
            changed = replace(changed, output_shape=(queries, heads, self._scores(keys)))
        if not present(operator.masked_flops):
            return changed
        return replace(changed, masked_flops=changed.matmul_flops / np.maximum(pairs, 1.0) * (pairs - attended))

    def _scores(self, count: Count) -> Count:
        return count / np.maximum(self.before.full_pairs(), 1.0) * self.after.full_pairs()

    def _access(self, access: Access) -> Access:
        tensor = access.tensor
        if tensor.role is Role.CACHE:
            elements = access.elements / np.maximum(self.before.keys(), 1.0) * self.after.keys()
        elif tensor.name in SCORE_TENSORS:
            elements = self._scores(access.elements)
        else:
            return access
        return Access(replace(tensor, elements=elements), elements)


def _make(text: str) -> Change:
    if text.startswith("pyramid"):
        return called(_pyramid, WHERE, PYRAMID, text.replace(":", ",beta="))
    settings = layer_settings(WHERE, text)
    if len(settings) == 1 and not text.startswith("tokens"):
        return called(_share, WHERE, SHARE, text)
    limits = [called(_limit, WHERE, LIMIT, one.text) for one in settings]
    name = f"{limits[0]:,.0f} tokens" if len(limits) == 1 else text
    passes = [as_built if limit == np.inf else at_most(limit) for limit in limits]
    return _limited(f"evict(keep {name})", by_layer(WHERE, settings, passes))


def _share(kept: Annotated[float, Number("share of the cached tokens that stays", 1e-6, 1.0)]) -> Change:
    """Keep max(floor(kept C), 1) of C tokens in every layer after a forward pass; the next pass attends to those and to
    its own new tokens.

    A whole prompt is therefore attended in full; a decode step or a later chunk of a prompt attends to the kept tokens.
    A windowed layer keeps as many, at most its window; a chunked layer (Llama 4) keeps that share of the current
    chunk.  Not counted: the selection of tokens, and the one layer that stores its whole prompt during eviction.
    """
    return unchanged if kept == 1.0 else _unshared(change_kv_cache(f"evict(keep {kept:g})", kept=kept))


def _limit(
    kept: Annotated[float, Number("1: all tokens stay in a layer", 1e-6, 1.0)] = 1.0,
    *,
    tokens: Annotated[
        float | None, Whole("most tokens that stay in a layer: tokens=2048 (H2O, StreamingLLM, SnapKV)", 1)
    ] = None,
) -> float:
    """Most tokens that a setting by layers keeps; all of them for a share of 1."""
    if kept < 1.0:
        raise UserError(f"'{kept:g}' is a share, for all layers alike; by layers: tokens=2048, or 1 for all")
    return np.inf if tokens is None else tokens


def _limited(name: str, evict: Pass) -> Change:
    """The change by a pass after which layers keep at most a number of tokens."""
    listed = add_pass(name, lambda _: evict)
    return _unshared(lambda system: listed(replace(system, kv_cache=replace(system.kv_cache, limited=True))))


def _unshared(evicting: Change) -> Change:
    """The change, refused where sequences share a prefix."""

    def change(system: System) -> System:
        if system.kv_cache.shared:
            raise UserError(
                f"{WHERE}: sequences evict different tokens and cannot share a prefix (--prefix-cache shared)"
            )
        return evicting(system)

    return change


def _pyramid(
    *,
    pyramid: Annotated[
        float, Whole("mean of numbers that fall by the same step from layer to layer: pyramid=2048 (PyramidKV)", 9)
    ],
    beta: Annotated[float, Whole("after a colon: the last layer keeps about 1 / beta of the mean", 1, 1e4)] = 20.0,
) -> Change:
    """Keep fewer tokens in every layer than in the one before, `pyramid` on average (PyramidKV)."""

    def changed(graph: Graph) -> Graph:
        layers = [block for block in graph.blocks if block.is_layer]
        numbered = zip(layers, layer_numbers(layers), strict=True)
        numbers = sorted(number for block, own in numbered if attends(block) for number in own)
        limits = pyramid_limits(pyramid, beta, len(numbers))
        settings = [
            LayerSetting(text=f"{limit:g}", layers=frozenset({n}), ranges=str(n))
            for n, limit in zip(numbers, limits, strict=True)
        ]
        others = LayerSetting(text="1")
        return by_layer(WHERE, [others, *settings], [as_built, *map(at_most, limits)])(graph)

    return _limited(f"evict(keep a pyramid of {pyramid:,.0f} tokens, beta {beta:g})", changed)


def pyramid_limits(mean: float, beta: float, layers: int) -> list[float]:
    """Tokens that each layer keeps: an arithmetic sequence, in whole steps, and the 8 latest ones in every layer.

    Of the others, s = mean - 8 on average, the last layer keeps floor(s / beta) and the first one 2 s minus those.
    Source: PyramidKV arXiv 2406.02069; the rounding is that of https://github.com/Zefan-Cai/PyramidKV,
    pyramidkv/pyramidkv_utils.py.
    """
    if layers == 1:
        return [mean]
    others = mean - RECENT
    least = others // beta
    most = 2.0 * others - least
    step = (most - least) // (layers - 1.0)
    return [RECENT + most - layer * step for layer in range(layers)]


SHARE, LIMIT, PYRAMID = Grammar.of(_share), Grammar.of(_limit), Grammar.of(_pyramid)
TECHNIQUE = Technique(
    name="kv_evict",
    kind="kv cache",
    summary="Stores, and attends to, only some of the tokens seen so far (token eviction), by layer if asked.",
    parameters={
        **SHARE.help(),
        "tokens": LIMIT.help()["tokens"],
        "tokens=N@LAYERS": "after a +: another number for these layers, counted from 0: tokens=1024+tokens=4096@0-7",
        **PYRAMID.help(),
    },
    formula="max(floor(share C), 1) or min(C, tokens) of C cached tokens, attended and resident; new tokens of a pass "
    "all; pyramid: 8 tokens, and of s = mean - 8 others 2 s - floor(s / beta) in the first layer down to "
    "floor(s / beta) in the last one; the selection is not counted",
    source="H2O arXiv 2306.14048; StreamingLLM arXiv 2309.17453; SnapKV arXiv 2404.14469; PyramidKV arXiv 2406.02069",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 4096 --batch-size 8 --kv-evict 0.2",
    make=_make,
)

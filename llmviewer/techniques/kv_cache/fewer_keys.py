"""Attention over the keys that are left when every layer keeps at most a number of tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from llmviewer.core.counts import Count, present
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Access, Block, Operator, Pass, Role
from llmviewer.core.kinds import OperatorRole
from llmviewer.ops.attention import AttentionShape

WHERE = "--kv-evict"
#: Tensors that eviction shortens, and the operators that read or write them.
CACHES = ("k_cache", "v_cache")
SCORE_TENSORS = ("qk_matmul", "softmax")
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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

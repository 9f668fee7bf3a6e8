"""Linear recurrences: every token updates a state of fixed size and reads its output from the state.

State form: the state is read from memory once, updated token by token, and written once.  A multiply-add of update or
read-out is 2 FLOP.  Chunked kernels, another form of the same result, do more work in the matrix units to save passes.
A verification pass writes the state after each of its tokens, so that decoding can continue from the last accepted
token, as in vLLM (https://github.com/vllm-project/vllm/pull/49887 proposes to replay inputs, as other engines do).
"""

from __future__ import annotations

from enum import Enum

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step


class StateUpdate(Enum):
    """Update rules, with their FLOP per token and element of the state."""

    DECAY = 4.0  # state = decay state + outer product; output = state query (Mamba, lightning attention)
    DELTA = 6.0  # also a read-out by the key, to correct the value (gated delta rule, arXiv 2412.06464)


@frozen(eq=False)
class Recurrence:
    """A recurrence with `elements` of state per sequence and an output of `width` elements per token.

    vector, special: further vector FLOP and exponentials per token (time steps, decays, norms of keys, skips).
    weights: parameters that it reads, as (name in the checkpoint, number of elements).
    """

    elements: int
    width: int
    rule: StateUpdate
    dtype: Dtype
    vector: float
    special: float
    weights: tuple[tuple[str, int], ...] = ()

    def state(self) -> State:
        """The state of one layer."""
        return State(name="recurrent_state", dtype=self.dtype, per_sequence=float(self.elements))

    def operator(self, step: Step, reads: tuple[Access, ...]) -> Operator:
        """The recurrence over all tokens of the step; reads the state once per sequence and writes `Group.states`."""
        tokens = step.tokens
        state = self._tensor("recurrent_state", step.sequences * (1.0 * self.elements), Role.CACHE)
        written = total(group.states for group in step.groups) * (1.0 * self.elements)
        after = self._tensor("recurrent_state", written, Role.CACHE)
        weights = (whole(self._tensor(name, float(size), Role.WEIGHT)) for name, size in self.weights)
        y = Tensor(name="recurrence", elements=tokens * (1.0 * self.width), dtype=reads[0].tensor.dtype)
        return Operator(
            name="recurrence",
            kind=Kind.RECURRENCE,
            reads=(*reads, *weights, whole(state)),
            writes=(whole(y), whole(after)),
            output_shape=(tokens, self.width),
            recurrence_flops=tokens * (self.rule.value * self.elements),
            vector_flops=tokens * self.vector,
            special_ops=tokens * self.special,
            shape=self,
        )

    def _tensor(self, name: str, elements: Count, role: Role) -> Tensor:
        return Tensor(name=name, elements=elements, dtype=self.dtype, role=role)

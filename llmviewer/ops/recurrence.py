"""Linear recurrences: every token updates a state of fixed size and reads its output from it.

State form: the state once from memory, token after token, once back.  2 FLOP per multiply-add of update and read-out.
Chunked kernels do more products in the matrix units to save passes; they are another form of the same result.
A verification writes the state after every one of its tokens, to go on from that of the last accepted one, as vLLM does
(https://github.com/vllm-project/vllm/pull/49887, which proposes to replay inputs instead; so do others).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmviewer.core.counts import Count, total
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import Access, Operator, Role, State, Tensor, whole
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step


class StateUpdate(Enum):
    """FLOP per element of the state and token."""

    DECAY = 4.0  # state = decay state + outer product; output = state query (Mamba, lightning attention)
    DELTA = 6.0  # first a read-out by the key, whose value is corrected (gated delta rule, arXiv 2412.06464)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recurrence:
    """A state of `elements` per sequence, of which each token reads out `width` elements.

    vector, special: further vector FLOP and exponentials per token (time steps, decays, norms of keys, skips).
    weights: the parameters it reads, by their names in the checkpoint, and how many elements they have.
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
        """All tokens of the step; the state is read once per sequence, and written wherever one may go back to."""
        tokens = step.tokens
        state = self._tensor("recurrent_state", step.sequences * (1.0 * self.elements), Role.CACHE)
        left = total(group.states for group in step.groups) * (1.0 * self.elements)
        after = self._tensor("recurrent_state", left, Role.CACHE)
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

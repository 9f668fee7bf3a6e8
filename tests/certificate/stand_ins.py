"""Forward passes for modules whose code cannot run on the meta device because it depends on routing data.

Products are the same for every routing: each token uses k experts of one shape. So expert 0 is always chosen.
"""

from __future__ import annotations

from typing import Any


def dbrx_experts(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """DBRX's experts without the search for the tokens of each expert."""
    tokens = hidden_states.reshape(-1, self.hidden_size)
    chosen = tokens.repeat_interleave(top_k_index.shape[-1], dim=0)
    shape = (-1, self.ffn_hidden_size, self.hidden_size)
    w1, v1, w2 = (weight.view(shape)[0] for weight in (self.mlp.w1, self.mlp.v1, self.mlp.w2))
    states = self.mlp(chosen, w1, v1, w2) * top_k_weights.reshape(-1, 1)
    return states.view(*top_k_index.shape, -1).sum(dim=1).view(hidden_states.shape)


def dense_mlp(self: Any, hidden_states: Any) -> Any:
    """Gemma 3n's MLP without the cutoff of its sparse activation, which asks for data; its products stay dense."""
    return self.down_proj(self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))


def longcat_experts(self: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    """LongCat-Flash's experts for the expected number of rows: identities have no product and take their share."""
    rows = top_k_index.numel() * self.num_routed_experts // self.total_experts
    chosen = hidden_states.repeat_interleave(top_k_index.shape[-1], dim=0)[:rows]
    gate, up = (chosen @ self.gate_up_proj[0].T).chunk(2, dim=-1)
    return hidden_states + ((self.act_fn(gate) * up) @ self.down_proj[0].T).sum(dim=0)


def jetmoe_gating(self: Any, hidden_states: Any) -> tuple[Any, ...]:
    """JetMoE's router without the sort of tokens by expert: the first expert gets all rows."""
    logits = self.layer(hidden_states).float()
    rows = logits.shape[0] * self.top_k
    order = logits.new_zeros(rows, dtype=int)
    gates = logits.new_ones(rows, dtype=hidden_states.dtype)
    return order, order, gates, [rows] + [0] * (self.num_experts - 1), logits

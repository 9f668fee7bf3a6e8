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

"""A Llama- or Mixtral-type decoder in plain torch with random weights, which runs the kernels of a checkpoint.

q, k, v, gate and up are separate GEMMs; attention is scaled_dot_product_attention over a cache; norms, RoPE and
activation are eager kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from llmviewer.calibrate.buffers import Shape
from llmviewer.calibrate.kernels import moe
from llmviewer.core.frozen import frozen

Tensors = tuple[torch.Tensor, ...]


@frozen
class LlamaConfig:
    """Sizes from a config.json of model_type llama or mixtral; `intermediate` is that of an expert if there are any."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocabulary: int
    experts: int = 0
    chosen: int = 0

    @staticmethod
    def from_json(config: Mapping[str, Any]) -> LlamaConfig:
        """Sizes from the fields of a config.json."""
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        return LlamaConfig(
            hidden=hidden,
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config["num_key_value_heads"],
            head_dim=config.get("head_dim") or hidden // heads,
            layers=config["num_hidden_layers"],
            vocabulary=config["vocab_size"],
            experts=config.get("num_local_experts", 0),
            chosen=config.get("num_experts_per_tok", 0),
        )

    def layer_shapes(self) -> tuple[Shape, ...]:
        """Weight shapes of a layer: q, k, v, o; gate, up, down, or the router, gate and up of all experts, and down;
        the two norms."""
        q, kv, wide = self.heads * self.head_dim, self.kv_heads * self.head_dim, self.intermediate
        dense: tuple[Shape, ...] = ((wide, self.hidden), (wide, self.hidden), (self.hidden, wide))
        routed: tuple[Shape, ...] = (
            (self.experts, self.hidden),
            (self.experts, 2 * wide, self.hidden),
            (self.experts, self.hidden, wide),
        )
        return (
            (q, self.hidden),
            (kv, self.hidden),
            (kv, self.hidden),
            (self.hidden, q),
            *(routed if self.experts else dense),
            (self.hidden,),
            (self.hidden,),
        )

    def cache_shapes(self, batch: int, length: int) -> tuple[Shape, Shape]:
        """Shapes of the key and value cache of one layer."""
        shape = (batch, self.kv_heads, length, self.head_dim)
        return shape, shape


@frozen(kw_only=False)
class ForwardPass:
    """One forward pass: `new` tokens of each of `batch` sequences after `cached` tokens."""

    batch: int
    new: int
    cached: int

    @staticmethod
    def from_columns(columns: Mapping[str, Any]) -> ForwardPass:
        """Prefill of `seq` tokens, or a decode step with `context` cached tokens, including the new one."""
        if columns["stage"] == "prefill":
            return ForwardPass(columns["batch"], columns["seq"], 0)
        return ForwardPass(columns["batch"], 1, columns["context"] - 1)

    @property
    def length(self) -> int:
        """Tokens in the cache afterwards."""
        return self.cached + self.new


def rope_tables(
    sizes: LlamaConfig, step: ForwardPass, dtype: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines for RoPE at the new positions, [new, head_dim]."""
    steps = torch.arange(0, sizes.head_dim, 2, device=device) / sizes.head_dim
    angles = torch.arange(step.cached, step.length, device=device)[:, None] / (1e4**steps)
    angles = torch.cat((angles, angles), -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def layer(x: torch.Tensor, tensors: Tensors, sizes: LlamaConfig, step: ForwardPass, rope: Tensors) -> torch.Tensor:
    """Run one decoder layer.  tensors: those of layer_shapes, then cached keys and values.  rope: from rope_tables."""
    q, k, v, o, *feed_forward, attn_norm, mlp_norm, keys, values = tensors
    y = F.rms_norm(x, (sizes.hidden,), attn_norm, 1e-5)
    queries = apply_rope(split(F.linear(y, q), sizes.head_dim), *rope)
    keys[:, :, step.cached :] = apply_rope(split(F.linear(y, k), sizes.head_dim), *rope)
    values[:, :, step.cached :] = split(F.linear(y, v), sizes.head_dim)
    grouped = sizes.heads != sizes.kv_heads
    attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=step.cached == 0, enable_gqa=grouped)
    x = x + F.linear(attended.transpose(1, 2).flatten(2), o)
    y = F.rms_norm(x, (sizes.hidden,), mlp_norm, 1e-5)
    if sizes.experts:
        return x + routed(y, tuple(feed_forward), sizes)
    gate, up, down = feed_forward
    return x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)


def routed(y: torch.Tensor, tensors: Tensors, sizes: LlamaConfig) -> torch.Tensor:
    """Sum of the chosen experts of every token, by the router's softmax.  tensors: router, gate and up, down."""
    router, into, out = tensors
    rows = y.reshape(-1, sizes.hidden)
    scores, experts = torch.softmax(F.linear(rows, router), -1).topk(sizes.chosen, -1)
    chosen = moe.Choice(experts=experts, scores=(scores / scores.sum(-1, keepdim=True))[:, None], rows=experts.numel())
    numbers = torch.arange(max(sizes.experts, experts.numel()), device=y.device)
    return moe.layer(rows, chosen, (into, out), numbers).view_as(y)


def split(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Split heads: [batch, new, heads x head_dim] -> [batch, heads, new, head_dim]."""
    return x.view(*x.shape[:-1], -1, head_dim).transpose(1, 2)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply RoPE to the two halves of each head, in five eager kernels."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin

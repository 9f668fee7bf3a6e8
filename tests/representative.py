"""Eighteen models, one for each kind of architecture.

Cross products of technique and model run over these; parameters, the certificate and configs are tested for all models.
"""

from __future__ import annotations

REPRESENTATIVE = (
    "llama-2-7b",  # multi-head attention
    "llama-3.1-70b",  # grouped-query attention
    "falcon-7b",  # one KV head, attention and feed-forward part in parallel
    "bloom-7b1",  # ALiBi, biases, tied table
    "opt-350m",  # projections around the layers, norms after the residual sums
    "gemma-3-4b",  # windows, norms of queries and keys, norms after each part
    "gemma-4-e2b",  # shared caches, inputs per layer
    "gpt-oss-20b",  # sinks, experts with biases
    "mixtral-8x7b",  # experts
    "qwen1.5-moe-a2.7b",  # shared expert with a gate
    "deepseek-v2-lite",  # latent attention, experts, dense first layers
    "deepseek-v3",  # latent queries, fp8 checkpoint
    "llama-4-scout",  # chunked attention
    "qwen3-next-80b-a3b",  # gated delta net, gated attention
    "jamba-1.5-mini",  # Mamba and attention, experts in every other layer
    "mamba-2.8b",  # recurrence only
    "minimax-text-01",  # lightning attention
    "nemotron-3-nano",  # Mamba-2, experts in a latent width
)

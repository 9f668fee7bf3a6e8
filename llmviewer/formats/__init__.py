"""Changing the number formats of linear layers and caches in a graph.

Used by the `quantize` pass (a user's scheme) and for quantized checkpoints (a model's own formats).
"""

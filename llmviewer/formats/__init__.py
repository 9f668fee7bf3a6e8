"""Storing and multiplying in other number formats: what becomes of a graph when linear layers or caches change theirs.

One mechanism for two callers: the `quantize` pass (a user's scheme) and quantized checkpoints (a model's own formats).
"""

"""Techniques that change the allocation or the contents of the KV cache."""

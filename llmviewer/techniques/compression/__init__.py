"""Techniques that change the shapes of a model: pruning, low-rank factors, adapters, nested slices."""

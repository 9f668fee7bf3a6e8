"""Smaller models: pruning, low-rank factors, adapters, nested feed-forward slices."""

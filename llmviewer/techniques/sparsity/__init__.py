"""Weights and layers that a token does not use."""

"""Techniques that skip weights, experts, neurons or layers that a token does not need."""

"""Decisions over predictions: sizing, prices, energy, manifests, contracts, campaigns."""

"""Explanations of numbers: trees from a metric down to figures, fields of a config and constants with their sources."""

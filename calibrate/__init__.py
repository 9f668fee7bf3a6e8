"""Measure real kernels, fit efficiencies to them, and validate predictions against measurements."""

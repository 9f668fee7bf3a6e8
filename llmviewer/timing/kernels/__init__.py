"""Kernel families, one per file: each is a formula with fitted constants for the rates that its kernels reach."""

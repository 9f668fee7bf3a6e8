"""Measuring real kernels and fitting what a chip reaches.  Empty until the first kernel is measured."""

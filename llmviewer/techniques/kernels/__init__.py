"""Attention kernels and fusion of operators."""

"""Tests that need a CUDA device; skipped elsewhere."""

"""What only a CUDA device can show; skipped elsewhere."""

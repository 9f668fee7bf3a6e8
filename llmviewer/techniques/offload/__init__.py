"""Tensors on the host or its disk, and work on the host's CPU."""

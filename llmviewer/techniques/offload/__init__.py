"""Offloading of tensors to the host or its disk, and of work to the host's CPU."""

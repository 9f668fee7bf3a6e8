"""Pages, reservation, prefix sharing, eviction and budget of the KV cache."""

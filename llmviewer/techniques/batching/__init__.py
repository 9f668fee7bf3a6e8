"""How sequences share a replica: static, continuous, chunked and disaggregated batching."""

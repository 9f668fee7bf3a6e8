"""Forward passes of a request: prefill, decode steps, branches, the KV cache and batching policies."""

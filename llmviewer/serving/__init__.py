"""Forward passes that answer a request: prompts, decode steps, branches, the KV cache and batching policies."""

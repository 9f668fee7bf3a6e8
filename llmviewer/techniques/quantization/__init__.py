"""Number formats of weights, activations and the KV cache."""

"""Speculative decoding: draft tokens verified by one forward pass of the target model."""

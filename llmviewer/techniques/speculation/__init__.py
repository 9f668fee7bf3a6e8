"""Drafted tokens verified by one forward pass of the target model."""

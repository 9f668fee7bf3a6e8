"""Techniques that generate an answer as parallel branches."""

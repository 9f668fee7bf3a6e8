"""Prefill and decode steps as events on tracks."""

"""Answers generated as parallel branches."""

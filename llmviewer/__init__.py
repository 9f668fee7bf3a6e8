"""llmviewer: how fast an LLM runs on a chip, why, and what to change."""

__version__ = "0.1.0"

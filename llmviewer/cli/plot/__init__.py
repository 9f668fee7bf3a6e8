"""`llmviewer plot`."""

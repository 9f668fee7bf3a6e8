"""Package of `llmviewer plot`: command, loading of the data to plot, checks."""

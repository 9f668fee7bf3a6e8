"""One model on one system: memory, times and limits of a request."""

"""Readers of files that benchmark programs write, one of `files.READERS` each, and of tables of torch.profiler."""

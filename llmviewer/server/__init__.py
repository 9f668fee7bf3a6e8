"""Answers over HTTP and over the Model Context Protocol: the calls of Python, described once, within limits."""

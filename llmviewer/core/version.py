"""The version of the package, its metadata and every result."""

__version__ = "0.1.0"

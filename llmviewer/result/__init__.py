"""The one schema that the command line, reports and notebooks read."""

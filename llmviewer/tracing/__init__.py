"""Models without a parser, read from one traced pass of transformers' own class."""

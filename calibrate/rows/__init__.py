"""Operators for the rows of measured tables; one module per table."""

"""Figures that answers are made of, each declared once: words, units, directions and formulas."""

"""What answers are made of, each declared once: their figures with words, units, directions and formulas."""

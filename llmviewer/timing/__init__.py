"""Times of operators and forward passes: rooflines, calibrated efficiencies, overlapping copies, engine overhead."""

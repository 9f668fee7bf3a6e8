"""Seconds from counts: rooflines, measured efficiencies, overlap of copies, and the terms an engine adds."""

"""The figure of all plots, which embeds fonts in files as TrueType.

This module imports matplotlib, and so only functions that draw import it.
"""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure


class PlotFigure(Figure):
    """Figure whose PDF holds TrueType fonts: journals refuse Type 3, and its text can be searched and edited."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Writes the figure; arguments are those of matplotlib's `Figure.savefig`."""
        with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
            super().savefig(fname, **options)

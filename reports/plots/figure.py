"""The figure of all plots, which embeds fonts in files as TrueType."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@cache
def figure_class() -> type[Figure]:
    """Returns the class of figures; it is made here because matplotlib is imported only when something is drawn."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    class PlotFigure(Figure):
        """Figure whose PDF holds TrueType fonts: journals refuse Type 3, and its text can be searched and edited."""

        def savefig(self, fname: Any, **options: Any) -> None:
            """Writes the figure; arguments are those of matplotlib's `Figure.savefig`."""
            with rc_context({"pdf.fonttype": 42, "ps.fonttype": 42}):
                super().savefig(fname, **options)

    return PlotFigure

"""Common style of all plots: a colour-blind-safe palette, light and dark themes, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from llmviewer.core.frozen import frozen

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

#: Colours of Okabe and Ito (https://jfly.uni-koeln.de/color/), those with most contrast on white and black first.
#: Yellow is omitted, because it is invisible on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
#: Markers that distinguish series without colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Dots per inch of a PNG.
DPI = 200
DASHES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")


@frozen
class Theme:
    """Colours of background, text, secondary lines, and the zones of a roofline."""

    paper: str
    ink: str
    faint: str
    memory_zone: str
    compute_zone: str


@frozen
class PictureSize:
    """Width and height [inch] and text size [point]."""

    width: float
    height: float
    text: float


THEMES = {
    "light": Theme(paper="#FFFFFF", ink="#1A1A1A", faint="#B8B8B8", memory_zone="#E3EEF7", compute_zone="#FBEADF"),
    "dark": Theme(paper="#14171A", ink="#ECECEC", faint="#5A6068", memory_zone="#182833", compute_zone="#33241A"),
}
#: A column of a paper, a page, a slide.
SIZES = {
    "paper": PictureSize(width=3.5, height=3.1, text=8.0),
    "page": PictureSize(width=7.0, height=4.6, text=9.0),
    "slide": PictureSize(width=13.33, height=7.5, text=16.0),
}


@frozen
class Style:
    """Theme and size of a plot."""

    theme: Theme = THEMES["light"]
    size: PictureSize = SIZES["page"]

    def figure(self, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
        """Returns a figure and its axes in this style, without global state.  shared: options of `Figure.subplots`."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        from llmviewer.reports.plots.figure import PlotFigure

        figure = PlotFigure(
            figsize=(self.size.width, self.size.height), layout="constrained", facecolor=self.theme.paper, dpi=DPI
        )
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
        for one in axes:
            self._style_axes(one)
        return figure, axes

    def settle(self, figure: Figure) -> None:
        """Runs the layout once and fixes it, so that later additions move nothing."""
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            figure.set_layout_engine("none")

    def title(self, figure: Figure, words: str) -> None:
        """Sets the title, wrapped to the width of the figure."""
        from textwrap import fill

        wide = int(self.size.width * 72.0 / (0.52 * self.title_size))
        figure.suptitle(fill(words, wide), fontsize=self.title_size, color=self.theme.ink)

    @property
    def title_size(self) -> float:
        """Text size of titles [point]."""
        return self.size.text * 0.95

    def _style_axes(self, axes: Axes) -> None:
        theme, text = self.theme, self.size.text
        axes.set_facecolor(theme.paper)
        axes.tick_params(colors=theme.ink, labelsize=text, which="both")
        for name, spine in axes.spines.items():
            spine.set_color(theme.ink)
            spine.set_visible(name in ("left", "bottom"))
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(theme.ink)
            label.set_fontsize(text)
        axes.grid(visible=True, color=theme.faint, linewidth=0.4, alpha=0.6)
        axes.set_axisbelow(True)

    def legend(self, axes: Axes, **options: Any) -> None:
        """Adds a legend inside the axes for two or more labelled artists, or for given handles."""
        handles, _ = axes.get_legend_handles_labels()
        if len(handles) >= 2 or "handles" in options:
            self._apply_theme(axes.legend(**(self._legend_options() | options)))

    def legend_below(self, figure: Figure, handles: Sequence[Artist], least: int = 2) -> None:
        """Adds a legend below all axes if there are at least `least` entries, in as many columns as fit."""
        if len(handles) < least:
            return
        longest = max(len(str(handle.get_label())) for handle in handles)
        wide = 0.52 * 0.9 * self.size.text * (longest + 6.0)
        columns = int(min(max(self.size.width * 72.0 / wide, 1.0), len(handles)))
        self._apply_theme(
            figure.legend(handles=handles, loc="outside lower center", ncols=columns, **self._legend_options())
        )

    def _legend_options(self) -> dict[str, Any]:
        """Returns the options of every legend."""
        return {
            "fontsize": self.size.text * 0.85,
            "framealpha": 0.85,
            "handletextpad": 0.4,
            "columnspacing": 1.0,
            "handlelength": 2.6,
        }

    def _apply_theme(self, legend: Legend) -> None:
        """Applies the theme's colours to a legend."""
        legend.get_frame().set_facecolor(self.theme.paper)
        legend.get_frame().set_edgecolor(self.theme.faint)
        for text in legend.get_texts():
            text.set_color(self.theme.ink)


def colour(at: int) -> str:
    """Returns the colour of series `at`; beyond the palette colours repeat with other markers and dashes."""
    return PALETTE[at % len(PALETTE)]


def marker(at: int) -> str:
    """Returns the marker of series `at`."""
    return MARKERS[(at + at // len(PALETTE)) % len(MARKERS)]


def dashes(at: int) -> Literal["-", "--", "-.", ":"]:
    """Returns the dashes of series `at`; a repeated colour has other dashes, so that 28 series differ."""
    return DASHES[(at // len(PALETTE) + at % len(PALETTE)) % len(DASHES)]

"""One look for all pictures: a palette that colour-blind readers tell apart, light and dark, sizes, units in axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours (https://jfly.uni-koeln.de/color/), those that stand out on white and on black first; yellow
#: is left out, nobody sees it on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
#: Tells series apart without colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of paper, ink, what stands back, and the zones of a roofline."""

    paper: str
    ink: str
    faint: str
    memory_zone: str
    compute_zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Width and height [inch], and the size of text [point]."""

    width: float
    height: float
    text: float


THEMES = {
    "light": Theme(paper="#FFFFFF", ink="#1A1A1A", faint="#B8B8B8", memory_zone="#E3EEF7", compute_zone="#FBEADF"),
    "dark": Theme(paper="#14171A", ink="#ECECEC", faint="#5A6068", memory_zone="#182833", compute_zone="#33241A"),
}
#: Half a column of a paper, a page, a slide.
SIZES = {
    "half": Size(width=3.5, height=2.9, text=7.0),
    "page": Size(width=7.0, height=4.6, text=9.0),
    "slide": Size(width=13.33, height=7.5, text=16.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A theme and a size."""

    theme: Theme = THEMES["light"]
    size: Size = SIZES["page"]

    def figure(self, rows: int = 1, columns: int = 1, **shared: object) -> tuple[Figure, list[Axes]]:
        """A figure of so many axes, in this style; nothing global is touched.  shared: of `Figure.subplots`."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(
            figsize=(self.size.width, self.size.height), layout="constrained", facecolor=self.theme.paper, dpi=200
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, **shared)  # type: ignore[arg-type]
        for one in axes.flat:
            self._dress(one)
        return figure, list(axes.flat)

    def _dress(self, axes: Axes) -> None:
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

    def legend(self, axes: Axes, **options: object) -> None:
        """The legend of labelled artists, where there are two or more; colours of the theme."""
        handles, _ = axes.get_legend_handles_labels()
        if len(handles) < 2 and "handles" not in options:
            return
        legend = axes.legend(fontsize=self.size.text * 0.9, framealpha=0.85, **options)  # type: ignore[arg-type]
        legend.get_frame().set_facecolor(self.theme.paper)
        legend.get_frame().set_edgecolor(self.theme.faint)
        for text in legend.get_texts():
            text.set_color(self.theme.ink)


def colour(at: int) -> str:
    """The colour of the series numbered `at`; beyond the palette they come again, with other markers and dashes."""
    return PALETTE[at % len(PALETTE)]


def marker(at: int) -> str:
    """The marker of the series numbered `at`."""
    return MARKERS[(at + at // len(PALETTE)) % len(MARKERS)]


def dashes(at: int) -> str:
    """The dashes of the series numbered `at`."""
    return DASHES[(at // len(PALETTE) + at) % len(DASHES)]

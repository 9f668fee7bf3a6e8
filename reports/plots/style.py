"""One look for all pictures: a palette that colour-blind readers tell apart, light and dark, sizes, units in axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

#: Okabe and Ito's colours (https://jfly.uni-koeln.de/color/), those that stand out on white and on black first; yellow
#: is left out, nobody sees it on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
#: Tells series apart without colour.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
#: Dots per inch of a PNG.
DPI = 200
DASHES: tuple[Literal["-", "--", "-.", ":"], ...] = ("-", "--", "-.", ":")


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """Colours of paper, ink, what stands back, and the zones of a roofline."""

    paper: str
    ink: str
    faint: str
    memory_zone: str
    compute_zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureSize:
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
    "half": PictureSize(width=3.5, height=2.9, text=7.0),
    "page": PictureSize(width=7.0, height=4.6, text=9.0),
    "slide": PictureSize(width=13.33, height=7.5, text=16.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """A theme and a size."""

    theme: Theme = THEMES["light"]
    size: PictureSize = SIZES["page"]

    def figure(self, rows: int = 1, columns: int = 1, **shared: Any) -> tuple[Figure, list[Axes]]:
        """A figure of so many axes, in this style; nothing global is touched.  shared: of `Figure.subplots`."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(
            figsize=(self.size.width, self.size.height), layout="constrained", facecolor=self.theme.paper, dpi=DPI
        )
        FigureCanvasAgg(figure)
        axes = list(figure.subplots(rows, columns, squeeze=False, **shared).flat)
        for one in axes:
            self._dress(one)
        return figure, axes

    def settle(self, figure: Figure) -> None:
        """Give the axes their place, once and for all: what is put into them later moves nothing."""
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            figure.set_layout_engine("none")

    def title(self, figure: Figure, words: str) -> None:
        """What the picture is of, above it, broken into lines that fit."""
        from textwrap import fill

        wide = int(self.size.width * 72.0 / (0.52 * self.text_of_titles))
        figure.suptitle(fill(words, wide), fontsize=self.text_of_titles, color=self.theme.ink)

    @property
    def text_of_titles(self) -> float:
        """[point]"""
        return self.size.text * 0.95

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

    def legend(self, axes: Axes, **options: Any) -> None:
        """A key inside the axes, of labelled artists where there are two or more, or of the handles given."""
        handles, _ = axes.get_legend_handles_labels()
        if len(handles) >= 2 or "handles" in options:
            self._paint(axes.legend(**(self._key() | options)))

    def legend_below(self, figure: Figure, handles: Sequence[Artist], least: int = 2) -> None:
        """A key below all axes, of `least` entries or more, in as many columns as the width holds."""
        if len(handles) < least:
            return
        longest = max(len(str(handle.get_label())) for handle in handles)
        wide = 0.52 * 0.9 * self.size.text * (longest + 6.0)
        columns = int(min(max(self.size.width * 72.0 / wide, 1.0), len(handles)))
        self._paint(figure.legend(handles=handles, loc="outside lower center", ncols=columns, **self._key()))

    def _key(self) -> dict[str, Any]:
        """How every key looks."""
        return {"fontsize": self.size.text * 0.85, "framealpha": 0.85, "handletextpad": 0.4, "columnspacing": 1.0}

    def _paint(self, legend: Legend) -> None:
        """Colours of the theme."""
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


def dashes(at: int) -> Literal["-", "--", "-.", ":"]:
    """The dashes of the series numbered `at`."""
    return DASHES[(at // len(PALETTE) + at) % len(DASHES)]

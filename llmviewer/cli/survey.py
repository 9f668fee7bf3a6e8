"""`llmviewer survey`: the figures of arXiv 2402.16363 by our counts, with what the survey concludes of each."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from llmviewer import api
from llmviewer.cli.folder import atomic_folder, target_folder
from llmviewer.core.errors import unknown
from llmviewer.hardware import specs
from llmviewer.result.result import Result

if TYPE_CHECKING:
    from llmviewer.reports.plots.style import Style
    from llmviewer.reports.survey.ask import SurveyQuery
    from llmviewer.reports.survey.document import SurveySection

#: What a survey consists of; a folder with nothing else is an earlier one.
SURVEY_FILES = re.compile(r"index\.(html|md)|(table|figure)-\d+(-[a-z-]+)?\.(png|svg|csv)")


def command(
    output: Annotated[str, typer.Option("-o", "--output", help="The folder to write.")] = "survey",
    theme: Annotated[str, typer.Option(help="Of the pictures: light, dark.")] = "light",
) -> int:
    """Draws Table 1 and the figures that LLM-Viewer made, with data, and a page that says which conclusions hold."""
    from llmviewer.reports.plots.style import THEMES, Style
    from llmviewer.reports.survey import FIGURES
    from llmviewer.reports.survey.document import as_html, as_markdown

    if theme not in THEMES:
        raise unknown("theme", theme, THEMES)
    folder = target_folder(output, lambda path: path.is_file() and SURVEY_FILES.fullmatch(path.name) is not None)
    sections, answered = [], dict[Any, Result]()
    with atomic_folder(folder) as written:
        for name in FIGURES:
            _progress(name.replace("_", " "))
            sections.append(section(name, answered))
            _write(sections[-1], written, Style(theme=THEMES[theme]))
        for page, text in (("index.html", as_html(sections)), ("index.md", as_markdown(sections))):
            (written / page).write_text(text, encoding="utf-8")
    held = [verdict.holds for one in sections for _, verdict in one.verdicts]
    _progress(f"{output}: {len(sections)} figures, {sum(held)} of {len(held)} conclusions hold; read index.html")
    return 0


def section(name: str, answered: dict[SurveyQuery, Result]) -> SurveySection:
    """A figure with its answers.  answered: what has been asked before, which grows."""
    from llmviewer.reports.survey import load
    from llmviewer.reports.survey.document import SurveySection
    from llmviewer.reports.survey.peer import compared

    figure = load(name)
    for query in (*figure.queries.values(), *(peer.query for peer in figure.peers)):
        if query not in answered:
            answered[query] = run_query(query)
    frames = figure.frames({title: answered[query] for title, query in figure.queries.items()})
    beside = compared(figure.peers, answered) if figure.peers else None
    return SurveySection(name=name.replace("_", "-"), figure=figure, frames=frames, compared=beside)


def run_query(ask: SurveyQuery) -> Result:
    """What `analyze` says to the question."""
    chip: Any = ask.hardware
    if ask.bandwidths:
        chip = specs.load(ask.hardware)
        chip = replace(chip, bandwidth_bytes_per_s=np.array(ask.bandwidths) * chip.bandwidth_bytes_per_s)
    sizes: Any = {name: list(getattr(ask, name)) for name in ("batch_size", "input_len", "output_len")}
    return api.analyze(ask.model, chip, **sizes, **dict[str, Any](ask.options))


def _write(one: SurveySection, folder: Path, style: Style) -> None:
    """Its data and its picture, in both formats."""
    from matplotlib import rc_context

    for name, rows in one.tables.items():
        rows.to_csv(folder / f"{name}.csv", index=False)
    picture = one.figure.draw(one.frames, style)
    picture.savefig(folder / f"{one.name}.png", format="png")
    with rc_context({"svg.hashsalt": one.name}):  # the same bytes on every run
        picture.savefig(folder / f"{one.name}.svg", format="svg", metadata={"Date": None})


def _progress(words: str) -> None:
    print(words, file=sys.stderr)  # noqa: T201

"""`llmviewer survey`: the figures of arXiv 2402.16363 recomputed, and its conclusions and text judged."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from llmviewer import api
from llmviewer.cli import process
from llmviewer.cli.folder import atomic_folder, target_folder
from llmviewer.core.errors import MAX_LINE_CHARACTERS, UserError, printable, unknown
from llmviewer.hardware import specs

if TYPE_CHECKING:
    from llmviewer.reports.plots.style import Style
    from llmviewer.reports.survey.claims import Answer, Judged
    from llmviewer.reports.survey.document import SurveySection
    from llmviewer.reports.survey.peer import SurveyQuery

#: Files that the command writes; a folder that contains only these may be replaced.
SURVEY_FILES = re.compile(r"claims\.csv|index\.(html|md)|(table|figure)-\d+(-[a-z-]+)?\.(png|svg|csv)")


def command(
    output: Annotated[str, typer.Option("-o", "--output", help="Output folder.")] = "survey",
    theme: Annotated[str, typer.Option(help="Theme of page and pictures: light or dark.")] = "light",
) -> int:
    """Draws the figures made with LLM-Viewer, writes their data, and reports which claims of figures and text hold."""
    from llmviewer.reports.plots.style import THEMES, Style
    from llmviewer.reports.survey import FIGURES
    from llmviewer.reports.survey.claims import records, tally
    from llmviewer.reports.survey.document import as_html, as_markdown

    if theme not in THEMES:
        raise unknown("theme", theme, THEMES)
    folder = target_folder(output, lambda path: path.is_file() and SURVEY_FILES.fullmatch(path.name) is not None)
    process.silence_matplotlib()
    sections, results = [], dict[Any, Any]()
    with atomic_folder(folder) as temporary:
        for name in FIGURES:
            _progress(name.replace("_", " "))
            sections.append(section(name, results))
            _write(sections[-1], temporary, Style(theme=THEMES[theme]))
        _progress("text")
        judged = text_judged(sections, results)
        _table(records(judged), temporary / "claims.csv")
        (temporary / "index.html").write_text(as_html(sections, judged, theme=theme), encoding="utf-8")
        (temporary / "index.md").write_text(as_markdown(sections, judged), encoding="utf-8")
    holds = [verdict.holds for one in sections for _, verdict in one.verdicts]
    _progress(f"{output}: {len(sections)} figures, {sum(holds)} of {len(holds)} conclusions hold; open index.html")
    _progress(f"text and other documents: of {len(judged)} claims {tally(judged)}")
    return 0


def everything() -> tuple[list[SurveySection], list[Judged]]:
    """All figures with their data, and the claims of the text, judged."""
    from llmviewer.reports.survey import FIGURES

    results: dict[Any, Any] = {}
    sections = [section(name, results) for name in FIGURES]
    return sections, text_judged(sections, results)


def text_judged(sections: Sequence[SurveySection], results: dict[SurveyQuery, Any]) -> list[Judged]:
    """The claims of the survey's text, judged.  results: cache of earlier queries, extended in place."""
    from llmviewer.reports.survey.claims import judge, text_claims

    outcomes: dict[SurveyQuery, Answer | UserError] = {**results}
    for query in (query for claim in text_claims() for query in claim.queries):
        if query not in outcomes:
            try:
                outcomes[query] = results[query] = run_query(query)
            except UserError as refusal:
                outcomes[query] = refusal
    figures = {(one.name.replace("-", "_"), claim.says): v.holds for one in sections for claim, v in one.verdicts}
    return [judge(claim, outcomes, figures) for claim in text_claims()]


def section(name: str, results: dict[SurveyQuery, Any]) -> SurveySection:
    """A figure with its data.  results: cache of earlier queries, extended in place."""
    from llmviewer.reports.survey import load
    from llmviewer.reports.survey.document import SurveySection
    from llmviewer.reports.survey.peer import compared

    figure = load(name)
    for query in (*figure.queries.values(), *(peer.query for peer in figure.peers)):
        if query not in results:
            results[query] = run_query(query)
    frames = figure.frames({title: results[query] for title, query in figure.queries.items()})
    comparison = compared(figure.peers, results) if figure.peers else None
    return SurveySection(name=name.replace("_", "-"), figure=figure, frames=frames, compared=comparison)


def run_query(query: SurveyQuery) -> Answer:
    """The answer of `analyze` or `train` to a query."""
    from llmviewer.planning.train import train

    chip: Any = query.hardware
    if query.bandwidths:
        chip = specs.load(query.hardware)
        chip = replace(chip, bandwidth_bytes_per_s=np.array(query.bandwidths) * chip.bandwidth_bytes_per_s)
    sizes: Any = {name: list(getattr(query, name)) for name in ("batch_size", "input_len", "output_len")}
    if query.command == "train":
        (batch,), (length,) = query.batch_size, query.input_len
        return train(query.model, chip, batch_size=batch, input_len=length, **dict[str, Any](query.options))
    return api.analyze(query.model, chip, **sizes, **dict[str, Any](query.options))


def _write(section: SurveySection, folder: Path, style: Style) -> None:
    """Write the data and the picture of a section, as PNG and SVG."""
    from matplotlib import rc_context

    for name, rows in section.tables.items():
        rows.to_csv(folder / f"{name}.csv", index=False)
    picture = section.figure.draw(section.frames, style)
    picture.savefig(folder / f"{section.name}.png", format="png")
    with rc_context({"svg.hashsalt": section.name}):  # makes the file reproducible
        picture.savefig(folder / f"{section.name}.svg", format="svg", metadata={"Date": None})


def _table(rows: list[dict[str, object]], path: Path) -> None:
    import pandas as pd

    pd.DataFrame(rows).to_csv(path, index=False)


def _progress(text: str) -> None:
    print(printable(text, MAX_LINE_CHARACTERS), file=sys.stderr)  # noqa: T201

"""A report as a page for Markdown: comparison, bottlenecks, each configuration, sweep points, sources."""

from __future__ import annotations

from llmviewer.reports import analysis_page, bottleneck, comparison_page, simulation_page, sweep_page
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right
from llmviewer.reports.report import Report
from llmviewer.reports.verdict import verdict

#: Points that the page shows.
MAX_POINTS = 40


def page(report: Report) -> Page:
    """Returns the whole report except its plots."""
    answers = report.configurations
    several = len(answers) > 1
    verdicts = tuple((a["configuration"], f"{bottleneck.sentence(a)} {bottleneck.advice(a)}") for a in answers)
    parts: Page = (Facts(title=report.title, lines=(("Command", report.command),) if report.command else ()),)
    parts += opening(report)
    if several:
        parts = (*parts, *comparison_page.side_by_side(answers), Facts(title="Bottlenecks", lines=verdicts))
    for answer, result in zip(answers, report.results.values(), strict=True):
        title = (Facts(title=answer["configuration"], lines=()),) if several else ()
        own = (
            analysis_page.header(answer),
            *analysis_page.stages(answer, result.token_budget),
            *analysis_page.details(answer, result.token_budget),
        )
        parts = (*parts, *title, *own)
    return (*parts, *under_load(report), *_points(report), _sources(report))


def under_load(report: Report) -> Page:
    """Returns the simulated loads of all configurations."""
    parts: Page = ()
    for name, answer in report.loads.items():
        parts = (*parts, Facts(title=f"Under load: {name}", lines=()), *simulation_page.of_document(answer))
    return parts


def opening(report: Report) -> Page:
    """Returns the verdict on every configuration, after its name if there are several."""
    several = len(report.verdicts) > 1
    return tuple(
        verdict(report.verdicts[name], answer, name if several else "")
        for answer in report.configurations
        if (name := answer["configuration"]) in report.verdicts
    )


def _points(report: Report) -> Page:
    """Returns the sweep; a long one is thinned evenly."""
    total = len(report.points["batch_size"])
    step = -(-total // MAX_POINTS)
    columns = {name: values[::step] for name, values in report.points.items()}
    shown = len(columns["batch_size"])
    note = (
        f"{shown} of {fmt.whole(total)} points, evenly spaced; CSV, JSON and Excel contain all" if shown < total else ""
    )
    heading = Facts(title="Sweep", lines=(("", note),) if note else (), emphasis=Emphasis.FAINT)
    return (heading, *sweep_page.page(columns))


def _sources(report: Report) -> Table:
    """Returns every chip figure with its source."""
    chips = {answer["hardware"]["name"]: answer["provenance"]["figures"] for answer in report.configurations}
    rows = tuple(
        Row(cells=(chip, name, fmt.digits(figure["value"], 4) if figure["value"] else fmt.DASH, figure["source"]))
        for chip, figures in chips.items()
        for name, figure in figures.items()
    )
    return Table(
        title="Chip figures (SI units)",
        columns=(left("Chip"), left("Figure"), right("Value"), left("Source")),
        rows=rows,
    )

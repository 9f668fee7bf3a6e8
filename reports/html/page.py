"""The HTML page of a report: one file that loads no external resources."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.core.errors import missing_extra
from llmviewer.core.frozen import frozen
from llmviewer.language.quantity import METRICS, QUANTITIES
from llmviewer.reports import analysis_page, bottleneck, comparison_page, report_page, simulation_page
from llmviewer.reports import format as fmt
from llmviewer.reports.html import charts, curves, explanations, operators, provenance, roofline
from llmviewer.reports.html.layers import HEIGHT, WIDTH, Drawing, drawing
from llmviewer.reports.page import Page
from llmviewer.reports.report import Report
from llmviewer.reports.tables import safe_columns

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
#: Points in the table of the page, and the maximum size of the embedded CSV with all points [character].
MAX_TABLE_POINTS = 200
MAX_CSV_LENGTH = 4_000_000
#: Content security policy: only the page's own scripts run, identified by hash; nothing is fetched or sent.
POLICY = (
    "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


@frozen
class LayerDrawing:
    """The drawing of one kind of layer in one configuration and stage."""

    configuration: str
    stage: str
    block: str
    title: str
    share: float
    drawing: Drawing
    lines: Mapping[str, operators.Line]


def text(report: Report) -> str:
    """Returns the content of the HTML file."""
    templates = environment(TEMPLATES)
    templates.globals |= {"width": WIDTH, "height": HEIGHT}
    plotly = library()
    own = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    answers = report.configurations
    lines = operators.lines(answers)
    found = [roofline.chart(answers, lines), charts.bounds(answers), charts.memory(answers)]
    sweep = curves.sweep(report)
    return templates.get_template("report.html.j2").render(
        title=report.title,
        answers=answers,
        cards=_cards,
        policy=POLICY.format(hashes=" ".join(map(script_hash, (own, plotly.decode("utf-8"), *_scripts(report.page))))),
        page=compressed(report.page.encode("utf-8")) if report.page else "",
        css=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
        script=own,
        plotly=compressed(plotly),
        comparison=comparison_page.side_by_side(answers) if len(answers) > 1 else (),
        command=report.command,
        opening=report_page.opening(report),
        verdicts=[(a["configuration"], bottleneck.sentence(a), bottleneck.advice(a)) for a in answers],
        survey=bottleneck.SURVEY,
        details=_details(report),
        loads=_loads(report),
        trees=explanations.trees(report),
        heads=operators.heads(answers),
        lines=lines,
        layers=_layers(answers, lines),
        charts={chart.key: chart for chart in found},
        sweep=sweep,
        figures=[{"key": c.key, "data": c.data, "layout": c.layout} for c in (*found, *sweep.charts)],
        points=_points(report),
        sources=provenance.sources(answers),
        kernels=provenance.kernels(answers),
        statements=provenance.statements(answers),
        points_csv=_points_csv(report),
    )


def _scripts(html: str) -> list[str]:
    """The scripts of a page that the report opens, which has the report's own policy too."""
    return re.findall(r"<script>(.*?)</script>", html, re.DOTALL)


def environment(*folders: Path) -> Environment:
    """Returns the templates of these folders, in which all data is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(folders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.globals |= {"fmt": fmt}
    found.filters["link"] = provenance.link
    return found


def library() -> bytes:
    """Returns plotly.min.js from the Python package without importing it, because the import is slow."""
    spec = find_spec("plotly")
    path = Path((spec.submodule_search_locations or [""])[0]) / "package_data" / "plotly.min.js" if spec else None
    if path is None or not path.is_file():
        raise missing_extra("a report in HTML needs plotly", "report")
    return path.read_bytes()


def compressed(content: bytes) -> str:
    """Returns gzip in base64, which the page decompresses when needed."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")


def script_hash(script: str) -> str:
    """Returns the hash of a script for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


def _loads(report: Report) -> list[tuple[str, Page, list[tuple[str, str]]]]:
    """Returns name, page and pictures in base64 of each configuration under load."""
    return [
        (
            name,
            simulation_page.of_document(answer),
            [(words, base64.b64encode(image).decode("ascii")) for words, image in report.pictures[name].items()],
        )
        for name, answer in report.loads.items()
    ]


def _details(report: Report) -> list[tuple[dict[str, Any], Page]]:
    """Returns the page of `analyze` for each configuration, without operators."""
    return [
        (answer, (analysis_page.header(answer), *analysis_page.details(answer, result.token_budget)))
        for answer, result in zip(report.configurations, report.results.values(), strict=True)
    ]


def _layers(answers: list[dict[str, Any]], lines: list[operators.Line]) -> list[LayerDrawing]:
    """Returns a drawing of every kind of layer with more than one operator."""
    grouped: dict[tuple[str, str, str], list[operators.Line]] = {}
    for line in lines:
        grouped.setdefault((line.configuration, line.stage, line.operator["block"]), []).append(line)
    drawn: dict[tuple[Any, ...], Drawing] = {}
    found = []
    for (configuration, stage, block), own in grouped.items():
        if len(own) > 1:
            listed = [line.operator for line in own]
            key = tuple((o["name"], *o["inputs"], "", *o["outputs"]) for o in listed)
            drawn[key] = drawn.get(key) or drawing(listed)
            repeats = listed[0]["layers"]
            found.append(
                LayerDrawing(
                    configuration=configuration,
                    stage=stage,
                    block=block,
                    title=block if repeats == 1 else f"{block} × {repeats}",
                    share=sum(line.share for line in own),
                    drawing=drawn[key],
                    lines={line.operator["name"]: line for line in own},
                )
            )
    return found


def _cards(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns label, value and words of each metric, and of the memory."""
    metrics, memory = answer["metrics"], answer["memory"]
    bounds = {"ttft_s": "prefill", "tpot_s": "decode"}
    cards = []
    for name, one in METRICS.items():
        value = one.of(metrics)
        if value is not None and not one.adds_nothing(metrics):
            words = one.meaning if one.title.lower() == one.label.lower() else one.title
            stage = bounds.get(name)
            bound = f"; {stage} is {answer['stages'][stage]['bound']}-bound" if stage else ""
            cards.append((one.label, fmt.figure(name, value), f"{words}{bound}"))
    total = QUANTITIES["total_bytes"]
    fits = "fits" if memory["fits"] else "does not fit"
    words = f"of {fmt.capacity(memory['capacity_bytes'])}: {fits}"
    return [*cards, (total.label, fmt.memory(memory["total_bytes"]), words)]


def _points(report: Report) -> dict[str, Any]:
    """Returns the table of points, evenly thinned if there are many."""
    total = len(report.points["batch_size"])
    step = max(-(-total // MAX_TABLE_POINTS), 1)
    chosen = range(0, total, step)
    columns = {name: report.points[name] for name in ("configuration", *curves.SIZES)}
    figures = [name for name in (*METRICS, "total_bytes") if curves.exists(report, name)]
    rows = [
        [
            operators.Cell(text=str(columns["configuration"][at])),
            *(
                operators.Cell(text=fmt.whole(columns[name][at]), value=float(columns[name][at]))
                for name in curves.SIZES
            ),
            *(_figure_cell(name, report.points[name][at]) for name in figures),
            operators.Cell(text="yes" if report.points["fits"][at] else "no"),
        ]
        for at in chosen
    ]
    numbers = [QUANTITIES[name].label for name in (*curves.SIZES, *figures)]
    heads = [
        operators.ColumnHead(title="Configuration", chosen=True),
        *(operators.ColumnHead(title=t, number=True) for t in numbers),
    ]
    return {"total": total, "heads": [*heads, operators.ColumnHead(title="Fits", chosen=True)], "rows": rows}


def _figure_cell(name: str, value: Any) -> operators.Cell:
    known = None if value is None or value != value else float(value)  # noqa: PLR0124
    return operators.Cell(text=fmt.figure(name, known), value=known)


def _points_csv(report: Report) -> str:
    """Returns all points as compressed CSV; empty if the page would grow too large."""
    stream = io.StringIO()
    points = safe_columns(report.points)
    _write(stream, points.keys(), zip(*points.values(), strict=True))
    content = compressed(stream.getvalue().encode("utf-8"))
    return content if len(content) <= MAX_CSV_LENGTH else ""


def _write(stream: io.StringIO, names: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)

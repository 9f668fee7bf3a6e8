"""The report's page: everything a template needs, put into one file that loads nothing from anywhere."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmviewer.reports import analysis_page, bottleneck, comparison_page
from llmviewer.reports import format as fmt
from llmviewer.reports.html import charts, curves, operators, provenance, roofline
from llmviewer.reports.html.layers import HEIGHT, WIDTH, Drawing, drawing
from llmviewer.reports.page import Page
from llmviewer.reports.report import Report

TEMPLATES = Path(__file__).parent / "templates"
#: Points that the page's table shows; those it carries for its download are all of them, up to so many characters.
SHOWN_POINTS = 200
MOST_CARRIED = 4_000_000
#: What the page may do: run its own scripts, known by their hashes; nothing is fetched or sent.
POLICY = (
    "default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDrawing:
    """The drawing of one kind of layer, of one configuration and stage."""

    configuration: str
    stage: str
    block: str
    title: str
    share: float
    drawing: Drawing
    lines: Mapping[str, operators.Line]


def text(report: Report) -> str:
    """The file."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"fmt": fmt, "width": WIDTH, "height": HEIGHT}
    environment.filters["link"] = provenance.link
    plotly = library()
    own = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    answers = report.configurations
    lines = operators.lines(answers)
    found = [roofline.chart(answers, lines), charts.bounds(answers), charts.memory(answers)]
    sweep = curves.sweep(report)
    return environment.get_template("report.html.j2").render(
        title=report.title,
        answers=answers,
        policy=POLICY.format(hashes=" ".join(map(_hash, (own, plotly.decode("utf-8"))))),
        css=(TEMPLATES / "report.css").read_text(encoding="utf-8"),
        script=own,
        plotly=packed(plotly),
        beside=comparison_page.side_by_side(answers) if len(answers) > 1 else (),
        verdicts=[(a["configuration"], bottleneck.sentence(a), bottleneck.advice(a)) for a in answers],
        survey=bottleneck.SURVEY,
        details=_details(report),
        heads=operators.heads(answers),
        lines=lines,
        layers=_layers(answers, lines),
        charts={chart.key: chart for chart in found},
        sweep=sweep,
        figures=[{"key": c.key, "data": c.data, "layout": c.layout} for c in (*found, *sweep.charts)],
        points=_points(report),
        sources=provenance.sources(answers),
        kernels=provenance.kernels(answers),
        said=provenance.statements(answers),
        carried=_carried(report),
    )


def library() -> bytes:
    """Plotly's script, from its package, which is not imported: that takes longer than all we do."""
    spec = find_spec("plotly")
    path = Path((spec.submodule_search_locations or [""])[0]) / "package_data" / "plotly.min.js" if spec else None
    if path is None or not path.is_file():
        raise ModuleNotFoundError("plotly.min.js", name="plotly")
    return path.read_bytes()


def packed(content: bytes) -> str:
    """Compressed text, which the page unpacks when it needs it."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode("ascii")


def _hash(script: str) -> str:
    """What the policy knows a script by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


def _details(report: Report) -> list[tuple[dict[str, Any], Page]]:
    """What `analyze` says of each configuration, but for the operators."""
    return [
        (answer, (analysis_page.header(answer), *analysis_page.details(answer, result.token_budget)))
        for answer, result in zip(report.configurations, report.results.values(), strict=True)
    ]


def _layers(answers: list[dict[str, Any]], lines: list[operators.Line]) -> list[LayerDrawing]:
    """A drawing of every kind of layer that has more than one operator."""
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
            times = listed[0]["layers"]
            found.append(
                LayerDrawing(
                    configuration=configuration,
                    stage=stage,
                    block=block,
                    title=block if times == 1 else f"{block} × {times}",
                    share=sum(line.share for line in own),
                    drawing=drawn[key],
                    lines={line.operator["name"]: line for line in own},
                )
            )
    return found


def _points(report: Report) -> dict[str, Any]:
    """Rows of the table of points, evenly chosen where there are many."""
    total = len(report.points["batch_size"])
    step = max(-(-total // SHOWN_POINTS), 1)
    chosen = range(0, total, step)
    columns = {name: report.points[name] for name in ("configuration", *curves.SIZES)}
    rows = [
        [
            operators.Cell(text=str(columns["configuration"][at])),
            *(
                operators.Cell(text=fmt.whole(columns[name][at]), value=float(columns[name][at]))
                for name in curves.SIZES
            ),
            *(_measure(report.points[metric][at], show) for metric, (_, _, _, show) in curves.CURVES.items()),
            operators.Cell(text="yes" if report.points["fits"][at] else "no"),
        ]
        for at in chosen
    ]
    numbers = ("Batch", "Input", "Output", "TTFT", "TPOT", "Tokens/s", "Memory")
    heads = [
        operators.ColumnHead(title="Configuration", chosen=True),
        *(operators.ColumnHead(title=t, number=True) for t in numbers),
    ]
    return {"total": total, "heads": [*heads, operators.ColumnHead(title="Fits", chosen=True)], "rows": rows}


def _measure(value: Any, show: Any) -> operators.Cell:
    known = None if value is None or value != value else float(value)  # noqa: PLR0124
    return operators.Cell(text=show(known), value=known)


def _carried(report: Report) -> str:
    """All points as CSV, packed; nothing where the page would grow too large."""
    stream = io.StringIO()
    _write(stream, report.points.keys(), zip(*report.points.values(), strict=True))
    content = packed(stream.getvalue().encode("utf-8"))
    return content if len(content) <= MOST_CARRIED else ""


def _write(stream: io.StringIO, names: Iterable[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)

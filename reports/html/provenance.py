"""Where every number comes from: figures of chips with their pages, kernels with their fits, what is assumed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmviewer.reports import format as fmt

if TYPE_CHECKING:
    from markupsafe import Markup

Answers = list[dict[str, Any]]

#: What reads as an address inside a text.
ADDRESS = re.compile(r"https?://[^\s<>\"'`;,()]+[^\s<>\"'`;,().]")
#: ending of a figure's name -> how it reads.
SHOWN: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("memory_bytes", fmt.capacity),
    ("bytes_per_s", fmt.bandwidth),
    ("bytes", fmt.memory),
    ("bytes_per_unit", fmt.memory),
    ("clock_hz", lambda value: f"{fmt.digits(value / 1e9)} GHz"),
    ("tdp_w", lambda value: f"{fmt.digits(value)} W"),
    ("special_ops_per_s", lambda value: f"{fmt.rate(value)}/s"),
)


def link(text: str) -> Markup:
    """Text whose addresses are links; everything else is escaped."""
    from markupsafe import Markup, escape

    found, at = Markup(""), 0
    for match in ADDRESS.finditer(str(text)):
        address = match.group()
        found += escape(str(text)[at : match.start()])
        found += Markup('<a href="{0}" rel="noreferrer">{0}</a>').format(address)
        at = match.end()
    return found + escape(str(text)[at:])


def sources(answers: Answers) -> list[tuple[str, str, str, str, str]]:
    """Every figure of every chip: (chip, figure, value, page, note)."""
    chips = {answer["hardware"]["name"]: answer["provenance"]["figures"] for answer in answers}
    return [
        (
            chip,
            name.replace("_", " ").replace(".", " "),
            _value(name, figure["value"]),
            figure["source"],
            figure.get("note", ""),
        )
        for chip, figures in chips.items()
        for name, figure in figures.items()
    ]


def _value(name: str, value: Any) -> str:
    if value is None:
        return fmt.DASH
    if name.partition(".")[0] in ("matrix_flops_per_s", "vector_flops_per_s"):
        return fmt.flops_per_s(value)
    for ending, show in SHOWN:
        if name.endswith(ending):
            return show(value)
    return fmt.digits(value)


def kernels(answers: Answers) -> list[tuple[str, ...]]:
    """Fits behind calibrated times: (chip, kernels, basis, of chip, fit, rows, error, bias, inside 80 %)."""
    rows: dict[tuple[str, ...], None] = {}
    for answer in answers:
        for key, fit in answer["efficiency"].get("kernels", {}).items():
            error = fit.get("error") or {}
            rows[
                (
                    answer["hardware"]["name"],
                    key,
                    str(fit["basis"]),
                    str(fit.get("chip") or ""),
                    str(fit.get("fit") or ""),
                    fmt.whole(error.get("rows")),
                    fmt.percent(error.get("mape")),
                    fmt.DASH if error.get("bias") is None else fmt.signed(error["bias"]),
                    fmt.percent(error.get("covered80")),
                )
            ] = None
    return list(rows)


def statements(answers: Answers) -> list[tuple[str, list[tuple[str, str]]]]:
    """Per configuration: files, pages, what times are, what is assumed."""
    found = []
    for answer in answers:
        known = answer["provenance"]
        efficiency = answer["efficiency"]
        lines = [
            ("Model", known["model"] or "a config of your own"),
            ("Chip", known["hardware"]),
            ("Times", f"{efficiency['kind']}: {known['times']}"),
            ("Profile", efficiency["profile"] or "none"),
            ("Passes", ", ".join(answer["passes"]) or "none"),
            *(("Assumed", text) for text in known["assumed"]),
        ]
        found.append((answer["configuration"], [(label, text) for label, text in lines if text]))
    return found

"""Provenance of all numbers: chip figures with sources, kernel fits, assumptions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmviewer.reports import format as fmt

if TYPE_CHECKING:
    from markupsafe import Markup

Answers = list[dict[str, Any]]

#: A URL within a text.
ADDRESS = re.compile(r"https?://[^\s<>\"'`;,()]+[^\s<>\"'`;,().]")
#: (suffix of a figure's name, format).
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
    """Returns escaped text with its URLs as links."""
    from markupsafe import Markup, escape

    found, at = Markup(""), 0
    for match in ADDRESS.finditer(str(text)):
        address = match.group()
        found += escape(str(text)[at : match.start()])
        found += Markup('<a href="{0}" rel="noreferrer">{0}</a>').format(address)
        at = match.end()
    return found + escape(str(text)[at:])


def sources(answers: Answers) -> list[tuple[str, str, str, str, str]]:
    """Returns (chip, figure, value, source, note) of every chip figure."""
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
    """Returns (chip, kernels, basis, measured chip, fit, rows, MAPE, bias, 80 % coverage) of every kernel fit used."""
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
    """Returns per configuration its files, basis of times, passes and assumptions."""
    found = []
    for answer in answers:
        known = answer["provenance"]
        efficiency = answer["efficiency"]
        lines = [
            ("Model", known["model"] or "user config"),
            ("Chip", known["hardware"]),
            ("Times", f"{efficiency['kind']}: {known['times']}"),
            ("Profile", efficiency["profile"] or "none"),
            ("Passes", ", ".join(answer["passes"]) or "none"),
            *(("Assumed", text) for text in known["assumed"]),
        ]
        found.append((answer["configuration"], [(label, text) for label, text in lines if text]))
    return found

"""A calibrated card as a page: what was measured, errors before and after, and what to type next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llmviewer.reports import format as fmt
from llmviewer.reports.fit_page import power_line, rows_of, signed
from llmviewer.reports.page import Emphasis, Facts, Page, Row, Table, left, right

#: Kernel family -> its name in words; others are called by their variant.
WORDS = {
    "gemm": "products",
    "attention_prefill": "attention of prompts",
    "attention_decode": "attention of tokens",
    "collective": "collectives",
    "experts": "experts",
}
STREAMING = {"act": "activation", "add": "residual sum", "quantize": "conversion to 8 bit", "rope": "RoPE"}
KERNELS = (
    left("Kernels"),
    left("Engine", rank=2),
    right("Rows"),
    right("Error before"),
    right("after"),
    right("In 80 % before", rank=1),
    right("after", rank=1),
)
LAYERS = (
    left("Measured"),
    left("Stage"),
    right("Tokens"),
    right("Time"),
    right("Before", rank=1),
    right("After", rank=1),
    right("80 %", rank=2),
    right("Error before"),
    right("after"),
)
MEANING = (
    ("Before", "predicted with the shipped profiles"),
    ("After", "kernels: with constants fitted without their shape; layers and models, never fitted: with yours"),
    ("Error", "of kernels the median of |predicted / measured - 1|; of layers predicted / measured - 1"),
    ("Tokens", "batch x tokens of each prompt, or in the cache; * times that spread by more than 10 %"),
)


def page(document: dict[str, Any]) -> Page:
    """Returns the page of a calibration.  document: that of calibrate/card.py."""
    parts: Page = (Facts(lines=(*_machine(document), *_verdict(document))),)
    if document["kernels"]:
        rows = tuple(Row(cells=_kernel(one)) for one in document["kernels"])
        parts = (*parts, Table(columns=KERNELS, rows=rows, title="Kernels, held out"))
    if document["layers"]:
        rows = tuple(Row(cells=_layer(one)) for one in document["layers"])
        parts = (*parts, Table(columns=LAYERS, rows=rows, title="Layers and whole models, measured and predicted"))
    if document["kernels"] or document["layers"]:
        parts = (*parts, Facts(lines=MEANING, emphasis=Emphasis.FAINT))
    if lines := tuple(_lacking(document)):
        parts = (*parts, Facts(title="Not measured, not fitted", lines=lines, emphasis=Emphasis.WARNING))
    return (*parts, Facts(lines=tuple(_files(document))))


def _machine(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    facts = document["machine"]
    yield "Machine", ", ".join(_properties(facts, "" if document["chip_file"] else document["chip"]))
    rows = sum(document["rows"].values())
    yield "Measured", f"{fmt.whole(rows)} rows with torch {facts['torch']}; {document['seconds'] / 60.0:.1f} min in all"
    if document["busy"]:
        unstable = f"{document['busy']} by other programs: {fmt.whole(document['unstable'])} of these rows are unstable"
        yield "Busy", f"{unstable}; on the idle machine, with another -o, errors are smaller"


#: Fact of a machine -> its words.
FACTS: dict[str, Callable[[Any], str]] = {
    "gpus": lambda value: f"{value} of them" if value > 1 else "",
    "threads": lambda value: f"{value} cores",
    "isa": " ".join,
    "memory_bytes": lambda value: f"{value / 2.0**30:.1f} GiB",
    "power_limit_w": lambda value: f"at most {value:.0f} W",
    "pcie_generation": lambda value: f"PCIe {value}",
    "nvlinks": lambda value: f"{value} NVLinks",
    "topology": " ".join,
}


def _properties(facts: dict[str, Any], chip: str | None) -> Iterator[str]:
    """Words on a card or a processor, as far as it says."""
    yield facts["device_name"] + (f" ({chip})" if chip else "")
    yield from filter(None, (words(facts[name]) for name, words in FACTS.items() if facts.get(name)))


def _verdict(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Median errors before and after, in words."""
    kinds = {"kernels": "kernels that were held out", "layers": "layers and models"}
    found = [(kinds[name], one) for name, one in document["median_error"].items() if one]
    told = [f"{name} {fmt.percent(one['before'])} -> {fmt.percent(one['after'])}" for name, one in found]
    yield "Error", f"median, before -> after: {'; '.join(told)}" if told else "no profile could be fitted (see below)"


def _kernel(one: dict[str, Any]) -> tuple[str, ...]:
    family, variant, engine = one["fit"].split("/")
    before, after = one["before"], one["after"] or {}
    return (
        f"{WORDS[family]}, {variant}" if family in WORDS else STREAMING.get(variant, variant),
        engine,
        fmt.whole(one["rows"]),
        fmt.percent(before["median"]),
        fmt.percent(after["median"]) if after else "-",
        fmt.percent(before["covered80"]),
        fmt.percent(after["covered80"]) if "covered80" in after else "-",
    )


def _layer(one: dict[str, Any]) -> tuple[str, ...]:
    what = f"{one['model']}, {'1 layer' if one['table'] == 'block' else 'whole'}"
    before, after = (_predicted(one[when]) for when in ("before", "after"))
    bounds = one["after"]["interval_80_us"]
    return (
        what if one["stable"] else f"{what} *",
        f"{one['stage']}{', graph' if one['graph'] else ''}",
        f"{fmt.whole(one['batch'])} x {fmt.whole(one['tokens'])}",
        fmt.duration(one["measured_us"] * 1e-6),
        before[0],
        after[0],
        fmt.durations(*(each * 1e-6 for each in bounds)) if bounds else "",
        before[1],
        after[1],
    )


def _predicted(one: dict[str, Any]) -> tuple[str, str]:
    """Time and error of a prediction."""
    known = one["predicted_us"] is not None
    return (fmt.duration(one["predicted_us"] * 1e-6), signed(one["error"])) if known else ("-", "-")


def _lacking(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if left_out := sum(document["left"].values()):
        yield rows_of(left_out), "not measured for lack of time; the same command goes on"
    yield from ((rows_of(count) if count else "", reason) for reason, count in document["not_fitted"].items())
    yield from (("", text) for text in document["missing"])


def _files(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Samples", document["samples"]
    if document["chip_file"]:
        note = "no spec describes this device; its best measured rates replace data-sheet figures"
        yield "Chip", f"{document['chip_file']}: {note}"
    yield from power_line(document)
    if document["profile"]:
        yield "Profile", document["profile"]
    for at, words in enumerate(document["next"]):
        yield "" if at else "Next", words
    if not document["next"]:
        yield "Next", "the same command, which goes on with the rows that are missing; another -o starts afresh"

"""`make docs`: writes the table of kernel errors in docs/calibration.md from the shipped profiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from llmviewer.core import data
from llmviewer.timing import profile as profiles
from llmviewer.timing.profile import Fit, Profile

PAGE = Path(__file__).resolve().parent / "calibration.md"
BEGIN, END = "<!-- table of kernels: begin -->", "<!-- table of kernels: end -->"
#: Engines launched by the host, one kernel after another, which are not judged as kernels.
HOST = ("-host", "-eager", "-unfused")


def _is(family: str, *variants: str) -> Callable[[Fit], bool]:
    return lambda fit: fit.family == family and (not variants or fit.variant in variants)


def _attention(stage: str, suffix: str) -> Callable[[Fit], bool]:
    def chosen(fit: Fit) -> bool:
        own = next((end for end in ("-mla", "-encoder") if fit.variant.endswith(end)), "")
        return fit.family == f"attention_{stage}" and own == suffix

    return chosen


#: Column -> the fits that it averages.
COLUMNS: dict[str, Callable[[Fit], bool]] = {
    "16-bit products": _is("gemm", "bf16", "fp16"),
    "fp8": _is("gemm", "fp8"),
    "fp8 block": _is("gemm", "fp8-block"),
    "nvfp4": _is("gemm", "fp4"),
    "weight-only": _is("gemm", "w4a16", "w8a16"),
    "prefill": _attention("prefill", ""),
    "decode": _attention("decode", ""),
    "encoder": _attention("prefill", "-encoder"),
    "experts": _is("experts"),
    "MLA prefill": _attention("prefill", "-mla"),
    "MLA decode": _attention("decode", "-mla"),
    "collectives": _is("collective"),
    "elementwise": _is("streaming"),
}


def shipped() -> Iterator[Profile]:
    """All shipped profiles."""
    for path in sorted(data.folder(profiles.FOLDER).glob("*.yaml")):
        yield profiles.load(Path(str(path)))


def cell(fits: list[Fit]) -> str:
    """Mean error, median bias and share inside the 80 % interval, weighted by rows; and the rows."""
    rows = sum(fit.error["all"]["rows"] for fit in fits)
    if not rows:
        return ""

    def mean(name: str) -> float:
        return sum(fit.error["all"].get(name, 0.0) * fit.error["all"]["rows"] for fit in fits) / rows

    return f"{100 * mean('mape'):.1f} ({100 * mean('bias'):+.0f}; {100 * mean('covered80'):.0f}) of {rows:,.0f}"


def table() -> str:
    """The table in Markdown: one row per kind of kernel, one column per chip."""
    found = list(shipped())
    lines = ["| kernels | " + " | ".join(one.chip for one in found) + " |", "|---|" + "--:|" * len(found)]
    for name, chosen in COLUMNS.items():
        cells = []
        for one in found:
            fits = [one.fit(key) for key in one.texts if not key.endswith(HOST)]
            cells.append(cell([fit for fit in fits if chosen(fit)]))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Write the table between its marks in docs/calibration.md."""
    page = PAGE.read_text(encoding="utf-8")
    block = f"{BEGIN}\n{table()}\n{END}"
    PAGE.write_text(
        re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, page, flags=re.S), encoding="utf-8"
    )


if __name__ == "__main__":
    main()

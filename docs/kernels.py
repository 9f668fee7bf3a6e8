"""`make docs`: writes the table of kernel errors in docs/evidence/validation.md from the shipped profiles."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from llmviewer.core import data
from llmviewer.timing import profile as profiles
from llmviewer.timing.profile import Fit, Profile

PAGE = Path(__file__).resolve().parent / "evidence" / "validation.md"
BEGIN, END = "<!-- table of kernels: begin -->", "<!-- table of kernels: end -->"
PROGRESS = (
    "The first release had, on rows that were kept back from it, the mean errors before the arrow, in %; after it\n"
    "stand those above.  The rows are not the same ones."
)
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
    "fp4": _is("gemm", "fp4"),
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

#: Mean errors of the first release in %, on rows that its authors had not seen: chip -> column -> error.
FIRST_RELEASE: dict[str, dict[str, float]] = {
    chip: dict(zip(names.split(","), errors, strict=True))
    for chip, names, errors in (
        (
            "h100-sxm", "16-bit products,fp8,fp8 block,prefill,decode,collectives,experts,MLA decode",
            (6, 8, 8, 8, 8, 9, 48, 51),
        ),
        ("a100-80gb-sxm", "16-bit products,prefill,decode,collectives,experts,MLA decode", (12, 26, 26, 15, 50, 74)),
        (
            "b200", "16-bit products,fp8,fp8 block,fp4,prefill,decode,collectives,experts,MLA decode",
            (13, 15, 36, 39, 24, 38, 26, 50, 67),
        ),
        (
            "l40s", "16-bit products,fp8,fp8 block,prefill,decode,collectives,experts,MLA decode",
            (26, 37, 45, 119, 44, 22, 42, 62),
        ),
        (
            "rtx-pro-6000-server",
            "16-bit products,fp8,fp8 block,fp4,prefill,decode,collectives,experts,MLA decode",
            (20, 34, 23, 38, 114, 38, 164, 35, 52),
        ),
    )
}  # fmt: skip


def shipped() -> Iterator[Profile]:
    """All shipped profiles."""
    for path in sorted(data.folder(profiles.FOLDER).glob("*.yaml")):
        yield profiles.load(Path(str(path)))


def cell(fits: list[Fit]) -> str:
    """Mean error, median bias and share inside the 80 % interval, weighted by rows; and the rows."""
    rows = sum(fit.error["all"]["rows"] for fit in fits)
    if not rows:
        return ""
    error, bias, covered = (100 * mean(fits, name) for name in ("mape", "bias", "covered80"))
    return f"{error:.1f} ({bias:+.0f}; {covered:.0f}) of {rows:,.0f}"


def mean(fits: list[Fit], name: str) -> float:
    """Mean of a score, weighted by rows."""
    rows = sum(fit.error["all"]["rows"] for fit in fits)
    return sum(fit.error["all"].get(name, 0.0) * fit.error["all"]["rows"] for fit in fits) / rows


def fits_of(profile: Profile, column: str) -> list[Fit]:
    """Fits of a profile that a column averages."""
    fits = [profile.fit(key) for key in profile.texts if not key.endswith(HOST)]
    return [fit for fit in fits if COLUMNS[column](fit)]


def table(found: list[Profile]) -> str:
    """The table in Markdown: one row per kind of kernel, one column per chip."""
    lines = ["| kernels | " + " | ".join(one.chip for one in found) + " |", "|---|" + "--:|" * len(found)]
    lines += [f"| {name} | " + " | ".join(cell(fits_of(one, name)) for one in found) + " |" for name in COLUMNS]
    return "\n".join(lines)


def progress(found: list[Profile]) -> str:
    """Mean errors of the first release and of this one in Markdown, one column per chip."""
    known = [one for one in found if one.chip in FIRST_RELEASE]
    lines = ["| kernels | " + " | ".join(one.chip for one in known) + " |", "|---|" + "--:|" * len(known)]
    for name in COLUMNS:
        pairs = [
            f"{FIRST_RELEASE[one.chip][name]} → {100 * mean(fits_of(one, name), 'mape'):.1f}"
            if name in FIRST_RELEASE[one.chip]
            else ""
            for one in known
        ]
        if any(pairs):
            lines.append(f"| {name} | " + " | ".join(pairs) + " |")
    return "\n".join(lines)


def block() -> str:
    """Both tables, as they stand between the marks."""
    found = list(shipped())
    return f"{table(found)}\n\n{PROGRESS}\n\n{progress(found)}"


def main() -> None:
    """Write both tables between their marks in docs/evidence/validation.md."""
    page = PAGE.read_text(encoding="utf-8")
    text = f"{BEGIN}\n{block()}\n{END}"
    PAGE.write_text(
        re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: text, page, flags=re.S), encoding="utf-8"
    )


if __name__ == "__main__":
    main()

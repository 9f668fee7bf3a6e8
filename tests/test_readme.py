"""The README: it is short, and its figures are those of the pages that prove them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE = ROOT / "docs" / "evidence"
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Page of docs/evidence/ -> the row of the README that names it.
TRUST = {
    page: row
    for row in README.partition("## Why trust it\n")[2].partition("\n## ")[0].splitlines()
    for page in re.findall(r"\(docs/evidence/(\w+)\.md\)", row)
}


def page(name: str) -> str:
    return (EVIDENCE / f"{name}.md").read_text(encoding="utf-8")


def ledger() -> list[str]:
    """Figures of the table by kind: those of all, and the share of the kind whose intervals hold least."""
    table = re.findall(r"^\| .* \|( \d+ \|)((?: \d+% \|){5})$", page("ledger"), flags=re.MULTILINE)
    rows = [[number.strip("| "), *re.findall(r"\d+%", shares)] for number, shares in table]
    number, median, _, roofline, inside, _ = rows[-1]
    least = min((row[4] for row in rows), key=lambda text: int(text[:-1]))
    return [f"{number} figures", f"error {median}", f"roofline: {roofline}", f"{inside} lie", f"{least} on"]


def certificate() -> list[str]:
    """Models whose ratios to PyTorch are all printed as 1.000."""
    compared = re.findall(r"^\| \S+ \|.* \| (1\.000) \|.*\|$", page("certificate"), flags=re.MULTILINE)
    return [f"{len(compared)} models"]


def decisions() -> list[str]:
    text = page("decisions")
    (problems,) = re.findall(r"^\| \d+ \| (\d+) \| [\d,]+ \|", text, flags=re.MULTILINE)
    (row,) = re.findall(r"^\| within the limits with probability 0.9 \| (.*) \|$", text, flags=re.MULTILINE)
    meets, best = row.split(" | ")
    return [f"{problems} problems", f"in {meets}", f"{best} of the best"]


def coverage() -> list[str]:
    """Methods and systems that the documents name."""
    text = (ROOT / "docs" / "coverage.yaml").read_text(encoding="utf-8")
    rows = [row for section in yaml.safe_load(text)["sections"] for row in section["rows"]]
    named = [names for names, answer, *_ in rows if not answer.startswith("beside the documents")]
    return [f"{sum(len(names.split(' / ')) for names in named)} methods"]


def proof() -> list[str]:
    return [re.findall(r"^(\d+ of \d+) faults", page("proof"), flags=re.MULTILINE)[0]]


@pytest.mark.parametrize("figures", [ledger, certificate, decisions, coverage, proof], ids=lambda one: one.__name__)
def test_figures_of_the_readme_are_those_of_the_page(figures: object) -> None:
    assert callable(figures)
    row = TRUST[figures.__name__].replace(" %", "%")
    assert [text for text in figures() if text.replace(" %", "%") not in row] == []


def test_trust_is_five_rows_and_the_readme_is_short() -> None:
    assert len(TRUST) == 5
    assert len(README.splitlines()) <= 120

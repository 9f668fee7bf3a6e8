"""Rewrites the tables of docs/evidence/decisions.md from published figures: `python docs/decisions.py FILE...`."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from pages import rewrite

from llmviewer.calibrate import decisions, e2e
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.reports import format as fmt

PAGE = Path(__file__).parent / "evidence" / "decisions.md"
HEAD = "| pick by | meets both limits | of the best possible |\n|---|--:|--:|\n"
COUNTS = "| runs | problems | pairs more than 10 % apart | predicted in the right order |\n|--:|--:|--:|--:|\n"
MODELS = "| model | problems | meets both limits | of the best possible |\n|---|--:|--:|--:|\n"
#: Heading of a rule -> its times and its pick.
RULES = {
    "prediction within the limits": ("predicted", decisions.by_prediction),
    "within the limits with probability 0.8": ("predicted", decisions.by_chance(0.8)),
    "within the limits with probability 0.9": ("predicted", decisions.by_chance(0.9)),
    "roofline of the data sheet within the limits": ("ideal", decisions.by_prediction),
}


def tables(rows: pd.DataFrame) -> dict[str, str]:
    """Parts of the page by name.  rows: with predictions."""
    runs = decisions.runs_of(rows)
    by_times = {times: list(decisions.problems_of(runs, times)) for times in ("predicted", "ideal")}
    count, order = decisions.order_score(runs)
    problems = by_times["predicted"]
    lines = [
        f"| {name} | {fmt.percent(met)} | {fmt.percent(share)} |\n"
        for name, (times, pick) in RULES.items()
        for met, share in (decisions.score(by_times[times], pick),)
    ]
    counts = f"| {len(runs)} | {len(problems)} | {count:,} | {fmt.percent(order)} |\n"
    return {
        "counts": COUNTS + counts,
        "scores": HEAD + "".join(lines),
        "models": MODELS + "".join(_models(problems)),
    }


def _models(problems: list[decisions.Problem]) -> list[str]:
    lines = []
    for model in sorted({str(one.name[0]) for one in problems}):
        own = [one for one in problems if one.name[0] == model]
        met, share = decisions.score(own, decisions.by_chance(0.9))
        lines.append(f"| {model} | {len(own)} | {fmt.percent(met)} | {fmt.percent(share)} |\n")
    return lines


def main(paths: list[Path]) -> None:
    """Rewrite the tables of the page."""
    rows = pd.concat([read_table(path) for path in paths], ignore_index=True)
    served = rows[rows["metric"].isin(["ttft_ms", "tpot_ms"])].reset_index(drop=True)
    rewrite(PAGE, tables(e2e.predict(served, PredictionOptions())))


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])

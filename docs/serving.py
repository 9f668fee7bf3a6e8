"""Rewrites the tables of docs/evidence/serving.md from published figures: `python docs/serving.py FILE...`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from pages import rewrite

from llmviewer.calibrate import e2e, systems
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.reports import format as fmt

PAGE = Path(__file__).parent / "evidence" / "serving.md"
#: Columns that name a line of the table.
GROUPS = ["from", "device", "preset", "metric"]
HEAD = (
    "| source | chip | preset | figure | rows | MAPE | median | bias | in the 80 % interval |\n"
    "|---|---|---|---|--:|--:|--:|--:|--:|\n"
)
LEFT_OUT_HEAD = "| rows | why |\n|--:|---|\n"


def predicted(paths: Sequence[Path]) -> pd.DataFrame:
    """Rows of all tables with predictions, the source of each as one word, and the reason for rows left out."""
    tables = [read_table(path) for path in paths]
    makers = [systems.predict if systems.is_system_table(table.columns) else e2e.predict for table in tables]
    made = [predict(table, PredictionOptions()) for predict, table in zip(makers, tables, strict=True)]
    rows = pd.concat(made, ignore_index=True)
    benchmark = rows["note"].astype(str).str.contains("InferenceX").map({True: "InferenceX", False: ""})
    rows["from"] = benchmark.where(benchmark.ne(""), rows["source"].astype(str).str.split().str[0])
    return rows


def scores(rows: pd.DataFrame) -> str:
    """Table of errors by source, chip, preset and figure."""
    known = rows[rows["predicted"].notna()].copy()
    known["ratio"] = known["predicted"] / known["value"]
    known["within"] = known["low80"].le(known["value"]) & known["value"].le(known["high80"])
    return HEAD + "".join(
        f"| {' | '.join(map(str, names))} | {len(part)} | {fmt.percent((part['ratio'] - 1.0).abs().mean())} "
        f"| {fmt.percent((part['ratio'] - 1.0).abs().median())} | {fmt.signed(part['ratio'].median() - 1.0)} "
        f"| {fmt.percent(part['within'].mean())} |\n"
        for names, part in [*known.groupby(GROUPS), (("all", "", "", ""), known)]
    )


def left_out(rows: pd.DataFrame) -> str:
    """Table of the rows without prediction, by reason without its suggestion."""
    reasons = rows.loc[rows["predicted"].isna(), "reason"].map(lambda reason: re.split(r"[;(]", str(reason))[0].strip())
    return LEFT_OUT_HEAD + "".join(f"| {count} | {reason} |\n" for reason, count in reasons.value_counts().items())


def main(paths: Sequence[Path]) -> None:
    """Rewrite the tables of the page."""
    rows = predicted(paths)
    rewrite(PAGE, {"scores": scores(rows), "left out": left_out(rows)})


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])

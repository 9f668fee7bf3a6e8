"""Rewrites the tables of docs/reference/memory.md from a table of start-up logs: `python docs/memory.py FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pages import rewrite

from llmviewer.calibrate import engine_logs
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.log_scores import log_scores
from llmviewer.core import data
from llmviewer.reports import format as fmt
from llmviewer.timing import engine

if TYPE_CHECKING:
    import pandas as pd

PAGE = Path(__file__).parent / "reference" / "memory.md"
HEAD = "| engine | chip | quantity | on | rows | MAPE | bias | optimism |\n|---|---|---|---|---|---|---|---|\n"
HELD_OUT_HEAD = "| quantity | on | rows | MAPE | bias | optimism |\n|---|---|---|---|---|---|\n"
LEFT_OUT_HEAD = "| rows | why |\n|---|---|\n"


def scores(predictions: pd.DataFrame) -> str:
    """Table of errors by engine, chip and quantity; no chip changes the weights and cache of llama.cpp."""
    alike = predictions["engine"].eq("llama.cpp")
    shown = predictions.assign(gpu=predictions["gpu"].astype(str).where(~alike, "all"))
    return HEAD + "".join(
        f"| {one.engine} | {one.device} | {one.quantity} | {one.on} | {one.rows} | {fmt.percent(one.mape)} "
        f"| {fmt.signed(one.bias)} | {fmt.percent(one.optimism)} |\n"
        for one in log_scores(shown)
    )


def left_out(predictions: pd.DataFrame) -> str:
    """Table of the rows without prediction, by reason."""
    reasons = predictions.loc[predictions["predicted"].isna(), "reason"].value_counts()
    return LEFT_OUT_HEAD + "".join(f"| {count} | {reason} |\n" for reason, count in reasons.items())


def held_out() -> str:
    """Table of the errors of vLLM's rows under constants fitted without their model."""
    errors = data.read_yaml(data.folder(engine.FOLDER) / "vllm.yaml")["memory"]["error"]
    return HELD_OUT_HEAD + "".join(
        f"| {quantity} | {on} | {found['rows']} | {fmt.percent(found['mape'])} | {fmt.signed(found['bias'])} "
        f"| {fmt.percent(found['optimism'])} |\n"
        for quantity, by in errors.items()
        for on, found in by.items()
    )


def main(path: Path) -> None:
    """Rewrite the tables of the page."""
    predictions = engine_logs.predict(read_table(path))
    rewrite(PAGE, {"scores": scores(predictions), "held out": held_out(), "left out": left_out(predictions)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))

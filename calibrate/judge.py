"""Predict tables of any kind and score them in one document, for `calibrate validate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import e2e, engine_logs, predict, systems, validate, whole
from llmviewer.calibrate.e2e_runs import RATE_METRICS
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.log_scores import log_scores
from llmviewer.calibrate.readers import files, torch_profiler
from llmviewer.calibrate.readers.run import Stated
from llmviewer.calibrate.sources import WHOLE_TABLES, is_samples, read
from llmviewer.calibrate.tables import TABLES
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs as chips
from llmviewer.timing.profile import Profile

if TYPE_CHECKING:
    import pandas as pd


#: Most figures of whole requests that are listed one by one.
MAX_LISTED = 40
#: Columns of end-to-end tables that a listed figure shows as they are.
LISTED_COLUMNS = ("model", "device", "preset", "layout", "batch", "input_len", "output_len", "metric", "basis", "note")
#: Answers by length [tokens]: the most of each class, the last one without limit.
OUTPUT_LENGTHS = {"to 256": 256.0, "to 2048": 2048.0, "above 2048": float("inf")}


def predict_tables(
    paths: Sequence[Path],
    hardware: str,
    profile: Profile | None,
    stated: Stated | None = None,
    *,
    lent: bool = False,
) -> list[pd.DataFrame]:
    """Every table with predictions added; no row is dropped.  Raises UserError for an unknown kind of table.

    Samples of `calibrate run` contain tables of kernels, layers and models.
    stated: what files of benchmark programs do not state; they alone take it.  lent: see PredictionOptions.
    """
    if hardware:
        chips.load(hardware)  # raise once here instead of a reason in every row
    options = predict.PredictionOptions(hardware=hardware, profile=profile, lent=lent)
    stated = stated or Stated(hardware=hardware)
    profiled = [path for path in paths if torch_profiler.is_table(path)]
    benchmarks = [path for path in paths if path in profiled or files.is_benchmark(path)]
    given = [name for name, value in asdict(stated).items() if value and name != "hardware"]
    if given and not benchmarks:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise UserError(f"{names}: only files of benchmark programs take it; the columns of a table state it")
    predictions: list[pd.DataFrame] = []
    for path in paths:
        if path in profiled:
            predictions.append(torch_profiler.predict(path, stated, profile))
        else:
            own = path in benchmarks
            predictions += [_predict_runs(path, stated, profile)] if own else _predict_file(path, options)
    return predictions


def _predict_runs(path: Path, stated: Stated, profile: Profile | None) -> pd.DataFrame:
    """The figures of a benchmark file with predictions.  Raises UserError if there is none for any of them."""
    import pandas as pd

    found = files.table(path, stated)
    frame = e2e.predict(found.frame, predict.PredictionOptions(profile=profile, impossible=True))
    if frame["predicted"].isna().all():
        raise UserError(str(frame["reason"].iloc[0]))
    rows = [{"reason": reason} for reason, runs in found.left_out.items() for _ in range(runs)]
    return pd.concat([frame, pd.DataFrame(rows)], ignore_index=True) if rows else frame


def _predict_file(path: Path, options: predict.PredictionOptions) -> Iterator[pd.DataFrame]:
    if not is_samples(path):
        frame = read_table(path)
        if engine_logs.is_log_table(frame.columns):
            yield engine_logs.predict(frame)
        elif e2e.is_request_table(frame.columns):
            yield e2e.predict(frame, options)
        elif systems.is_system_table(frame.columns):
            yield systems.predict(frame, options)
        else:
            yield predict.predict(frame, options)
        return
    source = read(path)
    for _, frame in source.kernels:
        yield predict.predict(frame, options).drop(columns="samples_us", errors="ignore")
    for name in WHOLE_TABLES:
        if name in source.tables:
            yield whole.without_samples(whole.predict(source.tables[name], name, options))
    for name, frame in source.tables.items():
        if name not in (*TABLES, *WHOLE_TABLES):
            yield whole.without_predictions(frame, f"rows of {name} measure the device, not a kernel of a model")


def document(predictions: Sequence[pd.DataFrame]) -> dict[str, Any]:
    """JSON document with the scores of all tables, and the total over all rows."""
    import pandas as pd

    logs = [frame for frame in predictions if engine_logs.is_log_table(frame.columns)]
    predictions = [frame for frame in predictions if not engine_logs.is_log_table(frame.columns)]
    scores = validate.Validation(scores=(), total=None, left_out={}).document()
    if predictions:
        joined = pd.concat([_with_score_columns(frame) for frame in predictions], ignore_index=True)
        scores = validate.validate(joined, ("device", "counted_as", "regime"), validate.KERNEL_COLUMNS).document()
    if logs:
        joined = pd.concat(logs, ignore_index=True)
        scores["memory"] = [asdict(score) for score in log_scores(joined)]
        reasons = joined.loc[joined["predicted"].isna(), "reason"].value_counts()
        scores["not_predicted"] |= {str(reason): int(count) for reason, count in reasons.items()}
    requests = [frame for frame in predictions if e2e.is_request_table(frame.columns)]
    tables = [frame for frame in requests if "layout" in frame.columns]  # benchmarks and profiles have none
    scores["layouts"] = [*_layout_scores(pd.concat(tables))] if tables else []
    figures = [row for frame in requests for row in _figures(frame)]
    return {**scores, "figures": figures if len(figures) <= MAX_LISTED else []}


def _layout_scores(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Scores of whole requests by layout of the devices, length of the answers and metric."""
    import pandas as pd

    bounds = [-1.0, *OUTPUT_LENGTHS.values()]
    outputs = pd.cut(pd.to_numeric(frame["output_len"], errors="coerce"), bounds, labels=list(OUTPUT_LENGTHS))
    rows = frame.rename(columns=e2e.AS_KERNELS).assign(outputs=outputs.astype(str))
    for score in validate.validate(rows, ("layout", "outputs", "metric"), validate.KERNEL_COLUMNS).scores:
        named = {"layout": score.device, "output_tokens": score.kernel, "metric": score.regime}
        yield named | {name: value for name, value in asdict(score).items() if name not in validate.KEYS}


def _figures(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Predicted figures of whole requests, one by one, in the unit of their metric.

    verdict: `slower` or `faster` than the 80 % interval allows, or `as predicted`.
    """
    for row in frame[frame["predicted"].notna()].to_dict("records"):
        measured, low, high = (float(row[name]) for name in ("value", "low80", "high80"))
        above, below = ("faster", "slower") if row["metric"] in RATE_METRICS else ("slower", "faster")
        yield {
            **{name: row[name] for name in LISTED_COLUMNS if name in row and row[name] == row[name]},
            "measured": measured,
            "predicted": float(row["predicted"]),
            "interval_80": [low, high],
            "ideal": float(row["ideal"]),
            "difference": measured / float(row["predicted"]) - 1.0,
            "verdict": above if measured > high else below if measured < low else "as predicted",
        }


def _with_score_columns(frame: pd.DataFrame) -> pd.DataFrame:
    if e2e.is_request_table(frame.columns):
        return frame.rename(columns=e2e.AS_KERNELS).assign(counted_as=frame["preset"], regime=frame["metric"])
    is_kernel = "counted_as" not in frame.columns
    return frame.assign(counted_as=predict.kernel_names(frame)) if is_kernel else frame

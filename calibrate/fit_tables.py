"""Fit the kernel families of one chip to its measured tables, in order of dependency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate import fit as fitting
from llmviewer.calibrate import table_file
from llmviewer.calibrate.rows import tuned
from llmviewer.calibrate.tables import RowGroup, SkippedRows, row_groups, table_of, with_default_columns
from llmviewer.core.counts import present
from llmviewer.core.errors import UserError, printable
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import GemmShape
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.profile import Fit
from llmviewer.timing.roofline import Rates, ideal

if TYPE_CHECKING:
    import pandas as pd

#: Streaming kernels come first: 8-bit GEMMs include a conversion, which is one of them.
FIT_ORDER = ("streaming", "gemm", "attention_prefill", "attention_decode", "collective", "experts")
#: Numbers of rows of one matrix, per factor of two, that are fitted of a table with many.
STEPS = 16.0
ALIKE = f"products of as many rows, within 2^(1/{STEPS:.0f}), as another one of the same matrix"
#: Share of the data sheet's time below which a product's time is wrong: other kernels may find their data in a cache.
IMPOSSIBLE = 0.9
TOO_FAST = f"products in less than {IMPOSSIBLE:g} of the data sheet's time, wrong in their source"
#: Share of a kind's rows that must be stable for its unstable rows to be left out.
MIN_STABLE_SHARE = 0.5
#: Largest mean error on held-out rows of a fit that a profile stores: that of a prediction of zero.
MAX_ERROR = 1.0


def read_table(path: Path) -> pd.DataFrame:
    """Read a CSV or Parquet table.  Raises UserError with the reason in one line."""
    frame = tuned.translated(table_file.read(path))
    if frame.empty:
        raise UserError(f"'{printable(path)}' has no rows")
    return with_default_columns(frame)


@dataclass(slots=True, kw_only=True)
class FitData:
    """Samples of one chip in FIT_ORDER.

    left_out: reason -> rows.  too_few: those among them of kinds with fewer than MIN_ROWS.
    unstable: fit -> rows that are fitted although unstable.
    """

    samples: list[fitting.Sample] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    unstable: Counter[str] = field(default_factory=Counter)
    too_few: Counter[str] = field(default_factory=Counter)


def gather(tables: Iterable[pd.DataFrame], chip: Chip) -> FitData:
    """Samples from the rows of this chip; unstable rows are left out if enough stable ones remain."""
    found = FitData()
    rows, folds = [], []
    for frame in tables:
        table = table_of(frame.columns)
        few = _thinned(frame, found)
        row_folds = fitting.folds_of(few, table)
        for part in row_groups(_rows_to_fit(few, chip, found), chip):
            assert isinstance(part, RowGroup)  # _rows_to_fit has removed skipped rows
            rows.append(part)
            folds.append(row_folds[few.index.get_indexer(part.index)])
    for sample in fitting.samples(rows, folds):
        count = sum(map(len, sample.folds))
        if count >= fitting.MIN_ROWS:
            found.samples.append(sample)
        else:
            found.left_out[f"{sample.key}: fewer than {fitting.MIN_ROWS} rows"] += count
            found.too_few[sample.key] += count
    found.samples.sort(key=lambda sample: (FIT_ORDER.index(sample.family), sample.variant, sample.engine))
    return found


def _thinned(frame: pd.DataFrame, found: FitData) -> pd.DataFrame:
    """Products of one matrix that are held out together, one in each step of their rows: a few matrices of hundreds of
    rows would decide the fit, and long products those of few rows."""
    if not {"fold", "m"} <= {*frame.columns}:
        return frame
    steps = frame.assign(step=np.round(STEPS * np.log2(frame["m"])))
    again = steps.duplicated(["device", "engine", "dtype", "fold", "step"])
    found.left_out += Counter({ALIKE: int(again.sum())})
    return frame[~again]


def _rows_to_fit(frame: pd.DataFrame, chip: Chip, found: FitData) -> pd.DataFrame:
    """Rows that a formula describes, without the unstable ones of each kind unless most are unstable.

    On a busy machine most rows are unstable: their medians are still more informative than a few stable rows.
    """
    parts: dict[tuple[str, str, str], list[Any]] = {}
    for part in row_groups(frame, chip):
        if isinstance(part, SkippedRows):
            found.left_out[part.reason] += len(part.index)
            continue
        try:
            bound, _ = fitting.predicted_seconds(part, ideal)
        except UserError as error:  # a measured chip without products of their dtype
            found.left_out[error.marked] += len(part.index)
            continue
        wrong = (part.measured_s < IMPOSSIBLE * bound) & (part.table in ("gemm", "moe"))
        found.left_out += Counter({TOO_FAST: int(wrong.sum())})
        parts.setdefault(fitting.fit_key(part), []).append(part.index[~wrong])
    unstable = frame.index[frame["stable"].eq(False)] if "stable" in frame.columns else frame.index[:0]
    selected: list[Any] = []
    for key, indices in parts.items():
        labels = indices[0].append(indices[1:])
        unstable_labels = labels.intersection(unstable, sort=False)
        stable_labels = labels.difference(unstable_labels, sort=False)
        if len(unstable_labels) and len(stable_labels) >= max(fitting.MIN_ROWS, MIN_STABLE_SHARE * len(labels)):
            found.left_out[f"{'/'.join(key)}: marked unstable"] += len(unstable_labels)
            selected.append(stable_labels)
            continue
        if len(unstable_labels) and len(labels) >= fitting.MIN_ROWS:
            found.unstable["/".join(key)] += len(unstable_labels)
        selected.append(labels)
    return frame.loc[[label for labels in selected for label in labels]]


def fit_all(samples: Sequence[fitting.Sample]) -> Iterator[Fit]:
    """Yield one fit per sample; each may use earlier fits of the same engine, unless they are absurd."""
    done: list[Fit] = []
    for sample in samples:
        found = fitting.fit(sample, _from_earlier_fits(done, sample.engine))
        if _holds_more(sample):
            found = with_divided_floor(found, done)
        if not is_absurd(found):
            done.append(found)
        yield found


def _holds_more(sample: fitting.Sample) -> bool:
    """Whether the rows are products whose time includes the conversion of their input, or time stamps."""
    shapes = (rows.operators[-1].shape for rows in sample.rows)
    return any(isinstance(shape, GemmShape) and present(shape.converts + shape.stamped) for shape in shapes)


def with_divided_floor(fit: Fit, others: Iterable[Fit]) -> Fit:
    """The fit with the floor of the engine's 16-bit products; the rest is that of the conversion or the time stamps.

    Predictions of rows stay as they are; a model's products, whose inputs are converted before and which are launched
    one after another, take less time.
    """
    plain = [other.constants["floor"] for other in others if _is_plain(other) and other.engine == fit.engine]
    floor = fit.constants["floor"] + fit.constants["convert_floor"]
    own = min([floor, *plain])
    divided = {"floor": own, "convert_floor": float(f"{floor - own:.5g}")}
    return replace(fit, constants={**fit.constants, **divided})


def _is_plain(fit: Fit) -> bool:
    return (fit.family, fit.variant) in (("gemm", "bf16"), ("gemm", "fp16"))


def is_absurd(fit: Fit) -> bool:
    """Whether the mean error on held-out rows is above MAX_ERROR."""
    return fit.error["all"]["mape"] > MAX_ERROR


def _from_earlier_fits(done: Sequence[Fit], engine: str) -> fitting.Efficiency:
    """Efficiency from earlier fits, those of this engine first, and data-sheet rates for the rest."""

    def efficiency(operator: Operator, chip: Chip) -> Rates:
        name = families_of(operator)[0]
        variant = FAMILIES[name].variant(operator)
        known = [fit for fit in done if (fit.family, fit.variant) == (name, variant)]
        if not known:
            return ideal(operator, chip)
        chosen = next((fit for fit in known if fit.engine == engine), known[0])
        return FAMILIES[name].rates(operator, chip, chosen.constants)

    return efficiency

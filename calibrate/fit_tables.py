"""Measured tables of one chip -> its profile: families in the order in which one needs another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import fit as fitting
from llmviewer.calibrate.tables import LeftOut, Rows, completed, parts_of, table_of
from llmviewer.core.errors import UserError, shown
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.timing.efficiency import Rates, ideal
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.profile import Fit

if TYPE_CHECKING:
    import pandas as pd

#: Conversions are streams and stand before 8-bit products: streams are fitted first.
ORDER = ("streaming", "gemm", "attention_prefill", "attention_decode", "collective")
#: Share of the rows of a kind that must be stable for the others to be left out.
LEAST_STEADY = 0.5


def read_table(path: Path) -> pd.DataFrame:
    """A table in CSV or Parquet.  Raises UserError: one line why not."""
    import pandas as pd

    if not path.is_file():
        raise UserError(f"no file '{shown(path)}'")
    try:
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError as error:
        raise UserError("reading Parquet needs pyarrow: pip install 'llmviewer[calibrate]'") from error
    except Exception as error:
        raise UserError(f"cannot read '{shown(path)}' as a table: {shown(error, 160)}") from error
    if frame.empty:
        raise UserError(f"'{shown(path)}' has no rows")
    return completed(frame)


@dataclass(slots=True, kw_only=True)
class Gathered:
    """What there is to fit for one chip, in ORDER; rows left out by reason; unstable ones that are fitted, by fit."""

    samples: list[fitting.Sample] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    unstable: Counter[str] = field(default_factory=Counter)


def gather(tables: Iterable[pd.DataFrame], chip: Chip) -> Gathered:
    """Rows of this chip -> samples.  Unstable rows are left out where enough others are there."""
    found = Gathered()
    rows, folds = [], []
    for frame in tables:
        table = table_of(frame.columns)
        marks = fitting.folds_of(frame, table)
        for part in parts_of(_steady(frame, chip, found), chip):
            assert isinstance(part, Rows)  # the others are left out already
            rows.append(part)
            folds.append(marks[frame.index.get_indexer(part.index)])
    for sample in fitting.samples(rows, folds):
        count = sum(map(len, sample.folds))
        if count >= fitting.LEAST_ROWS:
            found.samples.append(sample)
        else:
            few = f"{sample.family}/{sample.variant}/{sample.engine}: fewer than {fitting.LEAST_ROWS} rows"
            found.left_out[few] += count
    found.samples.sort(key=lambda sample: (ORDER.index(sample.family), sample.variant, sample.engine))
    return found


def _steady(frame: pd.DataFrame, chip: Chip, found: Gathered) -> pd.DataFrame:
    """The rows to fit on: what a formula describes, without the unstable ones of each kind unless most are.

    A machine that is never quiet marks most rows: their medians still say more than a handful of others.
    """
    parts: dict[tuple[str, str, str], list[Any]] = {}
    for part in parts_of(frame, chip):
        if isinstance(part, LeftOut):
            found.left_out[part.reason] += len(part.index)
        else:
            parts.setdefault(fitting.key_of(part), []).append(part.index)
    unstable = frame.index[frame["stable"].eq(False)] if "stable" in frame.columns else frame.index[:0]
    kept: list[Any] = []
    for key, indices in parts.items():
        labels = indices[0].append(indices[1:])
        shaky = labels.intersection(unstable, sort=False)
        steady = labels.difference(shaky, sort=False)
        if len(shaky) and len(steady) >= max(fitting.LEAST_ROWS, LEAST_STEADY * len(labels)):
            found.left_out[f"{'/'.join(key)}: marked unstable"] += len(shaky)
            kept.append(steady)
            continue
        if len(shaky) and len(labels) >= fitting.LEAST_ROWS:
            found.unstable["/".join(key)] += len(shaky)
        kept.append(labels)
    return frame.loc[[label for labels in kept for label in labels]]


def fits(samples: Sequence[fitting.Sample]) -> Iterator[Fit]:
    """Fits one after another; each may use those before it of the same engine."""
    done: list[Fit] = []
    for sample in samples:
        done.append(fitting.fit(sample, _so_far(done, sample.engine)))
        yield done[-1]


def _so_far(done: Sequence[Fit], engine: str) -> fitting.Efficiency:
    """What is fitted already, this engine's own first; the data sheet for the rest."""

    def efficiency(operator: Operator, chip: Chip) -> Rates:
        name = families_of(operator)[0]
        variant = FAMILIES[name].variant(operator)
        known = [fit for fit in done if (fit.family, fit.variant) == (name, variant)]
        if not known:
            return ideal(operator, chip)
        chosen = next((fit for fit in known if fit.engine == engine), known[0])
        return FAMILIES[name].rates(operator, chip, chosen.constants)

    return efficiency

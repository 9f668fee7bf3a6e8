"""Measured tables of one chip -> its profile: families in the order in which one needs another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from calibrate import fit as fitting
from calibrate.tables import rows_of, table_of
from llmviewer.chip import Chip
from llmviewer.efficiency import Rates, ideal
from llmviewer.errors import UserError, shown
from llmviewer.ir import Operator
from llmviewer.kernels.families import FAMILIES, families_of
from llmviewer.profile import Fit

if TYPE_CHECKING:
    import pandas as pd

#: Conversions are streams and stand before 8-bit products: streams are fitted first.
ORDER = ("streaming", "gemm", "attention_prefill", "attention_decode", "collective")


def read_table(path: Path) -> pd.DataFrame:
    """A table in CSV or Parquet.  Raises UserError: one line why not."""
    import pandas as pd

    if not path.is_file():
        raise UserError(f"no file '{shown(path)}'")
    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError as error:
        raise UserError("reading Parquet needs pyarrow: pip install 'llmviewer[calibrate]'") from error
    except Exception as error:
        raise UserError(f"cannot read '{shown(path)}' as a table: {shown(error, 160)}") from error


def samples_of(tables: Sequence[pd.DataFrame], chip: Chip) -> list[fitting.Sample]:
    """What there is to fit for one chip, in ORDER."""
    found: list[fitting.Sample] = []
    for frame in tables:
        table = table_of(frame.columns)
        folds = fitting.folds_of(frame, table)
        rows = [item for item in rows_of(frame) if item.chip.name == chip.name]
        found += fitting.samples(rows, [folds[frame.index.get_indexer(item.index)] for item in rows])
    enough = [s for s in found if sum(map(len, s.folds)) >= fitting.LEAST_ROWS]
    return sorted(enough, key=lambda sample: (ORDER.index(sample.family), sample.variant, sample.engine))


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

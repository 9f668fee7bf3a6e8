"""Rewrites the table of own profiles in docs/evidence/validation.md: `python docs/own_profile.py FOLDER...`.

FOLDER: measured tables of serving engines' kernels (Parquet or CSV), which a user's torch rows have to predict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from pages import rewrite

from llmviewer.calibrate import plan, profile_file, sizes
from llmviewer.calibrate.against import against
from llmviewer.calibrate.fit import fit_key, predicted_seconds, with_constants
from llmviewer.calibrate.fit_tables import read_table
from llmviewer.calibrate.predict import priced
from llmviewer.calibrate.tables import RowGroup, row_groups, table_of
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.reports import format as fmt
from llmviewer.timing import profile as profiles
from llmviewer.timing.calibrated import Calibrated, calibrated
from llmviewer.timing.lending import UNLENT_SUFFIXES
from llmviewer.timing.profile import Fit, Profile
from llmviewer.timing.scaling import MOVED, TIMED_BY_OTHERS, TORCH

PAGE = Path(__file__).resolve().parent / "evidence" / "validation.md"
#: Comment before the table.
MARK = "table of own profiles"
#: Version of torch that timed the shipped profiles' rows.
VERSION = "2.11.0"
#: Tables whose kernels are of families in MOVED.
TABLES_OF_FAMILIES = ("gemm", "attention_prefill", "attention_decode", "elementwise")
GROUPS = ["chip", "donor", "kernels"]
HEAD = "| chip | constants of | kernels | rows | mean error | in the 80 % interval |\n|---|---|---|--:|--:|--:|\n"


def own_profile(chip: Chip) -> Profile | None:
    """Torch's fits of a shipped profile, as a user of that chip alone would have them; None if it has none.

    Their ratios to other chips are those of the shapes of `calibrate run`, with the times that these fits predict.
    """
    source = profiles.shipped(chip.name)
    assert source is not None
    named = {one: f"{kind}/{TORCH}" for kind, one in TIMED_BY_OTHERS.get(chip.name, {}).items()}
    keys = {key: named.get(key, key) for key in source.texts if key.endswith(f"/{TORCH}") or key in named}
    fits = [replace(source.fit(key), engine=TORCH) for key in keys]
    shapes = {fit.key: shapes_of(fit, chip) for fit in fits}
    fits = [replace(fit, against=against(fit, shapes[fit.key], chip, VERSION)) for fit in fits if shapes[fit.key]]
    text = profile_file.text_of(chip, "torch's kernels alone", {"origin": source.path}, fits)
    return profiles.parse(text, Path("mine.yaml")) if fits else None


def shapes_of(fit: Fit, chip: Chip) -> list[RowGroup]:
    """The shapes of `calibrate run` that a fit describes, with the times that it predicts."""
    efficiency = with_constants(fit.family, fit.constants, calibrated(chip, TORCH))
    rows = [part for part in _planned(chip) if fit_key(part) == (fit.family, fit.variant, TORCH)]
    return [replace(part, measured_s=predicted_seconds(part, efficiency)[0]) for part in rows]


@cache
def _planned(chip: Chip) -> list[RowGroup]:
    """The kernels of `calibrate run`, without times."""
    found = []
    cases = [case for case in plan.cases(sizes.size_named("cuda", "default")) if case.table in TABLES_OF_FAMILIES]
    for table in TABLES_OF_FAMILIES:
        columns = [{**case.columns, "device": chip.name, "engine": TORCH} for case in cases if case.table == table]
        frame = pd.DataFrame(columns).assign(latency_us=1.0, source="plan")
        found += [part for part in row_groups(usable_rows(frame, table)[0]) if isinstance(part, RowGroup)]
    return found


def measured(folders: Sequence[Path]) -> Iterator[RowGroup]:
    """Rows of serving engines of the families that own profiles scale."""
    for path in sorted(path for folder in folders for path in folder.glob("*.parquet")):
        frame = read_table(path)
        for part in row_groups(usable_rows(frame, table_of(frame.columns))[0]):
            if isinstance(part, RowGroup) and fit_key(part)[0] in MOVED and not part.engine.endswith(UNLENT_SUFFIXES):
                yield part


def scored(rows: RowGroup, own: Profile, donor: Profile) -> pd.DataFrame:
    """Errors, and whether the interval holds them, with the constants of a donor and with an own profile beside it."""
    found = {"chip": rows.chip.name, "donor": donor.chip, "kernels": "/".join(fit_key(rows)[:2])}
    scores: dict[str, object] = {}
    for name, sources in (("before", (donor,)), ("after", (own, donor))):
        efficiency = Calibrated(
            sources=sources, user_profiles=len(sources) - 1, engine=rows.engine, chip=rows.chip.name,
            generation=rows.chip.generation, maker=rows.chip.maker,
        )  # fmt: skip
        predicted, bounds = priced(rows, efficiency)
        inside = (predicted * bounds[1] <= rows.measured_s) & (rows.measured_s <= predicted * bounds[2])
        scores |= {f"error_{name}": np.abs(predicted / rows.measured_s - 1.0), f"inside_{name}": inside}
    return pd.DataFrame(scores).assign(**found)


def scores(folders: Sequence[Path]) -> pd.DataFrame:
    """Scores of all rows of every chip with torch's fits, by every other shipped profile."""
    owners = {name: own_profile(specs.load(name)) for name in ("a100-80gb-sxm", "h100-sxm", "h200")}
    donors = [profile for name in (*profiles.DONORS["blackwell"], "l40s", "rtx-pro-6000-server")
              if (profile := profiles.shipped(name)) is not None]  # fmt: skip
    found = []
    for rows in measured(folders):
        own = owners.get(rows.chip.name)
        for donor in donors if own is not None else ():
            try:
                found.append(scored(rows, own, donor))
            except UserError:  # a donor without such kernels
                continue
    return pd.concat(found, ignore_index=True)


def line(names: Sequence[str], part: pd.DataFrame) -> str:
    """One line of the table."""
    error, inside = (
        [fmt.percent(part[f"{what}_{when}"].mean()) for when in ("before", "after")] for what in ("error", "inside")
    )
    return f"| {' | '.join(names)} | {len(part):,} | {' → '.join(error)} | {' → '.join(inside)} |\n"


def table(rows: pd.DataFrame) -> str:
    """Pairs that an own profile changes, and all others together by kind of kernel."""
    changed = rows.groupby(GROUPS)[["error_before", "error_after"]].transform("sum")
    is_changed = changed["error_before"] != changed["error_after"]
    parts = [line([*names], part) for names, part in rows[is_changed].groupby(GROUPS)]
    parts += [
        line(["all three", "others, unchanged", str(name)], part) for name, part in rows[~is_changed].groupby("kernels")
    ]
    return HEAD + "".join(parts)


def main(folders: Sequence[Path]) -> None:
    """Rewrite the table of the page."""
    rewrite(PAGE, {MARK: table(scores(folders))})


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    main([Path(word) for word in sys.argv[1:]])

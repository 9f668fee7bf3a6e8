"""Fit the shares of board power of a generation to rows of `calibrate run --power`, and print scores.

`python -m llmviewer.calibrate.power_samples FIT [HELD_OUT]` fits the samples in the folder FIT, scores them and those
of HELD_OUT, and writes the generation's shares to calibrate/power.yaml; the rows are not stored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from llmviewer import api
from llmviewer.analysis.evaluation import evaluate
from llmviewer.analysis.power_shares import FILE, SHARE_OF, PowerShares, board_watts, shares_of
from llmviewer.calibrate import fit_power, record
from llmviewer.calibrate.fit import row_timing
from llmviewer.calibrate.tables import TABLES, RowGroup, row_groups
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core import data, dtypes
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import decode, prefill
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.models.load import parse
from llmviewer.timing.roofline import ideal

if TYPE_CHECKING:
    import pandas as pd

#: Slope of the power beyond the board's limit, so that a fit sees which way is down.
BEYOND_LIMIT = 1e-3
#: Fewest rows of a fit, and shortest time over which their power is a mean [s].
MIN_ROWS, MIN_S = 16, 0.2
#: Parts of the rows that are held out, one after another.
THIRDS = 3


@frozen
class PowerRow:
    """A row with its mean power over the board power, and its seconds at data-sheet peaks over its time.

    compute, memory: of matrix and vector units, and of device memory.  most: power limit over the board power.
    """

    name: str
    share: float
    compute: float
    memory: float
    most: float = 1.0


def own_shares(
    tables: Mapping[str, pd.DataFrame], chip: Chip, limit_w: float | None = None
) -> tuple[PowerShares, dict[str, float]] | None:
    """Shares of one card's rows with their errors, each third of the rows predicted by shares of the others; None if
    too few rows have a power.  limit_w: power limit of the card where the rows were measured [W]."""
    if chip.tdp_w is None:
        return None
    rows = _rows_in(tables, replace(chip, power_limit_w=limit_w))
    if len(rows) < MIN_ROWS:
        return None
    parts = [(rows[at::THIRDS], [row for i, row in enumerate(rows) if i % THIRDS != at]) for at in range(THIRDS)]
    size = np.abs(np.concatenate([errors(shares(others), unseen) for unseen, others in parts]))
    return shares(rows), {"rows": len(rows), "median": float(np.median(size)), "most": float(np.max(size))}


def _rows_in(tables: Mapping[str, pd.DataFrame], chip: Chip) -> list[PowerRow]:
    return [row for name, frame in tables.items() for row in _rows(name, _with_power(frame), chip)]


def rows_of(path: Path, chip: Chip | None = None) -> tuple[Chip, list[PowerRow]]:
    """The rows of samples whose power is a mean.  Raises UserError if there are too few."""
    environment, tables = record.read(path)
    on = chip or specs.load(str(environment["device"]).replace("_", "-"))
    if on.tdp_w is None:
        raise UserError(f"{on.name} has no board power, of which shares could be fitted")
    found = _rows_in(tables, on)
    if len(found) < MIN_ROWS:
        raise UserError(f"'{printable(path)}' has {len(found)} rows of `calibrate run --power`; a fit needs {MIN_ROWS}")
    return on, found


def _with_power(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["power_s"] >= MIN_S] if "power_s" in frame.columns else frame[:0]


def _rows(table: str, frame: pd.DataFrame, chip: Chip) -> Iterator[PowerRow]:
    if table in TABLES and len(frame):
        for part in row_groups(usable_rows(frame, table)[0], chip):
            if isinstance(part, RowGroup):
                seconds = dict(row_timing(part, ideal).resources)
                yield from _of(table, frame.loc[part.index], seconds, chip)
    elif table == "copy":
        yield from _of(table, frame, {"memory": frame["moved_bytes"].to_numpy() / chip.bandwidth_bytes_per_s}, chip)
    elif table in ("block", "model"):
        for at in frame.index:
            yield from _of(table, frame.loc[[at]], _resources(frame.loc[at], chip, table), chip)


def _of(table: str, frame: pd.DataFrame, seconds: dict[str, Count], chip: Chip) -> Iterator[PowerRow]:
    """Rows of a frame from the seconds of their resources."""
    used = {kind: _part(seconds, kind) * np.ones(len(frame)) for kind in ("compute", "memory")}
    board_w, most_w = (float(np.max(watts)) for watts in board_watts(chip))
    for at, (_, row) in enumerate(frame.iterrows()):
        time_s = float(row["latency_us"]) * 1e-6
        yield PowerRow(
            name=table,
            share=float(row["power_w"]) / board_w,
            compute=float(used["compute"][at]) / time_s,
            memory=float(used["memory"][at]) / time_s,
            most=min(most_w / board_w, 1.0),
        )


def _part(seconds: dict[str, Count], kind: str) -> Count:
    return total(value for name, value in seconds.items() if SHARE_OF.get(name) == kind)


def _resources(row: Any, chip: Chip, table: str) -> dict[str, Count]:
    """Seconds of a layer or model on the data sheet, by resource."""
    model = parse(row["config"], str(row["model"]), dtype=dtypes.get_dtype(str(row["dtype"])).name)
    batch = float(row["batch"])
    is_prompt = row["stage"] == "prefill"
    step = prefill(batch, float(row["seq"])) if is_prompt else decode(batch, float(row["context"]) - 1.0)
    found = evaluate(model, api.system(chip, api.options_of({"efficiency": "ideal"})), step)
    layers = [one for one in found.rows if table == "model" or one.block.is_layer]
    return {
        kind: total(_part(dict(one.ideal.resources), kind) * float(one.block.repeats) for one in layers)
        for kind in ("compute", "memory")
    }


def shares(rows: Sequence[PowerRow]) -> PowerShares:
    """The shares that fit the rows."""
    from scipy.optimize import least_squares

    measured, most = np.array([(row.share, row.most) for row in rows]).T

    def residuals(values: Array) -> Array:
        asked = _asked(values, rows)
        return np.asarray(np.log(np.minimum(asked, most + BEYOND_LIMIT * asked) / measured))

    found = least_squares(residuals, fit_power.START, bounds=(0.0, 2.0), loss="soft_l1", f_scale=fit_power.OUTLIER)
    return fit_power.shares(np.round(found.x, 4))


def _asked(values: Sequence[float] | Array, rows: Sequence[PowerRow]) -> Array:
    """Power over the board power, without its limit."""
    idle, compute, memory = values
    return np.array([idle + compute * row.compute + memory * row.memory for row in rows])


def errors(own: PowerShares, rows: Sequence[PowerRow]) -> Array:
    """Predicted / measured - 1 of every row."""
    asked = _asked((own.idle, own.compute, own.memory), rows)
    measured, most = np.array([(row.share, row.most) for row in rows]).T
    ratios: Array = np.minimum(asked, most) / measured
    return ratios - 1.0


def main(fitted: Path, held_out: Path | None = None) -> None:
    """Fit, write the generation's shares, and print the errors of these and of the shipped shares."""
    chip, rows = rows_of(fitted)
    before, own = shares_of(chip), shares(rows)
    unseen = rows_of(held_out, chip)[1] if held_out else rows
    assert before is not None  # rows_of refuses a chip without board power
    for name, one, part in (("fitted", own, rows), ("held out", own, unseen), ("held out, shipped", before, unseen)):
        size = np.abs(errors(one, part))
        sys.stdout.write(f"{name}: {len(part)} rows, mean {size.mean():.1%}, largest {size.max():.1%}\n")
    path = data.folder("calibrate") / FILE
    content = dict(data.read_yaml(path))
    size, facts = np.abs(errors(own, unseen)), record.read(fitted)[0]
    where = f"{facts['device_name']} (driver {facts['driver']}, torch {facts['torch']}, {str(facts['date'])[:10]})"
    content["generations"] = {**content["generations"], chip.generation: {
        **{name: getattr(own, name) for name in ("idle", "compute", "memory", "link")},
        "source": f"{len(rows)} rows of `calibrate run --power` on {where}: kernels and whole models; link: GenZ, "
        "https://arxiv.org/abs/2406.01698",
        "held_out_error": {"mean": round(float(size.mean()), 4), "most": round(float(size.max()), 4)},
    }}  # fmt: skip
    path.write_text(fit_power.HEAD + yaml.safe_dump(content, sort_keys=False, width=118), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

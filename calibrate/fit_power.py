"""Fit the shares of board power that chips draw to published power, and print scores.

`python -m llmviewer.calibrate.fit_power published.csv` rewrites calibrate/power.yaml and prints the tables of
docs/reference/energy.md; with `--score` it only scores the shipped constants.  The rows are not stored.  Shares are
fitted on measured times, and scored on those and on predicted ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import yaml

from llmviewer.analysis.power import energy_of
from llmviewer.analysis.power_shares import FILE, PowerShares, board_watts, shares_of
from llmviewer.calibrate import table_file
from llmviewer.calibrate.power_rows import GpuRun, WallRun, gpu_runs, wall_runs
from llmviewer.core import data
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.result.figures import Figures

#: Share of a link at its full rate, which no row tells apart: GenZ's (https://arxiv.org/abs/2406.01698).
LINK_SHARE = 0.1
#: Option that scores the shipped constants and writes nothing.
SCORE = "--score"
GPU_HEAD = """\
| runs on GPUs | at | mean error of power | largest | within 20 % |
|---:|---|---:|---:|---:|"""
WALL_HEAD = """
| MLPerf | GPU limit | wall, measured | predicted | error | J per output token, measured | predicted |
|---|---:|---:|---:|---:|---:|---:|"""
START = (0.3, 0.4, 0.2)
HEAD = (
    "# Shares of board power, written by `python -m llmviewer.calibrate.fit_power TABLE` and, by generation, of "
    "`power_samples SAMPLES`; see docs/reference/energy.md.\n"
)
#: Log error beyond which a row counts less than its square.
OUTLIER = 0.03


def shares(values: Sequence[float] | Array, server: float = 0.0) -> PowerShares:
    """Shares of idle, compute and memory."""
    idle, compute, memory = (float(value) for value in values)
    return PowerShares(idle=idle, compute=compute, memory=memory, link=LINK_SHARE, server=server, basis="fitted")


def gpu_share(run: GpuRun, own: PowerShares, times: tuple[float, float]) -> float:
    """Mean power of a static batch over the board power, at these times of prompt and token [s]."""
    chip, plan, work = run.analysis.system.chip, run.analysis.schedule, own.work_s(run.analysis.evaluation)
    steps_s = run.steps * times[1]
    joules = own.joules(chip, times[0], float(plan.prefill(work)[0]))
    joules = joules + own.joules(chip, steps_s, float(plan.decode_sum(work)[0]))
    return float(joules / (times[0] + steps_s) / board_watts(chip)[0])


def fit(runs: Sequence[GpuRun]) -> PowerShares:
    """The shares that fit measured power at measured times."""
    from scipy.optimize import least_squares

    def residuals(values: Array) -> Array:
        own = shares(values)
        return np.array([np.log(gpu_share(run, own, (run.ttft_s, run.tpot_s)) / run.share) for run in runs])

    found = least_squares(residuals, START, bounds=(0.0, 2.0), loss="soft_l1", f_scale=OUTLIER)
    return shares(np.round(found.x, 4))


def held_out(runs: Sequence[GpuRun]) -> Array:
    """Relative errors at measured times, each run predicted by shares fitted without its model and devices."""
    errors = np.zeros(len(runs))
    for group in {run.group for run in runs}:
        own = fit([run for run in runs if run.group != group])
        for at, run in enumerate(runs):
            if run.group == group:
                errors[at] = gpu_share(run, own, (run.ttft_s, run.tpot_s)) / run.share - 1.0
    return errors


def server_share(runs: Sequence[WallRun], own: PowerShares) -> float:
    """Power of a server beside its GPUs, per GPU over its board power: the mean of what GPUs leave unexplained."""
    beside = [
        (run.watts - _gpu_watts(run, own)) / run.chips / float(np.max(board_watts(run.analysis.system.chip)[0]))
        for run in runs
    ]
    return round(float(np.mean(beside)), 4)


def _gpu_watts(run: WallRun, own: PowerShares) -> float:
    energy = energy_of(run.analysis, own)
    assert energy is not None
    return float(energy.watts[0])


def main(path: Path, mode: str = "") -> None:
    """Fit, write the constants and print the scores; in mode `--score`, print those of the shipped constants."""
    if mode not in ("", SCORE):
        raise UserError(f"unknown option {quoted(mode)}; allowed: {SCORE}")
    rows = [{str(name): value for name, value in row.items()} for row in table_file.read(path).to_dict("records")]
    gpus, without_gpu = gpu_runs(rows)
    walls, without_wall = wall_runs(rows)
    if not (gpus or walls if mode else gpus and walls):
        raise UserError(f"'{printable(path)}' has no rows of power that can be predicted")
    if mode:
        own = shares_of((gpus or walls)[0].analysis.system.chip)
        assert own is not None  # runs whose chip has no board power are left out
        sys.stdout.write(report(own, gpus, walls))
    else:
        fitted = fit(gpus)
        own, errors = replace(fitted, server=server_share(walls, fitted)), held_out(gpus)
        (data.folder("calibrate") / FILE).write_text(_text(own, path, gpus, errors), encoding="utf-8")
        sys.stdout.write(report(own, gpus, walls, errors))
    for reason in (*without_gpu, *without_wall):
        sys.stdout.write(f"left out: {reason}\n")


def _text(own: PowerShares, path: Path, gpus: Sequence[GpuRun], errors: Array) -> str:
    """YAML of the constants with their provenance."""
    source = (
        f"{len(gpus)} runs of {path.name}: https://github.com/Mutinifni/splitwise-sim at "
        "8f99e7dc9b407f4ce2488d03dd44c0b8b946dab0 (MIT), measured on A100-80GB SXM with vLLM 0.2; link: GenZ, "
        "https://arxiv.org/abs/2406.01698"
    )
    size = np.abs(errors)
    content = {
        "lender": "ampere",
        "generations": {
            **data.read_yaml(data.folder("calibrate") / FILE)["generations"],
            "ampere": {
                **{name: getattr(own, name) for name in ("idle", "compute", "memory", "link")},
                "source": source,
                "held_out_error": {"mean": round(float(size.mean()), 4), "most": round(float(size.max()), 4)},
            },
        },
        "server": {
            "share": own.server,
            "source": "servers of 8 x H200 in https://github.com/mlcommons/inference_results_v4.1 (Apache-2.0)",
        },
    }
    return HEAD + yaml.safe_dump(content, sort_keys=False, width=118)


def report(
    own: PowerShares, gpus: Sequence[GpuRun], walls: Sequence[WallRun], held_out_errors: Array | None = None
) -> str:
    """Tables of scores in Markdown."""
    found = {"measured times": [gpu_share(run, own, (run.ttft_s, run.tpot_s)) / run.share - 1.0 for run in gpus]}
    if held_out_errors is not None:
        found["measured times, held out"] = list(held_out_errors)
    found["own times"] = [gpu_share(run, own, run.predicted_s) / run.share - 1.0 for run in gpus]
    lines = [GPU_HEAD]
    for name, errors in found.items() if gpus else ():
        size = np.abs(errors)
        lines.append(
            f"| {len(gpus)} | {name} | {np.mean(size):.1%} | {np.max(size):.1%} | {np.mean(size <= 0.2):.0%} |"
        )
    return "\n".join((*lines, WALL_HEAD, *(_wall_line(run, own) for run in walls))) + "\n"


def _wall_line(run: WallRun, own: PowerShares) -> str:
    """Row of a server in the table."""
    energy, known = energy_of(run.analysis, own), run.tokens_per_s
    assert energy is not None
    wall, rate = float(energy.wall_watts[0]), float(Figures(run.analysis)["output_tokens_per_s"][0])
    joules = ("", "") if known is None else (f"{run.watts / known:.3f}", f"{wall / rate:.3f}")
    return (
        f"| {run.name} | {run.limit_w:.0f} W | {run.watts:,.0f} W | {wall:,.0f} W | {wall / run.watts - 1.0:+.1%} "
        f"| {joules[0]} | {joules[1]} |"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

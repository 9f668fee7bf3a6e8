"""Rows of measured power: runs of GPUs with their measured times, and servers at the wall."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.calibrate import e2e_rows, e2e_runs, systems
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.timing import engine
from llmviewer.timing.engine import Engine

GPU_METRIC, WALL_METRIC = "gpu_power_share_of_tdp", "system_power_w"
#: Beginning of the versions of an engine that launched kernels one by one, without CUDA graphs.
EAGER_VERSIONS = ("0.2",)
#: Part of a system's name that says its power was limited; limits that the submission's configs set [W]:
#: https://github.com/mlcommons/inference_results_v4.1/tree/a2f5d66d17e8f75c02fd74dfe810ecca6a046696/closed/NVIDIA/configs
LIMITED = "MaxQ"
LIMITS = {
    ("h200", "gpt-j-6b"): 350,
    ("h200", "llama-2-70b"): 500,
    ("h200", "mixtral-8x7b"): 500,
    ("h100-sxm", "gpt-j-6b"): 350,
    ("h100-sxm", "llama-2-70b"): 450,
    ("h100-nvl", "llama-2-70b"): 350,
    ("h100-pcie", "gpt-j-6b"): 200,
}
#: Mean prompt tokens of submissions that do not state them, where only power is wanted: articles of CNN/DailyMail
#: (https://huggingface.co/datasets/abisee/cnn_dailymail), and OpenOrca's for Mixtral, whose set is a third OpenOrca.
#: At full load the power hardly depends on them.
ASSUMED_INPUT = {"EleutherAI/gpt-j-6b": 781.0, "mistralai/Mixtral-8x7B-Instruct-v0.1": 294.0}


@frozen(eq=False)
class GpuRun:
    """A static batch whose mean power was measured, with its own times [s] and those predicted for it.

    share: power over board power.  steps: decode steps.  group: model and devices, which are held out together.
    """

    analysis: Analysis
    share: float
    ttft_s: float
    tpot_s: float
    steps: float
    group: str

    @property
    def predicted_s(self) -> tuple[float, float]:
        """TTFT and TPOT that are predicted [s]."""
        return float(self.analysis.ttft_s[0]), float(self.analysis.tpot_s[0])


@frozen(eq=False)
class WallRun:
    """A server whose power was measured at the wall [W].

    limit_w: of each GPU.  tokens_per_s: its output rate; None where the prompts' lengths are assumed.
    """

    analysis: Analysis
    watts: float
    chips: int
    limit_w: float
    tokens_per_s: float | None
    name: str


def gpu_runs(rows: Iterable[Mapping[str, Any]]) -> tuple[list[GpuRun], list[str]]:
    """Runs with the power of GPUs, and why others were left out."""
    listed = list(rows)
    times = {(_run(row), str(row["metric"])): float(row["value"]) for row in listed}
    runs, left_out = [], []
    for row in listed:
        if row["metric"] != GPU_METRIC:
            continue
        try:
            analysis = _analysis(row, {**row, "metric": "tpot_s"})
        except UserError as error:
            left_out.append(f"{row['id']}: {error.marked}")
            continue
        request, model = analysis.request, analysis.model
        if np.any(request.input_len + request.output_len > model.max_context):
            left_out.append(f"{row['id']}: longer than the model's context, so it cannot have run as stated")
            continue
        runs.append(
            GpuRun(
                analysis=analysis,
                share=float(row["value"]),
                ttft_s=times[_run(row), "ttft_s"],
                tpot_s=times[_run(row), "tpot_s"],
                steps=float(np.max(request.output_len)) - 1.0,
                group=f"{row['model']} {row['tp']}",
            )
        )
    return runs, left_out


def wall_runs(rows: Iterable[Mapping[str, Any]]) -> tuple[list[WallRun], list[str]]:
    """Servers with power at the wall, each with a row of its submission that has its lengths, and why others were left
    out."""
    listed = list(rows)
    rates: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for row in (row for row in listed if row["metric"] == "output_tokens_per_s"):
        rates[_submission(row)] = row
        rates.setdefault(_submission(row)[:-1], row)  # another scenario has the same data set
    runs, left_out = [], []
    for row in (row for row in listed if row["metric"] == WALL_METRIC):
        rate = rates.get(_submission(row), rates.get(_submission(row)[:-1]))
        try:
            if rate is None:
                raise UserError("no row has the lengths of this submission")
            runs.append(_wall_run(row, rate))
        except UserError as error:
            left_out.append(f"{row['id']}: {error.marked}")
    return runs, left_out


def _wall_run(row: Mapping[str, Any], rate: Mapping[str, Any]) -> WallRun:
    known = ASSUMED_INPUT.get(str(row["model"]))
    stated = {**rate, "input_len": known, "arrivals": "all at once"} if known else {**rate, "arrivals": "all at once"}
    name, _ = e2e_rows.checkpoint(str(row["model"]))
    limit = LIMITS.get((str(row["chip"]), name)) if LIMITED in str(row["id"]) else None
    if limit is None and LIMITED in str(row["id"]):
        raise UserError("the power limit of this submission is not known")
    analysis = _analysis(row, stated, f"{limit}W" if limit else "none")
    return WallRun(
        analysis=analysis,
        watts=float(row["value"]),
        chips=int(row["chips"]),
        limit_w=float(limit or np.max(analysis.system.chip.tdp_w or np.nan)),
        tokens_per_s=float(rate["value"]) if _submission(rate) == _submission(row) and not known else None,
        name=":".join(str(row["id"]).split(":")[2:5]),
    )


def _analysis(row: Mapping[str, Any], stated: Mapping[str, Any], power_limit: str = "none") -> Analysis:
    """The analysis of a run.  Raises UserError if it is not predicted."""
    case = e2e_rows.case_of({**systems.request_of(stated), "device": row["chip"]})
    case = replace(case, options=(*case.options, ("power_limit", power_limit)))
    return e2e_runs.evaluate_group([case], [0], e2e_runs.EvaluationOptions(presets=_preset_of(row))).analysis


def _preset_of(row: Mapping[str, Any]) -> Any:
    """The loader of presets, without CUDA graphs for engines that had none."""
    eager = str(row["engine"]) == "vllm" and str(row["engine_version"]).startswith(EAGER_VERSIONS)
    return _eager if eager else engine.load


@cache
def _eager(name: str) -> Engine:
    return replace(engine.load(name), graph_tokens=0.0)


def _run(row: Mapping[str, Any]) -> str:
    """Name of the run that a row is of: its id without the metric."""
    return str(row["id"]).rpartition(":")[0]


def _submission(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Submitter, system, benchmark and scenario: the end of the ids of rates and of powers, before the metric."""
    return tuple(str(row["id"]).split(":")[-5:-1])

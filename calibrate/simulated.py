"""Published figures of systems under load: percentiles, random arrivals, bursts and pipelines, by simulation.

All figures of one run come from one simulation.  Of submissions to MLPerf, whose rates are the largest that meet their
limits, the largest rate is predicted, not the latencies at that edge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.calibrate.cells import size_of, text_of
from llmviewer.calibrate.e2e_rows import RequestCase, case_of
from llmviewer.core.errors import UserError
from llmviewer.simulation.cache_capacity import TOKEN_BUDGET
from llmviewer.simulation.call import simulate
from llmviewer.simulation.result import Simulation

if TYPE_CHECKING:
    import pandas as pd

#: Beginning of `arrivals` of runs that are simulated; and of those that are for pipelines and for OVERVIEW, where equal
#: requests keep their prompts together, which users who come and go do not.
ARRIVALS, AT_ONCE = ("Poisson", "closed loop"), "all at once"
#: Beginning of `source` of TensorRT-LLM's overviews, their requests by lengths of prompts and answers, and those of
#: other lengths and bursts, which is assumed where a row is not of an overview.
#: Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.0.0/docs/source/performance/perf-overview.md
OVERVIEW, AT_ONCE_REQUESTS = "trtllm-overview", 1500
OVERVIEW_REQUESTS: dict[tuple[float, float], int] = {
    (128, 128): 30000,
    **dict.fromkeys(((128, 2048), (500, 2000), (1000, 1000), (2048, 128)), 3000),
    (20000, 2000): 1000,
}
#: Columns that are one figure's and not the run's.
OF_A_FIGURE = ("id", "url_or_path", "metric", "statistic", "value")
#: Metrics of a simulation that are published, all but one with percentiles.
LATENCIES, THROUGHPUT = ("ttft_s", "tpot_s", "e2e_s"), "output_tokens_per_s"
#: Limits of p99 for the server scenario of MLPerf: model -> TTFT, TPOT.
#: https://github.com/mlcommons/inference_policies/blob/master/inference_rules.adoc
MLPERF_LIMITS = {"llama-2-70b": ("2s", "200ms"), "mixtral-8x7b": ("2s", "200ms"), "llama-3.1-405b": ("6s", "175ms")}
EDGE = "latencies at the limits of a submission: its largest rate is judged"
#: Coefficient of variation of prompts and answers of data sets of conversations, which rows do not state: assumed.
VARIATION = 0.8
#: Requests per user in runs of InferenceX, and prompts where `arrivals` states them.
REQUESTS_PER_USER = 10
PROMPTS = re.compile(r"(\d+) (?:ShareGPT )?prompts")
#: Limits of a step in a note.
STEP_LIMITS = re.compile(r"chunked prefill (True|False), max tokens (\d+), max seqs (\d+)")

Figures = dict[tuple[str, str], tuple[float, float, float]]


def is_simulated(row: Mapping[Any, Any]) -> bool:
    """Whether a figure is of a run with random arrivals or users that begin at once, or of a counted burst."""
    arrivals, counted = text_of(row, "arrivals"), text_of(row, "source").startswith(OVERVIEW)
    burst = counted or size_of(row, "pp", 1.0) > 1.0
    return arrivals.startswith(ARRIVALS) or (arrivals.startswith(AT_ONCE) and burst)


def predict(
    frame: pd.DataFrame,
    as_request: Callable[[Mapping[str, Any]], dict[str, Any]],
    on_progress: Callable[[int], None] = lambda rows: None,
) -> pd.DataFrame:
    """The rows with predictions in their own units, or the reason why there is none.

    as_request: row -> its run as a row of end-to-end tables.  on_progress: called with the number of rows done.
    """
    found = frame.assign(device=frame["chip"], preset="", reason="", predicted=np.nan, low80=np.nan, high80=np.nan)
    found["metric"] = frame["metric"] + " " + frame["statistic"]
    runs = frame.drop(columns=[name for name in OF_A_FIGURE if name in frame]).astype(str).apply(tuple, axis=1)
    answers: dict[str, tuple[Figures, str]] = {}
    for _, part in frame.groupby(runs, sort=False):
        row = {str(name): value for name, value in part.iloc[0].items()}
        try:
            case = case_of(as_request(row) | {"device": row["chip"]})
            words = load_of(row, case)
            known = repr((case.run, words))
            if known not in answers:
                answers[known] = (_figures(case, words), case.preset)
            figures, preset = answers[known]
        except UserError as error:
            found.loc[part.index, "reason"] = error.marked
            continue
        found.loc[part.index, "preset"] = preset
        for at, metric, statistic in zip(part.index, part["metric"], part["statistic"], strict=True):
            if (metric, statistic) in figures:
                found.loc[at, ["predicted", "low80", "high80"]] = figures[metric, statistic]
            else:
                found.loc[at, "reason"] = EDGE if "find_rate" in words else "it is not predicted"
        on_progress(len(part))
    return found


def load_of(row: Mapping[str, Any], case: RequestCase) -> dict[str, Any]:
    """Options of the load of a run.  Raises UserError for a run whose limits or lengths are not known."""
    prompt, answer, note = case.input_len, case.output_len, text_of(row, "note")
    arrivals = text_of(row, "arrivals")
    stated = PROMPTS.search(arrivals)
    words: dict[str, Any] = {"input_len": f"{prompt:.0f}", "output_len": f"{answer:.0f}"}
    if "random between 1 and nominal" in note:
        words["output_len"] = f"uniform,low=1,high={max(2.0 * answer - 1.0, 1.0):.0f}"
    if arrivals.startswith("Poisson"):
        words["input_len"], words["output_len"] = (
            f"lognormal,mean={mean:.0f},cv={VARIATION:g}" for mean in (prompt, answer)
        )
        words["request_rate"] = size_of(row, "request_rate")
    elif arrivals.startswith(AT_ONCE):
        counted = OVERVIEW_REQUESTS.get((prompt, answer), AT_ONCE_REQUESTS)
        words |= {"burst": True, "requests": counted, "max_num_batched_tokens": max(int(prompt), TOKEN_BUDGET)}
    else:
        words |= {"concurrency": int(size_of(row, "concurrency")), "burst": True}
        words["requests"] = REQUESTS_PER_USER * words["concurrency"]
    if stated is not None:
        words["requests"] = int(stated[1])
    limits = STEP_LIMITS.search(note)
    if limits is not None and limits[1] == "True":
        words |= {"batching": f"chunked,tokens={limits[2]}", "max_num_seqs": int(limits[3])}
    if text_of(row, "source").startswith("mlperf"):
        if case.model not in MLPERF_LIMITS:
            raise UserError(f"the limits of MLPerf's server scenario for {case.model} are not known here")
        first, further = MLPERF_LIMITS[case.model]
        words |= {"find_rate": True, "ttft": f"p99:{first}", "tpot": f"p99:{further}"}
        del words["request_rate"]
    return words


def _figures(case: RequestCase, words: Mapping[str, Any]) -> Figures:
    """Value and 80 % interval of every published figure of a run."""
    batching = {"batching": case.batching if case.batching.startswith("disaggregated") else "continuous"}
    options = {**dict(case.options), **batching, **words}
    if "find_rate" not in words:
        return _of_run(simulate(case.model, case.hardware, engine=case.preset, **options))
    options["data_parallel_size"] = "1"  # replicas share nothing but the requests
    return _rate_of(simulate(case.model, case.hardware, engine=case.preset, **options), case.layout.data)


def _rate_of(made: Simulation, replicas: int) -> Figures:
    """Output tokens per second of all replicas at the largest rate within the limits."""
    rate = made.max_request_rate or 0.0
    if not rate:
        raise UserError("no rate meets the limits")
    tokens = replicas * float(made.records.output_len.mean())
    low, high = made.rate_bounds["80"]
    return {(THROUGHPUT, "mean"): (rate * tokens, low * tokens, high * tokens)}


def _inverse(value: float, made: Simulation) -> tuple[float, float, float]:
    low, high = made.ratios["tpot_s"]["80"]
    return value, value / high, value / low


def _of_run(made: Simulation) -> Figures:
    """Latencies and throughput of a whole run, as benchmarks count them."""
    records = made.records
    figures: Figures = {}
    for name in LATENCIES:
        values, (low, high) = getattr(records, name), made.ratios[name]["80"]
        for statistic, value in (
            ("mean", np.nanmean(values)),
            *((f"p{q}", np.nanquantile(values, q / 100)) for q in (50, 90, 99)),
        ):
            figures[name, statistic] = (float(value), float(value) * low, float(value) * high)
    tokens = float(records.output_len.sum()) / float(np.nanmax(records.finish_s))
    figures[THROUGHPUT, "mean"] = _inverse(tokens, made)
    return figures

"""Published figures of whole systems as rows of end-to-end tables, or the reason why no steady state predicts them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from llmviewer.calibrate import e2e, simulated
from llmviewer.calibrate.cells import is_missing, number, size_of, text_of
from llmviewer.calibrate.e2e_rows import checkpoint, load
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.core.errors import UserError, unknown
from llmviewer.hardware import specs

if TYPE_CHECKING:
    import pandas as pd

#: Columns that make a table one of whole systems.
SYSTEM_COLUMNS = ("engine", "model", "chip", "chips", "arrivals", "metric", "statistic", "value")
#: Columns that are kept as they are.
COPIED_COLUMNS = ("id", "source", "url_or_path", "chips", "mode", "arrivals", "statistic")
#: Metric of a system -> metric of end-to-end tables, and what one of its units is there.
METRICS = {
    "ttft_s": ("ttft_ms", 1e3),
    "tpot_s": ("tpot_ms", 1e3),
    "e2e_s": ("latency_ms", 1e3),
    "output_tokens_per_s": ("throughput_tok_s", 1.0),
}
#: Statistics that a steady state has: of five equal runs the median is the run.
MEANS = ("mean", "median of 5")
#: Beginning of `arrivals` -> batching of the run.
ARRIVALS = {"static batch": "static", "closed loop": "continuous", "all at once": "continuous", "Poisson": "continuous"}
#: Submissions to MLPerf state no prompt length: model -> mean tokens.  Measured rates of seven chips agree with 294 for
#: OpenOrca, and none with 155.
MLPERF_INPUT = {"llama-2-70b": 294.0}
#: Share of a device's memory that weights may take where a submission states no tensor parallelism.
WEIGHTS_SHARE = 0.6
#: Nominal length of answers in a note; lengths are random up to it, half of it in the mean.
NOMINAL_OUTPUT = re.compile(r"nominal \d+/(\d+)")
#: A mean answer below this share of the nominal length is from a run whose requests failed.
FAILED_SHARE = 0.01
#: A number of a version: v0.21, 0.6.3/0.6.4, vLLM 0.4.3+rocm614.
VERSION = re.compile(r"(\d+\.\d+)")
#: Versions from which TensorRT-LLM's overviews ran its PyTorch backend, and experts with attention data parallelism, as
#: the commands of their pages say; that of 0.20 and 0.21 has no such option, whatever a row's note says.
#: Sources: calibrate/ledger/trtllm-0.20.yaml, and the page of simulated.OVERVIEW_REQUESTS.
PYTORCH_FROM, ATTENTION_DP_FROM = (0, 20), (1, 0)


def is_system_table(columns: Any) -> bool:
    """Whether these are the columns of a table of whole systems."""
    return set(SYSTEM_COLUMNS) <= set(columns) and "device" not in columns


def predict(
    frame: pd.DataFrame, options: PredictionOptions, on_progress: Callable[[int], None] = lambda rows: None
) -> pd.DataFrame:
    """The table as an end-to-end table with predictions; no row is dropped.  on_progress: called with rows done."""
    import pandas as pd

    loaded = frame[[simulated.is_simulated(row) for row in frame.to_dict("records")]]
    others, parts = frame.drop(index=loaded.index), []
    if not others.empty:
        parts.append(predict_steady(others, options, on_progress))
    if not loaded.empty:
        parts.append(simulated.predict(loaded, request_of, on_progress))
    return pd.concat(parts).loc[frame.index]


def predict_steady(
    frame: pd.DataFrame, options: PredictionOptions, on_progress: Callable[[int], None] = lambda rows: None
) -> pd.DataFrame:
    """Predictions of runs in a steady state, or of one batch.  on_progress: called with rows done."""
    import pandas as pd

    made = [_row_or_reason(row) for row in frame.to_dict("records")]
    rows = pd.DataFrame(made, index=frame.index)
    for name in frame.columns.intersection(list(COPIED_COLUMNS)):
        rows[name] = frame[name]
    known = rows["reason"].eq("")
    on_progress(int((~known).sum()))
    predictions = e2e.predict(rows[known].drop(columns="reason"), options, on_progress)
    return pd.concat([predictions, rows[~known]]).loc[frame.index]


def _row_or_reason(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Row of an end-to-end table, and the reason if there is none; then its cells are those of the system."""
    named = {str(name): value for name, value in row.items()}
    known = {"device": text_of(named, "chip"), "metric": named["metric"], "value": named["value"], "reason": ""}
    try:
        return known | request_of(named)
    except UserError as error:
        sizes = {name: named.get(name) for name in ("input_len", "output_len")}
        return known | {"engine": named["engine"], "model": named["model"], **sizes, "reason": error.marked}


def request_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Row of an end-to-end table of a system's run.  Raises UserError with the reason if it is not predicted."""
    if str(row["metric"]) not in METRICS:
        raise UserError("power and energy of a server are not predicted")
    if "power capped" in text_of(row, "note"):
        raise UserError("a chip under a power cap is not predicted")
    batching = _batching(row)
    nominal = NOMINAL_OUTPUT.search(text_of(row, "note"))
    if nominal and size_of(row, "output_len") < FAILED_SHARE * float(nominal[1]):
        raise UserError("answers are far shorter than their nominal length: a failed run")
    if str(row["statistic"]) not in MEANS and not simulated.is_simulated(row):
        raise UserError("percentiles of runs that are not simulated are not predicted")
    metric, factor = METRICS[str(row["metric"])]
    return {
        "engine": engine_of(row),
        "model": row["model"],
        "weight_dtype": _weights(row),
        "kv_dtype": row.get("kv_dtype"),
        "batch": size_of(row, "concurrency", 0.0),
        "batching": batching,
        "input_len": _input_len(row),
        "output_len": size_of(row, "output_len"),
        **_layout(row),
        "metric": metric,
        "value": number("value", row["value"]) * factor,
        "note": text_of(row, "note"),
    }


def _batching(row: Mapping[str, Any]) -> str:
    arrivals = text_of(row, "arrivals")
    found = next((batching for start, batching in ARRIVALS.items() if arrivals.startswith(start)), None)
    if found is None:
        raise unknown("arrivals", arrivals, ARRIVALS)
    if text_of(row, "mode") != "disaggregated":
        return found
    workers = [f"{kind}={size_of(row, f'{kind}_workers', whole=True):g}" for kind in ("prefill", "decode")]
    return f"disaggregated,{','.join(workers)}"


def engine_of(row: Mapping[str, Any]) -> str:
    """Engine with the first number of its version.

    TensorRT's own version is that of the C++ runtime of its time, whose preset was fitted on chips before Blackwell;
    there it is the runtime of 1.x.  Overviews ran the backend of 1.x from PYTORCH_FROM on.
    """
    name, version = str(row["engine"]), text_of(row, "engine_version")
    if text_of(row, "source").startswith(simulated.OVERVIEW) and _number(version) >= PYTORCH_FROM:
        return "trtllm"
    if name == "trtllm" and version.startswith("TensorRT"):
        generation = specs.load(text_of(row, "chip")).generation
        return "trtllm" if generation.startswith("blackwell") else "tensorrt-llm"
    found = VERSION.search(version)
    return f"{name} {found[1]}" if found else name if version == "" else f"{name} {version.split()[0]}"


def _number(version: str) -> tuple[int, ...]:
    """The first number of a version in parts, none without one."""
    found = VERSION.search(version)
    return tuple(map(int, found[1].split("."))) if found else ()


def _is_submission(row: Mapping[str, Any]) -> bool:
    """Whether a row is a submission to MLPerf."""
    return text_of(row, "source").startswith("mlperf")


def _weights(row: Mapping[str, Any]) -> object:
    """Format of the weights.  NVIDIA's submissions state that of the weights they begin with, and run in FP8, on
    Blackwell in FP4: https://github.com/mlcommons/inference_results_v4.1/tree/main/closed/NVIDIA."""
    if not (_is_submission(row) and row["engine"] == "trtllm" and row.get("quantization") == "fp16"):
        return row.get("quantization")
    peaks = specs.load(text_of(row, "chip")).matrix_flops_per_s
    return next((word for word, dtype in (("nvfp4", "fp4"), ("fp8", "fp8")) if dtype in peaks), "fp16")


def _input_len(row: Mapping[str, Any]) -> float:
    if not is_missing(row.get("input_len")):
        return size_of(row, "input_len")
    known, _ = checkpoint(str(row["model"]).replace("-chat-hf", "-hf"))
    if not _is_submission(row) or known not in MLPERF_INPUT:
        raise UserError("input_len is not stated: add the mean prompt length")
    return MLPERF_INPUT[known]


def _layout(row: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of the layout.  Instances of a disaggregated system have the tensor parallelism of both pools."""
    if text_of(row, "mode") == "disaggregated":
        pools = {text_of(row, "tp").partition("/")[0], text_of(row, "tp").rpartition("/")[2]}
        if len(pools) > 1:
            raise UserError("prefill and decode instances of different sizes are not modelled")
        tensor = size_of({"tp": pools.pop()}, "tp", whole=True)
        workers = sum(size_of(row, f"{kind}_workers", whole=True) for kind in ("prefill", "decode"))
        if tensor * workers != size_of(row, "chips", whole=True):
            raise UserError("tp x workers is not chips: the row contradicts itself")
        return {"tp": tensor}
    chips = size_of(row, "chips", 0.0, whole=True)
    if not chips:
        raise UserError("the number of chips is not stated")
    stated = {name: row.get(name) for name in ("tp", "pp", "dp", "ep")}
    if all(is_missing(value) for value in stated.values()):
        stated = _assumed(row, int(chips))
    if "attention DP enabled" in text_of(row, "note") and _number(text_of(row, "engine_version")) >= ATTENTION_DP_FROM:
        stated = stated | {"attention_dp": row.get("tp")}
    return stated | {"n_gpus": chips}


def _assumed(row: Mapping[str, Any], chips: int) -> dict[str, Any]:
    """The smallest tensor group whose weights leave room for a cache; the other chips are replicas."""
    known, _ = checkpoint(str(row["model"]))
    chip, bits = specs.load(text_of(row, "chip")), {"nvfp4": 4.0, "fp8": 8.0, "int4": 4.0}.get(str(_weights(row)), 16.0)
    stored = load(known).parameters * bits / 8.0
    sizes = [size for size in (1, 2, 4, 8, 16) if chips % size == 0]
    fitting = [size for size in sizes if stored <= WEIGHTS_SHARE * size * float(chip.memory_bytes)]
    tensor = fitting[0] if fitting else sizes[-1]
    return {"tp": tensor, "dp": chips // tensor}

"""An engine file from the results of one server: a preset whose constants are fitted to them, with held-out errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from llmviewer.calibrate import server_fit
from llmviewer.calibrate.conformal import errors
from llmviewer.calibrate.diagnosis import call as diagnosis
from llmviewer.calibrate.diagnosis.requests import is_result
from llmviewer.calibrate.e2e import impossible, interval_ratios, origin_of
from llmviewer.calibrate.e2e_rows import RequestCase, case_of, checkpoint
from llmviewer.calibrate.e2e_runs import IMPOSSIBLE_REASON, CaseGroup, evaluate_groups
from llmviewer.calibrate.fit_engines import Trial, host_shares
from llmviewer.calibrate.readers import files, torch_profiler
from llmviewer.calibrate.readers.run import BenchmarkRun, Stated
from llmviewer.calibrate.refusals import in_shell
from llmviewer.calibrate.server_fit import ServerFit
from llmviewer.core import data
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen
from llmviewer.hardware import specs
from llmviewer.techniques.kernels.of_engine import configuration_of
from llmviewer.timing.engine import Engine
from llmviewer.timing.engine_fit import CONSTANTS
from llmviewer.timing.engine_work import FACTORS

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.engine_fit/1"
#: Figures of a run that follow from those of its first and further tokens, and are left out beside both.
DERIVED, BOTH = ("latency_ms", "throughput_tok_s"), {"ttft_ms", "tpot_ms"}
#: Largest over smallest value of one figure, measured twice under one load, from which on neither is believed.
UNSTABLE = 1.3
#: Group of kernels of a profiler's table, or kind of operators of a trace -> factor.
SEEN = {"gemm": "gemm", "attention": "attention", "collective": "exchange"}
#: Constant -> its meaning; of other factors, the time of their kernels over that in profiles.
MEANINGS = CONSTANTS | {
    "prompt": "time of all kernels in passes too large for a CUDA graph, over that in profiles",
    "share": "share of the memory bandwidth that its matrix-vector kernel reaches",
    "integer_share": "share of the 8-bit peak that its integer kernels reach",
}
#: Decimals of a figure in the file.
DIGITS = 4


@dataclass(slots=True, kw_only=True, eq=False)
class Measured:
    """Figures and kernels in the files of a server.

    frame: rows of an end-to-end table.  kernels: factor -> time of its kernels in a trace over that of the preset.
    files: name, date and number of figures of each.  left_out: reason -> figures or runs that are not used.
    """

    frame: list[Mapping[Any, Any]] = field(default_factory=list)
    kernels: dict[str, float] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


@frozen(eq=False)
class OwnEngine:
    """A fitted engine with its text, and the document that the command prints."""

    text: str
    document: dict[str, Any]


def calibrate(paths: Sequence[Path], stated: Stated, output: str) -> OwnEngine:
    """The preset of the engine, fitted to what these files measured of one server.

    stated: what they do not state.  output: name of the file, for the next command.  Raises UserError where no figure
    is usable, two measurements of one figure differ much, or a file contradicts what is stated.
    """
    if data.is_path(stated.engine):
        raise UserError(f"--engine {stated.engine} is an engine file; name the preset to correct: vllm, sglang ...")
    measured, profiles = Measured(), [path for path in paths if path.is_file() and _is_profile(path)]
    of_results = replace(stated, batch_size=0, input_len=0, output_len=0) if profiles else stated
    for path in paths:
        _read(path, stated if path in profiles else of_results, measured)
    cases, values = _cases(measured)
    trials, preset = _trials(cases, values, measured)
    chosen = np.concatenate([_possible(trial, measured) for trial in trials])
    if not chosen.any():
        raise UserError(f"no figure can be used: {next(iter(measured.left_out))}")
    runs = [(case.run, case.batch, case.input_len, case.output_len) for trial in trials for case in trial.group.cases]
    made = server_fit.fit(preset, trials, chosen, measured.kernels)
    apart = server_fit.held_out(preset, trials, chosen, measured.kernels, runs)
    found = _Fitted(
        preset=preset, trials=trials, chosen=chosen, fit=made, held_out=apart, runs=len({*runs}), measured=measured
    )
    return OwnEngine(text=found.text(), document=found.document(output))


@frozen(eq=False)
class _Fitted:
    """A fit and the rows that it was made of.  held_out: log(measured / predicted) of every row without its run."""

    preset: Engine
    trials: Sequence[Trial]
    chosen: Array
    fit: ServerFit
    held_out: Array
    runs: int
    measured: Measured

    @property
    def cases(self) -> list[RequestCase]:
        return [case for trial in self.trials for case in trial.group.cases]

    @property
    def configurations(self) -> list[str]:
        analyses = (trial.group.analysis for trial in self.trials)
        return sorted({configuration_of(one.model, one.system) for one in analyses})

    def of_metrics(self) -> Iterator[tuple[str, Array]]:
        """Every metric with a mask of its chosen rows."""
        metrics = np.array([case.metric for case in self.cases])
        for metric in sorted({str(one) for one in metrics[self.chosen]}):
            yield metric, self.chosen & (metrics == metric)

    def interval(self, rows: Array) -> tuple[float, ...]:
        return server_fit.interval(self.held_out[rows], server_fit.scatter_of(self.trials)[rows])

    def metrics(self) -> list[dict[str, Any]]:
        """Errors of every metric with the preset, and with constants fitted without the row's run; None for one run."""
        before = np.exp(server_fit.log_ratios(self.preset, self.trials))
        bounds = np.concatenate([interval_ratios(trial.group) for trial in self.trials])
        found = []
        for metric, rows in self.of_metrics():
            low95, low, high, high95 = self.interval(rows)
            after = np.exp(self.held_out[rows])
            held = _scores(after, np.array([low]), np.array([high])) if np.isfinite(after).all() else None
            own = _scores(before[rows], bounds[rows, 1], bounds[rows, 2])
            intervals = {"interval_80": [low, high], "interval_95": [low95, high95]}
            found.append({"metric": metric, "rows": int(rows.sum()), "before": own, "after": held, **intervals})
        return found

    def constants(self) -> list[dict[str, Any]]:
        """Every constant before and after; rows: 0 for one that the rows do not determine, which is the preset's."""
        after = server_fit.values_of(self.fit.engine)
        return [
            {
                "constant": name,
                "meaning": MEANINGS.get(name, f"time of {name.replace('_', ' ')} kernels over that in profiles"),
                "unit": "us" if name in CONSTANTS else "",
                "before": value,
                "after": float(f"{after[name]:.{DIGITS}g}"),
                "spread": self.fit.spreads.get(name),
                "rows": self.fit.rows.get(name, 0),
            }
            for name, value in server_fit.values_of(self.preset).items()
        ]

    def document(self, output: str) -> dict[str, Any]:
        """JSON document of the fit."""
        case = self.cases[0]
        options = {name: value for name, value in case.options if value not in ("none", "auto", "1")}
        words = "".join(f" --{name.replace('_', '-')} {value}" for name, value in options.items())
        place = f"--hardware {case.hardware}{words} --engine {in_shell(Path(output))}"
        return {
            "schema": SCHEMA,
            "engine": self.cases[0].preset,
            "hardware": case.hardware,
            "configurations": self.configurations,
            "rows": int(self.chosen.sum()),
            "runs": self.runs,
            "files": self.measured.files,
            "metrics": self.metrics(),
            "constants": self.constants(),
            "kernels_in_traces": self.measured.kernels,
            "not_used": dict(self.measured.left_out),
            "output": output,
            "next": f"llmviewer analyze {case.model} {place} --batching continuous",
        }

    def text(self) -> str:
        """YAML of the engine file."""
        fitted, named = server_fit.values_of(self.fit.engine), self.fit.logs
        values = {name: float(f"{fitted[name]:.{DIGITS}g}") for name in named}
        origin, error, residuals, scope = origin_of(self.trials[0].group), {}, {}, {}
        for (metric, rows), scores in zip(self.of_metrics(), self.metrics(), strict=True):
            error[metric] = {origin: {"run": scores["after"] or {}, "preset": scores["before"]}}
            residuals[metric] = {origin: list(self.interval(rows))}
            scope[metric] = {origin: self._scope(rows)}
        content = {
            "base": self.cases[0].preset,
            "generation": self.trials[0].group.analysis.system.chip.generation,
            "configurations": self.configurations,
            "source": f"calibrate engine: {int(self.chosen.sum())} figures of {self.runs} runs of one server",
            "files": self.measured.files,
            "rows": {"fitted": int(self.chosen.sum()), "not_used": sum(self.measured.left_out.values())},
            "constants": {name: value for name, value in values.items() if name in CONSTANTS},
            "factors": {name: value for name, value in values.items() if name in FACTORS},
            **{name: value for name, value in values.items() if name in server_fit.SHARES},
            "error": error,
            "residuals": residuals,
            "scope": scope,
        }
        return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=118, allow_unicode=True)

    def _scope(self, rows: Array) -> dict[str, Any]:
        """The fields of a `Scope` of these rows."""
        cases = [case for case, one in zip(self.cases, rows, strict=True) if one]
        shares = np.concatenate([host_shares(trial.group) for trial in self.trials])[rows]
        sizes = {name: [getattr(case, name) for case in cases] for name in ("batch", "input_len")}
        return {
            "chips": sorted({case.hardware for case in cases}),
            "batching": sorted({case.batching for case in cases}),
            **{name: [min(values), max(values)] for name, values in sizes.items()},
            "host_share": round(float(np.max(shares)), 3),
        }


def _scores(ratio: Array, low: Array, high: Array) -> dict[str, float]:
    """Errors of rows from measured / predicted, and the share of them inside an interval of it."""
    return errors(ratio).as_dict() | {"inside_80": round(float(np.mean((low <= ratio) & (ratio <= high))), 4)}


def _is_profile(path: Path) -> bool:
    """Whether a file holds times of kernels, not of requests."""
    return torch_profiler.is_table(path) or not is_result(path)


def _read(path: Path, stated: Stated, measured: Measured) -> None:
    """Add what a file holds; a file without any usable figure is named with the reason."""
    where = f"'{printable(path)}'"
    before = len(measured.frame) + len(measured.kernels)
    try:
        if not path.is_file():
            raise UserError(f"cannot read {where}: no such file")
        if not is_result(path):
            _add_kernels(_of_trace(path, stated), measured)
        elif torch_profiler.is_table(path):
            _add_kernels(_of_table(torch_profiler.predict(path, stated, None)), measured)
        else:
            found = files.table(path, stated, lambda run: _checked(run, stated, where))
            measured.frame += [row for row in found.frame.to_dict("records") if not _is_derived(row, found.frame)]
            measured.left_out += found.left_out
    except UserError as error:
        text = error.marked
        measured.left_out[text if where in text else f"{where}: {text}"] += 1
    day = datetime.fromtimestamp(path.stat().st_mtime, UTC).date() if path.is_file() else "missing"
    figures = len(measured.frame) + len(measured.kernels) - before
    measured.files.append(f"{path.name}, {day}, {figures} figures")


def _checked(run: BenchmarkRun, stated: Stated, where: str) -> BenchmarkRun:
    """The run, unless its file contradicts what is stated.  Raises UserError."""
    for option, theirs, ours in (
        ("--hardware", run.hardware, stated.hardware),
        ("--model", run.model, stated.model),
        ("-tp", run.tensor if run.tensor > 1 else "", stated.tensor_parallel_size or ""),
        ("-pp", run.pipeline if run.pipeline > 1 else "", stated.pipeline_parallel_size or ""),
    ):
        if theirs and ours and _name_of(option, str(theirs)) not in ("", _name_of(option, str(ours))):
            raise UserError(f"{where} ({run.program}) states {theirs}, and {option} {ours}; remove one of them")
    return run


def _name_of(option: str, text: str) -> str:
    """A chip or model by the name that it has here, "" for an unknown one; other texts as they are."""
    try:
        if option == "--hardware":
            return str(specs.load(text).name)
        return checkpoint(text)[0] if option == "--model" else text
    except UserError:
        return ""


def _is_derived(row: Mapping[Any, Any], frame: pd.DataFrame) -> bool:
    """Whether a figure follows from two others of its run."""
    same = ["batch", "input_len", "output_len"]
    others = frame[(frame[same] == [row[name] for name in same]).all(axis=1)]["metric"]
    return row["metric"] in DERIVED and {*others} >= BOTH


def _of_trace(path: Path, stated: Stated) -> Iterator[tuple[str, float, float]]:
    """Kind, measured and predicted seconds of the operators in a trace."""
    if not (stated.hardware and stated.model):
        raise UserError(
            f"'{printable(path)}' is a profile, which states neither chip nor model: add --hardware --model"
        )
    names = ("quantization", "kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size", "batch_size",
             "input_len", "stage", "passes", "engine")  # fmt: skip
    given: dict[str, Any] = {name: value for name in names if (value := getattr(stated, name))}
    for row in diagnosis.diagnose(path, stated.model, stated.hardware, **given).rows():
        yield row["kind"], row["measured_s"] or 0.0, row["predicted_s"] or 0.0


def _of_table(frame: pd.DataFrame) -> Iterator[tuple[str, float, float]]:
    for row in frame.to_dict("records"):
        yield str(row["metric"]).removesuffix("_ms"), row["value"], row["predicted"]


def _add_kernels(rows: Iterator[tuple[str, float, float]], measured: Measured) -> None:
    """Add measured over predicted time of each group of kernels that has a factor."""
    sums: dict[str, list[float]] = {}
    for kind, seconds, predicted in rows:
        if kind in SEEN and seconds > 0.0 and predicted > 0.0:
            total = sums.setdefault(SEEN[kind], [0.0, 0.0])
            total[0] += seconds
            total[1] += predicted
    if not sums:
        raise UserError("the profile has no products, attention or collectives that the model's prediction has")
    measured.kernels |= {name: seconds / predicted for name, (seconds, predicted) in sums.items()}


def _cases(measured: Measured) -> tuple[dict[int, RequestCase], Array]:
    """Cases of the rows, all of one chip and one engine.  Raises UserError."""
    cases: dict[int, RequestCase] = {}
    for at, row in enumerate(measured.frame):
        try:
            cases[at] = case_of(row)
        except UserError as error:
            measured.left_out[error.marked] += 1
    if not cases:
        whole = "a profile alone gives no time of a request; add the result of a benchmark"
        raise UserError(f"no figure can be used: {next(iter(measured.left_out), whole)}")
    for what, names in (
        ("chips", {case.hardware for case in cases.values()}),
        ("engines", {case.preset for case in cases.values()}),
    ):
        if len(names) > 1:
            raise UserError(f"the files are of several {what}: {', '.join(sorted(names))}; calibrate each alone")
    values = np.array([float(row["value"]) for row in measured.frame])
    _check_stable(cases, values)
    return cases, values


def _check_stable(cases: Mapping[int, RequestCase], values: Array) -> None:
    """Raise UserError for a figure that was measured twice under one load with very different values."""
    groups: dict[RequestCase, list[float]] = {}
    for at, case in cases.items():
        groups.setdefault(case, []).append(float(values[at]))
    for case, found in groups.items():
        if max(found) > UNSTABLE * min(found):
            raise UserError(
                f"{case.metric} at {case.batch:g} concurrent requests was measured as {min(found):.4g} and as "
                f"{max(found):.4g}: an unstable server; measure longer, on an idle machine, after a warm-up"
            )


def _trials(cases: Mapping[int, RequestCase], values: Array, measured: Measured) -> tuple[list[Trial], Engine]:
    """Evaluated groups of cases, and their preset.  Raises UserError if there is none."""
    trials = []
    for group in evaluate_groups(cases):
        if isinstance(group, CaseGroup):
            trials.append(Trial(group=group, measured=values[list(group.places)]))
        else:
            measured.left_out[group.reason] += len(group.places)
    if not trials:
        raise UserError(f"no figure can be used: {next(iter(measured.left_out))}")
    return trials, trials[0].group.analysis.system.engine


def _possible(trial: Trial, measured: Measured) -> Array:
    """Which rows take at least the time of the roofline; the others are counted."""
    wrong = np.array(impossible(trial.group, trial.measured), dtype=bool)
    if wrong.any():
        measured.left_out[IMPOSSIBLE_REASON] += int(wrong.sum())
    return ~wrong

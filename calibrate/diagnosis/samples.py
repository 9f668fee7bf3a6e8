"""Diagnosis of samples of `calibrate run`: this machine's kernels at a model's shapes against their predictions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate import predict, sources
from llmviewer.calibrate.devices import known_chip
from llmviewer.calibrate.diagnosis.times import BESIDE, Comparison, OperatorTimes
from llmviewer.calibrate.readers.files import is_benchmark
from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core import data
from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.ops.attention import AttentionShape
from llmviewer.ops.gemm import GemmShape
from llmviewer.timing.profile import load

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[object, ...]
#: Steps whose operators are looked for: one token, and a prompt of two.
STEPS: tuple[Step, ...] = (decode(1.0, 1.0), prefill(1.0, 2.0))
#: Chip whose constants a prediction has, at the end of the basis of a row.
LENDER = re.compile(r"\(([^()]+)\)$")


def is_own(path: Path) -> bool:
    """Whether a file or folder is what `calibrate run` wrote."""
    return data.is_there(path) and sources.is_samples(path) and not is_benchmark(path)


def compared_samples(path: Path, chosen: Configuration) -> tuple[Comparison, str, tuple[str, ...]]:
    """The comparison of the sampled kernels that the model's operators run, a note of how many, and warnings.

    Times are sums over the samples [s].  Raises UserError if no sample has a shape and format of the model.
    """
    source = sources.read(path)
    _check_device(source, chosen)
    wanted = _operators_by_key(chosen)
    found = Comparison(passes=1, phases=Counter())
    for name in BESIDE:
        found.operators[name] = OperatorTimes(name=name, kind="engine")
    rows, reasons, unstable = 0, Counter[str](), 0
    for table, frame in source.kernels:
        rows += len(frame)
        own = _own_rows(usable_rows(frame, table)[0], chosen, wanted)
        for row in _predicted(own, chosen):
            if row["reason"]:
                reasons[row["reason"]] += 1
            else:
                unstable += not row.get("stable", True)
                _add(found, table, row)
    compared = sum(sum(one.kernels.values()) for one in found.operators.values())
    if not compared:
        raise UserError(_nothing(path, chosen, rows, reasons))
    found.measured_s = found.kernel_s
    warnings = [f"{count} samples are left out: {reason}" for reason, count in reasons.items()]
    if unstable:
        warnings.append(f"{unstable} of the samples compared are unstable: their times vary from run to run")
    return found, f"{compared} of {rows} sampled kernels have the shapes of {chosen.model.name}", tuple(warnings)


def _check_device(source: sources.TableSource, chosen: Configuration) -> None:
    device = str(source.environment.get("device", ""))
    chip, known = chosen.system.chip.name, known_chip(device)
    if device and (known or known_chip(chip)) and known != chip:
        own = "" if known else ", of which `calibrate fit` writes a chip"
        raise UserError(f"the samples are of {known or device}{own}, and --hardware is {chip}")


def _operators_by_key(chosen: Configuration) -> dict[Key, tuple[str, Operator]]:
    """Key of a kernel -> names of the operators of the model that run it, and one of them."""
    found: dict[Key, tuple[dict[str, None], Operator]] = {}
    for step in STEPS:
        for _, operator in chosen.system.prepared(chosen.model.graph(step)):
            for key in _keys(operator, float(np.max(step.tokens)), 1):
                found.setdefault(key, ({}, operator))[0][operator.name] = None
    return {key: (", ".join(names), operator) for key, (names, operator) in found.items()}


def _own_rows(frame: pd.DataFrame, chosen: Configuration, wanted: Mapping[Key, tuple[str, Operator]]) -> pd.DataFrame:
    """Rows whose kernels the model runs, with the operators' names, kinds and formats of their matrix products."""
    operators = frame.assign(operator="", kind="")
    for group in row_groups(frame, chosen.system.chip):
        if isinstance(group, RowGroup):
            operators.loc[group.index, ["operator", "kind"]] = _names(group, frame, wanted)
    return operators.loc[operators["operator"] != ""]


def _names(group: RowGroup, frame: pd.DataFrame, wanted: Mapping[Key, tuple[str, Operator]]) -> list[tuple[str, str]]:
    """Names and kind of the model's operators that run the kernel of each row; empty without any."""
    rows = frame.loc[group.index]
    tokens = rows["tokens"].to_numpy(dtype=np.float64) if "tokens" in rows.columns else 1.0
    keys = zip(*(_keys(one, tokens, len(rows)) for one in group.operators), strict=True)
    found = [[wanted.get(key) for key in of_row] for of_row in keys]
    return [
        (", ".join(one[0] for one in row if one), row[-1][1].kind.value) if all(row) and row[-1] else ("", "")
        for row in found
    ]


def _keys(operator: Operator, tokens: Any, rows: int) -> list[Key]:
    """Dimensions and formats of a kernel for each row, which kernels of another number of tokens share."""
    shape = operator.shape
    if isinstance(shape, GemmShape):
        sizes: tuple[Any, ...] = (shape.n, shape.k, shape.experts)
        formats: tuple[Any, ...] = ("product", _bits(operator.weight_dtype), operator.compute)
    elif isinstance(shape, AttentionShape):
        sizes = (shape.heads, shape.kv_heads, shape.qk_dim, shape.v_dim)
        formats = ("attention", shape.causal, operator.compute)
    else:
        sizes = (operator.writes[0].elements / tokens,)
        formats = (operator.kind, operator.role, _bits(operator.output.dtype))
    columns = [np.broadcast_to(np.asarray(size, dtype=np.float64), (rows,)) for size in sizes]
    return [(*formats, *map(float, of_row)) for of_row in zip(*columns, strict=True)]


def _bits(dtype: Dtype) -> int:
    """Bits of a value without its share of scales."""
    return int(dtype.bits)


def _predicted(rows: pd.DataFrame, chosen: Configuration) -> Iterator[dict[str, Any]]:
    if rows.empty:
        return
    text = chosen.options.profile
    options = predict.PredictionOptions(hardware=chosen.system.chip, profile=load(Path(text)) if text else None)
    for row in predict.predict(rows, options).to_dict("records"):
        yield {str(name): value for name, value in row.items()}


def _add(found: Comparison, table: str, row: Mapping[str, Any]) -> None:
    """Add a row with its prediction to the operators' times."""
    name, label = row["operator"], f"{table}: {row['kernel']} {row['dtype']}"
    lender = LENDER.search(row["basis"])
    borrowed = lender[1] if lender and lender[1] != row["device"] else ""
    own = found.operators.setdefault(name, OperatorTimes(name=name, kind=row["kind"], borrowed=borrowed))
    measured, predicted, low, high = (
        row[column] * 1e-6 for column in ("latency_us", "predicted_us", "low80_us", "high80_us")
    )
    own.measured_s += measured
    own.predicted_s += predicted
    own.low_s += low
    own.high_s += high
    own.kernels[label] += 1
    own.kernel_s[label] = own.kernel_s.get(label, 0.0) + measured
    run = found.runs.setdefault((label, own.kind, name), [0.0, 0.0])
    run[0] += 1.0
    run[1] += measured


def _nothing(path: Path, chosen: Configuration, rows: int, reasons: Counter[str]) -> str:
    """Reason why no sample is compared."""
    if reasons:
        return f"'{path}' has no sample that can be predicted: {next(iter(reasons))}"
    return (
        f"none of the {rows} sampled kernels in '{path}' has the shapes and formats of {chosen.model.name}; "
        "`calibrate run` states its models and dtypes, and --dtype and --quantization those of the prediction"
    )

"""Reader of the text of torch.profiler's `key_averages().table()`: time of the kernels of a forward pass by kind.

Columns: https://docs.pytorch.org/tutorials/recipes/recipes/profiler_recipe.html.  A rule of dashes gives their places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.calibrate.e2e_rows import RequestCase, case_of
from llmviewer.calibrate.e2e_runs import configured
from llmviewer.calibrate.readers.run import BenchmarkRun, Stated, rows
from llmviewer.core import data, files
from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.result import interval
from llmviewer.timing import engine
from llmviewer.timing.calibrated import Calibrated
from llmviewer.timing.profile import Profile

if TYPE_CHECKING:
    import pandas as pd

PROGRAM = "torch.profiler"
STAGES = ("prefill", "decode")
#: Words of the header of every table.
SIGNS = (b"Self CPU", b"# of Calls")
HEAD_BYTES, MAX_BYTES = 4096, 2**24
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
#: Group -> pattern of the names of its kernels and operators; the first match counts.  What fusions move between norms,
#: activations, sums and copies is one group.
OTHERS = "others"
GROUPS: dict[str, str] = {
    "collective": r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device",
    "attention": r"attention|attn|flash|fmha|sdpa|softmax|\bmla|paged",
    OTHERS: r"norm|silu|gelu|act_and_mul|rotary|rope|embedding|index|elementwise|triton_(poi|red|per)|quant(?!.*gemm)"
    r"|copy|memcpy|memset|cache|cat|argmax|sampl|topk|sort|reduce_kernel|aten::(add|sub|mul|div|pow|neg|rsqrt|mean)",
    "gemm": r"gemm|gemv|cutlass|cublas|nvjet|xmma|marlin|fused_moe|splitk"
    r"|aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_int_mm|_grouped_mm|linear)",
}
#: Kinds of operators of each group; `others` has the rest.
KINDS = {
    "gemm": (Kind.GEMM,),
    "attention": (Kind.ATTENTION, Kind.SOFTMAX),
    "collective": (Kind.COLLECTIVE,),
}
#: Annotations that span kernels, and calls of the host.
SPANS = re.compile(r"ProfilerStep|##|cuda[A-Z]|Activity Buffer|hip[A-Z]")


def is_table(path: Path) -> bool:
    """Whether a file is the text of a profiler's table."""
    head = files.head(path, HEAD_BYTES)
    return head.lstrip().startswith(b"--") and all(sign in head for sign in SIGNS)


def predict(path: Path, stated: Stated, profile: Profile | None) -> pd.DataFrame:
    """Measured and predicted time of the kernels of one forward pass by group, as rows of an end-to-end table [ms].

    Raises UserError for what the user does not state: a profile names neither model nor chip nor lengths.
    """
    return predicted_groups(dict(_seconds(path)), stated, profile, PROGRAM, f"'{printable(path)}'")


def predicted_groups(
    seconds: Mapping[str, float], stated: Stated, profile: Profile | None, program: str, where: str
) -> pd.DataFrame:
    """Rows of an end-to-end table [ms] for the seconds of groups of kernels over all passes; "": of no known group.

    program, where: the profiler and its file, for messages.  Raises UserError for what the user does not state.
    """
    import pandas as pd

    if stated.stage not in STAGES:
        missing = f"{where} ({program}) does not state the stage: add --stage prefill or --stage decode"
        raise unknown("stage", stated.stage, STAGES) if stated.stage else UserError(missing)
    passes = max(stated.passes, 1)
    figures = {f"{group}_ms": 1e3 * time / passes for group, time in seconds.items() if group in GROUPS and time > 0.0}
    run = BenchmarkRun(program=program, figures=figures, batching="static", output_len=1.0)
    found = rows(run, stated, where)
    case = case_of({**found[0], "metric": "latency_ms"})
    priced = _priced(case, stated.stage, profile)
    for row in found:
        group = str(row["metric"]).removesuffix("_ms")
        row.update(basis="", reason="", note=f"kernels of one {stated.stage} pass")
        row.update(priced.get(group, {"reason": f"the predicted pass has no kernels of this kind: {group}"}))
    unrecognized = seconds.get("", 0.0)
    if unrecognized:
        share = unrecognized / sum(seconds.values())
        found.append({"reason": f"kernels of unknown kind, {share:.0%} of the profiled time"})
    return pd.DataFrame(found)


def _priced(case: RequestCase, stage: str, profile: Profile | None) -> dict[str, Mapping[str, Any]]:
    """Columns of the prediction of every group of the pass, times in ms."""
    configuration, system = configured(case, engine.load(case.engine), profile)
    step: Step = (
        prefill(case.batch, case.input_len)
        if stage == "prefill"
        else decode(case.batch, max(case.input_len - 1.0, 0.0))
    )
    evaluation = evaluate(configuration.model, system, step)
    assert isinstance(system.efficiency, Calibrated)
    ratios = interval.bound_ratios(evaluation, system.efficiency, system.chip)
    named = {kind: group for group, kinds in KINDS.items() for kind in kinds}
    found: dict[str, Mapping[str, Any]] = {}
    for group in GROUPS:
        own = tuple(row for row in evaluation.rows if named.get(row.operator.kind, "others") == group)
        part: Evaluation = replace(evaluation, rows=own, served=())
        if own:
            time = np.atleast_1d(np.asarray(part.time_s, dtype=float))
            bounds = interval.sum_bounds(part, system.efficiency, ratios, np.atleast_1d, time)
            low95, low80, high80, high95 = (float(bound[0]) * 1e3 for bound in bounds)
            found[group] = {
                "predicted": float(time[0]) * 1e3, "low80": low80, "high80": high80, "low95": low95, "high95": high95,
                "ideal": float(np.atleast_1d(part.ideal_time_s)[0]) * 1e3, "basis": system.efficiency.origin,
            }  # fmt: skip
    return found


def _seconds(path: Path) -> dict[str, float]:
    """Group -> time of its kernels; empty name: kernels of no known group.

    With a device, its kernels are rows without time on the host; where the table has only operators, those.
    """
    table = list(_rows(data.read_text(path, MAX_BYTES)))
    device = next((name for name in table[0] if re.fullmatch(r"Self (?!CPU)\w+", name)), "Self CPU")
    timed = [row for row in table if _time(row[device]) > 0.0 and not SPANS.match(row["Name"])]
    kernels = [row for row in timed if device != "Self CPU" and _time(row["Self CPU"]) == 0.0]
    found: dict[str, float] = {}
    for row in kernels or timed:
        group = next((name for name, names in GROUPS.items() if re.search(names, row["Name"], re.IGNORECASE)), "")
        found[group] = found.get(group, 0.0) + _time(row[device])
    return found


def _rows(text: str) -> Iterator[dict[str, str]]:
    """Rows of the table: column -> text.  Raises UserError if there is none."""
    lines = text.lstrip("\n").splitlines()
    places = [match.span() for match in re.finditer("-+", lines[0])]
    names = [lines[1][start:end].strip() for start, end in places] if len(lines) > 3 else []
    body = [line for line in lines[3:] if not line.startswith("--")]
    found = [dict(zip(names, (line[a:b].strip() for a, b in places), strict=True)) for line in body]
    found = [row for row in found if row.get("# of Calls")]
    if not found or "Self CPU" not in names:
        raise UserError("the profiler's table has no rows")
    yield from found


def _time(text: str) -> float:
    """A time with its unit [s]; zero for an empty cell."""
    match = re.fullmatch(r"([\d.]+)(ns|us|ms|s)", text)
    return float(match[1]) * SECONDS[match[2]] if match else 0.0

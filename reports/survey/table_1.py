"""Table 1: layers of Llama-2-7b on an A6000, 2,048 tokens, batch size 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports import format as fmt
from llmviewer.reports.page import Row, Table, left, right
from llmviewer.reports.plots import roofline
from llmviewer.reports.survey.figure import Claim, Frames, Results, Rows, SurveyFigure, Verdict
from llmviewer.reports.survey.peer import SurveyQuery, peers, read

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

#: Columns that hold no single value.
NESTED_COLUMNS = ("time_interval_s", "inputs", "output_shape")
#: A share of the compute rate that counts as far below it.
FAR_BELOW = 0.05


def frames(results: Results) -> Frames:
    """Returns a row per operator with figures of one layer; `share` is of the whole stage."""
    operators = roofline.frame(results)
    return {"": operators.drop(columns=list(NESTED_COLUMNS)), "roofs": roofline.roofs(results)}


def draw(frames: Frames, style: Style) -> Picture:
    """Draws the operators under the roofs."""
    return roofline.draw(frames[""], frames["roofs"], style)


def table(frames: Frames) -> Table:
    """Returns the table as the survey prints it, for one layer, with LLM-Viewer's counts next to ours."""
    theirs = read()["operators"]
    heads = ("Operations", "LLM-Viewer", "Memory access", "LLM-Viewer", "Intensity", "Performance")
    rows = []
    for row in frames[""].to_dict("records"):
        flops, moved = theirs[row["stage"]].get(row["name"], (None, None))
        numbers = (
            fmt.count(row["flops"]), fmt.count(flops), fmt.traffic(row["traffic_bytes"]), fmt.traffic(moved),
            fmt.intensity(row["arithmetic_intensity"]), fmt.flops_per_s(row["attainable_flops_per_s"]),
        )  # fmt: skip
        rows.append(Row(cells=(row["stage"], row["name"], *numbers, row["bound"])))
    columns = (left("Stage"), left("Operator"), *map(right, heads), left("Bound"))
    return Table(columns=columns, rows=tuple(rows))


def total(rows: Rows, field: str) -> float:
    """Returns the sum of a column over all layers."""
    return float((rows[field] * rows["layers"]).sum())


def prefill_is_compute_bound(frames: Frames) -> Verdict:
    """Checks that most operations of prefill are compute-bound."""
    rows = frames[""].query("stage == 'prefill'")
    bound = rows[rows["bound"] == "compute"]
    flops, seconds = (total(bound, field) / total(rows, field) for field in ("flops", "time_s"))
    because = (
        f"{fmt.percent(flops)} of the operations and {fmt.percent(seconds)} of the time of prefill are compute-bound "
        f"({', '.join(bound['name'])}), although these are only {len(bound)} of {len(rows)} operators"
    )
    return Verdict(holds=flops > 0.5, because=because)


def decode_is_memory_bound(frames: Frames) -> Verdict:
    """Checks that every operator of decode is memory-bound."""
    rows = frames[""].query("stage == 'decode'")
    other = rows[rows["bound"] != "memory"]
    because = f"{len(rows) - len(other)} of {len(rows)} operators of decode are memory-bound"
    return Verdict(holds=other.empty, because=because)


def decode_is_slow(frames: Frames) -> Verdict:
    """Checks that matrix products of decode are far below the compute rate."""
    rows = frames[""].query("stage == 'decode' and matmul_flops > 0")
    top = frames[""].query("stage == 'prefill'")["attainable_flops_per_s"].max()
    best = float(rows["attainable_flops_per_s"].max()) / float(top)
    because = f"no matrix product of decode reaches more than {fmt.percent(best)} of {fmt.flops_per_s(float(top))}"
    return Verdict(holds=best < FAR_BELOW, because=because)


FIGURE = SurveyFigure(
    title="Table 1: layers of Llama-2-7b on the A6000",
    setting="Sequence length 2,048, batch size 1; eager attention.",
    queries={"llama-2-7b": SurveyQuery(model="llama-2-7b", input_len=(2048,)).with_options()},
    frames=frames,
    draw=draw,
    table=table,
    claims=(
        Claim(
            says="During the prefill stage, the majority of computations are compute-bound, leading to high "
            "performance.",
            check=prefill_is_compute_bound,
        ),
        Claim(says="In the decode stage, all computations are memory-bound.", check=decode_is_memory_bound),
        Claim(
            says="Performance in decode is significantly below the computational capacity of the GPU.",
            check=decode_is_slow,
        ),
    ),
    peers=(
        *peers(
            ("prefill", "decode"),
            ("traffic_bytes", "time_s"),
            ("absent", "mlp_act", "adds", "norms"),
            model=("llama-2-7b",),
        ),
        *peers(("prefill", "decode"), ("flops",), ("lm_head", "absent", "mlp_act"), model=("llama-2-7b",)),
    ),
)

"""Figure 15: operator fusion, memory-bound and compute-bound cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llmviewer.reports import format as fmt
from llmviewer.reports.plots import roofline, ticks
from llmviewer.reports.plots.roofs import scales
from llmviewer.reports.plots.style import colour, marker
from llmviewer.reports.survey.figure import Claim, Frames, Results, Rows, SurveyFigure, Verdict, under
from llmviewer.reports.survey.peer import SurveyQuery

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

#: Rule of --fusion -> label.
RULES = {
    "linear-activation": "linear + SiLU",
    "softmax": "QK + softmax + SV",
    "residual-norm": "sum + norm",
    "qkv": "q + k + v",
    "gate-up": "gate + up",
}
MAIN = "tensor bf16, fp16"
CASES = ("memory", "mixed", "compute")
#: Minimum speedup of a labelled kernel.
MIN_LABELLED_SPEEDUP = 1.005
#: A gain below this is "little benefit".
LITTLE = 0.01


def frames(results: Results) -> Frames:
    """Returns a row per fused kernel and stage: FLOP, bytes and time before and after fusion."""
    import pandas as pd

    plain = _rows(results["none"])
    rows = [row for rule in RULES for row in _fused(rule, plain, results[rule])]
    found = pd.DataFrame(rows)
    for when in ("before", "after"):
        found[f"intensity_{when}"] = found[f"flops_{when}"] / found[f"traffic_bytes_{when}"]
        found[f"performance_{when}"] = found[f"flops_{when}"] / found[f"time_s_{when}"]
    found["speedup"] = found["time_s_before"] / found["time_s_after"]
    return {"": found, "roofs": roofline.roofs({"none": results["none"]})}


def _rows(result: Any) -> Rows:
    return result.operators.set_index(["stage", "name"])


def _fused(rule: str, plain: Rows, result: Any) -> Iterator[dict[str, Any]]:
    after = _rows(result)
    for fusion in result.to_dict()["fusions"]:
        for stage in ("prefill", "decode"):
            members, kernel = (
                plain.loc[[(stage, name) for name in fusion["operators"]]],
                after.loc[(stage, fusion["kernel"])],
            )
            bounds = {"memory" if bound == "memory" else "compute" for bound in members["bound"]}
            row = {"rule": rule, "stage": stage, "kernel": fusion["kernel"], "operators": "+".join(fusion["operators"])}
            row["case"] = bounds.pop() if len(bounds) == 1 else "mixed"
            for quantity in ("flops", "traffic_bytes", "time_s"):
                row |= {f"{quantity}_before": members[quantity].sum(), f"{quantity}_after": kernel[quantity]}
            yield row


def draw(frames: Frames, style: Style) -> Picture:
    """Draws an arrow from the operators to the kernel that fuses them."""
    rows = frames[""].sort_values("speedup", ascending=False)
    figure, (axes,) = style.figure()
    style.title(figure, "Llama-2-7b on a6000: fused kernels (filled: prefill, hollow: decode, grey: before fusion)")
    scales(axes, (0.1, 5e3), (6e10, 1.5e15))
    named = []
    for row in rows.itertuples():
        _arrow(axes, row, style)
        if row.speedup > MIN_LABELLED_SPEEDUP:
            words = f"{RULES[row.rule]}, {row.stage}: {fmt.times(row.speedup)} as fast"
            named.append(
                ticks.Label(words=words, x=row.intensity_after, y=row.performance_after, colour=style.theme.ink)
            )
    _key(axes, style)
    roofs = frames["roofs"]
    under(axes, roofs[(roofs["roof"] == "memory") | (roofs["what"] == MAIN)], MAIN, named, style)
    return figure


def _arrow(axes: Any, row: Any, style: Style) -> None:
    """Draws one arrow; filled markers are prefill, hollow ones decode."""
    at = CASES.index(row.case)
    fill = colour(at) if row.stage == "prefill" else "none"
    start, end = (row.intensity_before, row.performance_before), (row.intensity_after, row.performance_after)
    look = {"arrowstyle": "->", "color": colour(at), "linewidth": 1.2}
    axes.annotate("", end, xytext=start, arrowprops=look, zorder=5)
    axes.scatter(*start, s=1.5 * style.size.text, color=style.theme.faint, marker=marker(at), zorder=4)
    axes.scatter(*end, s=4.0 * style.size.text, facecolors=fill, edgecolors=colour(at), marker=marker(at), zorder=4)


def _key(axes: Any, style: Style) -> None:
    from matplotlib.lines import Line2D

    cases = ("all operators memory-bound", "memory- and compute-bound operators", "all operators compute-bound")
    entries = [
        Line2D([], [], linestyle="", marker=marker(at), color=colour(at), label=text) for at, text in enumerate(cases)
    ]
    style.legend(axes, handles=entries, loc="upper left")


def it_raises_intensity(frames: Frames) -> Verdict:
    """Checks that every fused kernel has a higher intensity."""
    rows = frames[""]
    gain = rows["intensity_after"] / rows["intensity_before"]
    because = (
        f"the intensity of all {len(rows)} kernels increases, by {_more(gain.min())} to {_more(gain.max())}"
        if (gain > 1.0).all()
        else f"{int((gain <= 1.0).sum())} of {len(rows)} kernels have no higher intensity"
    )
    return Verdict(holds=bool((gain > 1.0).all()), because=because)


def memory_bound_gains(frames: Frames) -> Verdict:
    """Checks that kernels of memory-bound operators gain."""
    rows = frames[""].query("case == 'memory'").sort_values("speedup")
    least, most = rows.iloc[0], rows.iloc[-1]
    because = (
        f"{len(rows)} kernels of memory-bound operators gain {_more(least['speedup'])} ({_label(least)}) to "
        f"{_more(most['speedup'])} ({_label(most)}). The gain depends on the traffic between the operators: "
        "in decode, weights and KV cache remain and are nearly all of the traffic"
    )
    return Verdict(holds=bool((rows["speedup"] > 1.0).all()), because=because)


def compute_bound_gains_little(frames: Frames) -> Verdict:
    """Checks that kernels of compute-bound operators gain little."""
    rows, mixed = (frames[""].query("case == @case") for case in ("compute", "mixed"))
    gain = float(rows["speedup"].max()) - 1.0
    because = f"{len(rows)} kernels of compute-bound operators gain at most {fmt.percent(gain)}"
    for row in mixed.to_dict("records"):
        because += (
            f"; {_label(row)} gains {fmt.percent(row['speedup'] - 1.0)}, because one of its operators is memory-bound "
            "and overlaps the others after fusion"
        )
    return Verdict(holds=gain < LITTLE, because=because)


def _more(ratio: float) -> str:
    """Formats a gain, however small: `0.0045 %`, `1,600 %`."""
    return f"{100.0 * (ratio - 1.0):,.2g} %" if ratio < 1.1 else f"{100.0 * (ratio - 1.0):,.0f} %"


def _label(row: Any) -> str:
    return f"{RULES[row['rule']]} in {row['stage']}"


FIGURE = SurveyFigure(
    title="Figure 15: operator fusion, memory-bound and compute-bound",
    setting="The survey shows a sketch. Here: Llama-2-7b on the A6000, 2,048 tokens, batch size 1, eager attention, "
    "one rule of `--fusion` at a time.",
    queries={
        rule: SurveyQuery(model="llama-2-7b", input_len=(2048,)).with_options(fusion=rule) for rule in ("none", *RULES)
    },
    frames=frames,
    draw=draw,
    claims=(
        Claim(says="Kernel fusion can increase arithmetic intensity.", check=it_raises_intensity),
        Claim(says="Kernel fusion enhances performance in memory-bound areas.", check=memory_bound_gains),
        Claim(
            says="When operators are already compute-bound, fusion provides little benefit.",
            check=compute_bound_gains_little,
        ),
    ),
    differs=(
        "LLM-Viewer only fuses attention (figure 16), so it has no numbers for this figure. We count no redundant "
        "work in fused kernels."
    ),
)

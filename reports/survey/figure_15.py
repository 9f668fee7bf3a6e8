"""Figure 15: operator fusion, memory-bound and compute-bound cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from llmviewer.reports import format as fmt
from llmviewer.reports.plots import labels, roofline
from llmviewer.reports.plots.roofs import scales
from llmviewer.reports.plots.style import colour, marker
from llmviewer.reports.survey.ask import SurveyQuery
from llmviewer.reports.survey.figure import Claim, Frames, Results, Rows, SurveyFigure, Verdict
from llmviewer.reports.survey.roof_axes import under

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

#: Rules of --fusion -> how the picture calls them.
RULES = {
    "linear-activation": "linear + SiLU",
    "softmax": "QK + softmax + SV",
    "residual-norm": "sum + norm",
    "qkv": "q + k + v",
    "gate-up": "gate + up",
}
MAIN = "tensor bf16, fp16"
CASES = ("memory", "mixed", "compute")
#: The picture names what gains more.
SEEN = 1.005
#: Little benefit is below this.
LITTLE = 0.01


def frames(results: Results) -> Frames:
    """A row per fused kernel and stage: work, bytes, time of what it replaces and of itself."""
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
    return result.operators().set_index(["stage", "name"])


def _fused(rule: str, plain: Rows, result: Any) -> Iterator[dict[str, Any]]:
    after = _rows(result)
    for fired in result.to_dict()["fusions"]:
        for stage in ("prefill", "decode"):
            members, kernel = (
                plain.loc[[(stage, name) for name in fired["operators"]]],
                after.loc[(stage, fired["kernel"])],
            )
            bounds = {"memory" if bound == "memory" else "compute" for bound in members["bound"]}
            row = {"rule": rule, "stage": stage, "kernel": fired["kernel"], "operators": "+".join(fired["operators"])}
            row["case"] = bounds.pop() if len(bounds) == 1 else "mixed"
            for what in ("flops", "traffic_bytes", "time_s"):
                row |= {f"{what}_before": members[what].sum(), f"{what}_after": kernel[what]}
            yield row


def draw(frames: Frames, style: Style) -> Picture:
    """An arrow from the operators to the kernel that fuses them."""
    rows = frames[""].sort_values("speedup", ascending=False)
    figure, (axes,) = style.figure()
    style.title(figure, "Llama-2-7b on a6000: fused kernels, filled prefill, hollow decode, grey before fusing")
    scales(axes, (0.1, 5e3), (6e10, 1.5e15))
    named = []
    for row in rows.itertuples():
        _arrow(axes, row, style)
        if row.speedup > SEEN:
            words = f"{RULES[row.rule]}, {row.stage}: {fmt.times(row.speedup)} as fast"
            named.append(
                labels.Label(words=words, x=row.intensity_after, y=row.performance_after, colour=style.theme.ink)
            )
    _key(axes, style)
    roofs = frames["roofs"]
    under(axes, roofs[(roofs["roof"] == "memory") | (roofs["what"] == MAIN)], MAIN, named, style)
    return figure


def _arrow(axes: Any, row: Any, style: Style) -> None:
    """Filled is prefill, hollow is decode."""
    at = CASES.index(row.case)
    fill = colour(at) if row.stage == "prefill" else "none"
    start, end = (row.intensity_before, row.performance_before), (row.intensity_after, row.performance_after)
    look = {"arrowstyle": "->", "color": colour(at), "linewidth": 1.2}
    axes.annotate("", end, xytext=start, arrowprops=look, zorder=5)
    axes.scatter(*start, s=1.5 * style.size.text, color=style.theme.faint, marker=marker(at), zorder=4)
    axes.scatter(*end, s=4.0 * style.size.text, facecolors=fill, edgecolors=colour(at), marker=marker(at), zorder=4)


def _key(axes: Any, style: Style) -> None:
    from matplotlib.lines import Line2D

    words = ("all memory-bound before", "memory- and compute-bound", "all compute-bound before")
    entries = [
        Line2D([], [], linestyle="", marker=marker(at), color=colour(at), label=f"fused: {text}")
        for at, text in enumerate(words)
    ]
    style.legend(axes, handles=entries, loc="upper left")


def it_raises_intensity(frames: Frames) -> Verdict:
    """Every kernel."""
    rows = frames[""]
    gain = rows["intensity_after"] / rows["intensity_before"]
    because = (
        f"all {len(rows)} kernels: by {_more(gain.min())} to {_more(gain.max())}"
        if (gain > 1.0).all()
        else f"{int((gain <= 1.0).sum())} of {len(rows)} kernels do not"
    )
    return Verdict(holds=bool((gain > 1.0).all()), because=because)


def memory_bound_gains(frames: Frames) -> Verdict:
    """Operators that memory bounds before."""
    rows = frames[""].query("case == 'memory'").sort_values("speedup")
    least, most = rows.iloc[0], rows.iloc[-1]
    because = (
        f"{len(rows)} kernels of memory-bound operators gain, from {_more(least['speedup'])} ({_said(least)}) to "
        f"{_more(most['speedup'])} ({_said(most)}). How much depends on what moves between them: "
        "in decode the weights and the cache remain, and they are nearly all"
    )
    return Verdict(holds=bool((rows["speedup"] > 1.0).all()), because=because)


def compute_bound_gains_little(frames: Frames) -> Verdict:
    """Operators that arithmetic bounds before."""
    rows, mixed = (frames[""].query("case == @case") for case in ("compute", "mixed"))
    gain = float(rows["speedup"].max()) - 1.0
    because = f"{len(rows)} kernels of compute-bound operators gain at most {fmt.percent(gain)}"
    for row in mixed.to_dict("records"):
        because += (
            f"; {_said(row)} gains {fmt.percent(row['speedup'] - 1.0)}, since one of its operators is memory-bound and "
            "hides behind the others"
        )
    return Verdict(holds=gain < LITTLE, because=because)


def _more(ratio: float) -> str:
    """A gain, however small: `0.0045 %`, `1,600 %`."""
    return f"{100.0 * (ratio - 1.0):,.2g} %" if ratio < 1.1 else f"{100.0 * (ratio - 1.0):,.0f} %"


def _said(row: Any) -> str:
    return f"{RULES[row['rule']]} in {row['stage']}"


FIGURE = SurveyFigure(
    title="Figure 15: operator fusion, memory-bound and compute-bound",
    setting="The survey draws a sketch; here Llama-2-7b on the A6000, 2048 tokens, batch 1, eager attention, "
    "one rule of "
    "`--fusion` at a time.",
    asks={
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
        "LLM-Viewer fuses attention only (figure 16), so it has no numbers for this figure. In a fused kernel "
        "we count no "
        "work done twice."
    ),
)

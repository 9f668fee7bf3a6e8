"""Figure 16: memory access and time saved by flash attention on an A6000, in prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmviewer.reports import format as fmt
from llmviewer.reports.plots.style import colour, dashes, marker
from llmviewer.reports.survey.figure import Claim, Frames, Results, Rows, SurveyFigure, Verdict, labelled, tagged
from llmviewer.reports.survey.peer import SurveyQuery, peers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
ATTENTION = ("qk_matmul", "softmax", "sv_matmul", "attention")
QUANTITIES = {"traffic_bytes": "memory access", "time_s": "inference time"}
SCOPES = {"attention": "attention only", "network": "whole network"}
#: A reduction above this is significant.
SIGNIFICANT = 0.05
#: Shares that differ by less are equal.
EQUAL = 1e-6


def frames(results: Results) -> Frames:
    """Returns bytes and time with eager and flash attention, and the share saved."""
    import pandas as pd

    kinds = {kind: _measured(result) for kind, result in results.items()}
    rows = pd.merge(kinds["eager"], kinds["flash"], on=["length", "stage", "scope"], suffixes=("_eager", "_flash"))
    for quantity in QUANTITIES:
        rows[f"{quantity}_saved"] = 1.0 - rows[f"{quantity}_flash"] / rows[f"{quantity}_eager"]
    return {"": rows}


def _measured(result: Any) -> Rows:
    import pandas as pd

    rows = []
    for point, length in enumerate(LENGTHS):
        for stage in ("prefill", "decode"):
            found = result.stage(stage, point)
            own = [row for row in found["operators"] if row["name"] in ATTENTION]
            attention = {quantity: sum(row[quantity] * row["layers"] for row in own) for quantity in QUANTITIES}
            place = {"length": length, "stage": stage}
            rows.append({**place, "scope": "attention", **attention})
            rows.append({**place, "scope": "network", **{quantity: found[quantity] for quantity in QUANTITIES}})
    return pd.DataFrame(rows)


def draw(frames: Frames, style: Style) -> Picture:
    """Draws the saved shares over length, one panel per stage."""
    figure, many = style.figure(1, 2)
    for axes, stage in zip(many, ("prefill", "decode"), strict=True):
        for at, (scope, where) in enumerate(SCOPES.items()):
            rows = select(frames, stage, scope)
            for over, (quantity, label) in enumerate(QUANTITIES.items()):
                axes.plot(
                    rows["length"], 100.0 * rows[f"{quantity}_saved"], color=colour(at), linestyle=dashes(over),
                    marker=marker(2 * at + over), label=f"{label}, {where}", markersize=0.5 * style.size.text,
                )  # fmt: skip
        axes.set(xscale="log", ylim=(0.0, 100.0 if stage == "prefill" else None))
        axes.set_xticks(LENGTHS[::2], [f"{length:,}" for length in LENGTHS[::2]])
        axes.minorticks_off()
        labelled(axes, "Sequence length (tokens)", "Saved by flash attention (%)")
        tagged(axes, stage, style)
    style.title(figure, "Llama-2-13b on a6000: flash against eager attention, batch size 1")
    style.legend_below(figure, many[0].get_legend_handles_labels()[0])
    return figure


def select(frames: Frames, stage: str, scope: str = "network") -> Rows:
    """Returns the rows of one curve."""
    return frames[""].query("stage == @stage and scope == @scope")


def _saves(stage: str) -> Any:
    def check(frames: Frames) -> Verdict:
        rows = select(frames, stage)
        bytes_saved, time_saved = (float(rows[f"{quantity}_saved"].max()) for quantity in QUANTITIES)
        attention_only = float(select(frames, stage, "attention")["traffic_bytes_saved"].max())
        because = (
            f"at most {fmt.percent(bytes_saved)} of the memory access and {fmt.percent(time_saved)} of the time of "
            f"{stage} up to {fmt.whole(LENGTHS[-1])} tokens ({fmt.percent(attention_only)} of the memory access of "
            "attention)"
        )
        return Verdict(holds=min(bytes_saved, time_saved) > SIGNIFICANT, because=because)

    return check


def decode_saves_alike(frames: Frames) -> Verdict:
    """Checks that decode saves equal shares of bytes and time."""
    rows = select(frames, "decode")
    apart = float((rows["traffic_bytes_saved"] - rows["time_s_saved"]).abs().max())
    last = rows.iloc[-1]
    differ = "equal at every length" if apart < EQUAL else f"they differ by up to {fmt.percent(apart)}"
    because = (
        f"at {fmt.whole(last['length'])} tokens {fmt.percent(last['traffic_bytes_saved'])} of the bytes and "
        f"{fmt.percent(last['time_s_saved'])} of the time; {differ}"
    )
    return Verdict(holds=apart < EQUAL, because=because)


def prefill_saves_less_time(frames: Frames) -> Verdict:
    """Checks that prefill saves a smaller share of time than of bytes."""
    rows = select(frames, "prefill")
    last = rows.query("length == 4096").iloc[0]
    because = (
        f"at 4,096 tokens {fmt.percent(last['traffic_bytes_saved'])} of the bytes and "
        f"{fmt.percent(last['time_s_saved'])} "
        "of the time"
    )
    return Verdict(holds=bool((rows["time_s_saved"] < rows["traffic_bytes_saved"]).all()), because=because)


def their_own_savings(compared: Rows) -> str:
    """Returns the savings by LLM-Viewer's own numbers, and ours at the same settings."""
    numbers = compared.set_index(["stage", "quantity", "attention"])
    savings = []
    for stage in ("prefill", "decode"):
        for quantity, label in QUANTITIES.items():
            theirs, ours = (
                1.0 - float(numbers.loc[(stage, quantity, "flash"), who] / numbers.loc[(stage, quantity, "eager"), who])
                for who in ("llm_viewer", "ours")
            )
            savings.append(f"{100.0 * theirs:.2f} % of the {label} of {stage} (ours: {100.0 * ours:.2f} %)")
    return f"By its own numbers flash attention saves {', '.join(savings)}."


CAUSES = ("flash", "absent", "mlp_act", "adds", "norms")
FIGURE = SurveyFigure(
    title="Figure 16: memory access and time saved by flash attention",
    setting="Llama-2-13b on the A6000, batch size 1 (the caption names no model).",
    queries={kind: SurveyQuery(input_len=LENGTHS).with_options(attention=kind) for kind in ("eager", "flash")},
    frames=frames,
    draw=draw,
    claims=(
        Claim(
            says="Flash attention significantly decreases memory access and time of prefill.", check=_saves("prefill")
        ),
        Claim(says="Flash attention significantly decreases memory access and time of decode.", check=_saves("decode")),
        Claim(
            says="In decode the memory access reduction is the same as the time reduction.", check=decode_saves_alike
        ),
        Claim(
            says="In prefill the time reduction is lower than the memory access reduction, as some operations are "
            "compute-bound.",
            check=prefill_saves_less_time,
        ),
    ),
    remark=their_own_savings,
    peers=(
        *peers(("prefill", "decode"), ("traffic_bytes", "time_s"), CAUSES, input_len=(2048,), attention=("eager",)),
        *peers(("prefill", "decode"), ("traffic_bytes", "time_s"), CAUSES, input_len=(2048,), attention=("flash",)),
        *peers(("prefill",), ("flops",), ("mask", "lm_head", "absent"), input_len=(2048,), attention=("flash",)),
    ),
)

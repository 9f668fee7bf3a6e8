"""Figure 6: rooflines of an A6000 by number format of the computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports import format as fmt
from llmviewer.reports.plots import roofline, ticks
from llmviewer.reports.plots.roofs import scales
from llmviewer.reports.plots.style import colour, marker
from llmviewer.reports.survey.figure import Claim, Frames, Results, SurveyFigure, Verdict, under
from llmviewer.reports.survey.peer import SurveyQuery

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

FP16, INT8 = "tensor bf16, fp16", "tensor int8"
FORMATS = {"w16a16": "none", "w8a16": "w8a16", "w16a8": "w16a8", "w8a8": "w8a8", "w4a4": "w4a4"}
OTHER = "w4a4 on h100-sxm"
LAYERS = ("q_proj", "up_proj", "down_proj")


def frames(results: Results) -> Frames:
    """Returns the linear layers of prefill by format, with the units that run them."""
    rows = roofline.frame(results)
    rows = rows[(rows["stage"] == "prefill") & rows["name"].isin(LAYERS)]
    kept = ["configuration", "hardware", "name", "flops", "traffic_bytes", "arithmetic_intensity", "performance"]
    roofs = roofline.roofs({name: result for name, result in results.items() if name != OTHER})
    return {"": rows[[*kept, "bound", "compute_dtype", "time_s"]], "roofs": roofs}


def draw(frames: Frames, style: Style) -> Picture:
    """Draws the roofs and q_proj in each format."""
    figure, (axes,) = style.figure()
    rows = frames[""].query("hardware == 'a6000' and name == 'q_proj'").reset_index(drop=True)
    scales(axes, (3.0, 2e4), (2e12, 1.5e15))
    named = []
    for at, row in enumerate(rows.itertuples()):
        axes.scatter(
            row.arithmetic_intensity, row.performance, color=colour(at), marker=marker(at), zorder=5,
            label=f"{row.configuration}: {row.compute_dtype} units", s=4.0 * style.size.text,
        )  # fmt: skip
        at_point = {"x": row.arithmetic_intensity, "y": row.performance}
        named.append(ticks.Label(words=row.configuration, colour=style.theme.ink, **at_point))
    style.title(figure, "q_proj of Llama-2-13b on a6000: prefill of 2,048 tokens")
    style.legend(axes, loc="lower right")
    under(axes, frames["roofs"], INT8, named, style)
    return figure


def int8_is_twice_fp16(frames: Frames) -> Verdict:
    """Checks the ratio of INT8 and FP16 rates, which is 310 to 155 TOP/s in the survey."""
    rates = frames["roofs"].set_index("what")["rate"]
    ratio = float(rates[INT8] / rates[FP16])
    because = f"{fmt.tera(rates[INT8])} TOP/s is {fmt.times(ratio)} {fmt.tera(rates[FP16])} TFLOP/s"
    return Verdict(holds=abs(ratio - 2.0) < 0.01, because=because)


def compute_bound_layers_gain(frames: Frames) -> Verdict:
    """Checks that the layers take less time in int8 than in fp16."""
    rows = frames[""].query("hardware == 'a6000'")
    seconds = rows.groupby("configuration")["time_s"].sum()
    gain = float(seconds["w16a16"] / seconds["w8a8"])
    because = f"q, up and down projections of Llama-2-13b at 2,048 tokens run {fmt.times(gain)} as fast in w8a8"
    return Verdict(holds=gain > 1.9, because=because)


def only_int8_times_int8_reaches_it(frames: Frames) -> Verdict:
    """Checks that only w8a8 uses the int8 units."""
    rows = frames[""].query("hardware == 'a6000'")
    units = rows.groupby("configuration", sort=False)["compute_dtype"].agg(
        lambda names: ", ".join(dict.fromkeys(names))
    )
    holds = units["w8a8"] == "int8" and all(units[name] == "fp16" for name in ("w16a16", "w8a16", "w16a8"))
    computed = "; ".join(f"{name} computes in {units[name]}" for name in ("w16a16", "w8a16", "w16a8", "w8a8"))
    return Verdict(holds=holds, because=computed)


def an_h100_converts_int4(frames: Frames) -> Verdict:
    """Checks that w4a4 does not use int4 units on the H100 (section 3.1.1 of the survey)."""
    units = set(frames[""].query("configuration == @OTHER")["compute_dtype"])
    a6000_units = set(frames[""].query("configuration == 'w4a4'")["compute_dtype"])
    because = (
        f"w4a4 computes in {', '.join(units)} on the H100, and in {', '.join(a6000_units)} on the A6000, which has "
        "such units"
    )
    return Verdict(holds=units <= {"int8", "fp16", "bf16"}, because=because)


FIGURE = SurveyFigure(
    title="Figure 6: rooflines of the A6000 by number format",
    setting="Dense data-sheet rates; layers of Llama-2-13b in prefill of 2,048 tokens show the roof of each format.",
    queries={
        **{name: SurveyQuery(input_len=(2048,)).with_options(quantization=text) for name, text in FORMATS.items()},
        OTHER: SurveyQuery(hardware="h100-sxm", input_len=(2048,)).with_options(quantization="w4a4"),
    },
    frames=frames,
    draw=draw,
    claims=(
        Claim(says="INT8 runs twice as fast as FP16 on the A6000: 310 against 155 TOP/s.", check=int8_is_twice_fp16),
        Claim(says="INT8 computation improves performance of compute-bound layers.", check=compute_bound_layers_gain),
        Claim(
            says="To use INT8 units all operands must be INT8; INT8 weights with FP16 activations are "
            "converted to FP16.",
            check=only_int8_times_int8_reaches_it,
        ),
        Claim(
            says="The H100 does not support INT4: such tensors are converted to a wider format.",
            check=an_h100_converts_int4,
        ),
    ),
    differs=(
        "LLM-Viewer uses the INT8 roof only if the KV cache has 8 bit too; linear layers do not use the cache, so by "
        "our counts w8a8 with a 16-bit cache reaches it. LLM-Viewer also applies that roof to attention and lm_head, "
        "which we keep in 16 bit. The A6000 has INT4 units (619.3 TOP/s on the data sheet), which LLM-Viewer omits."
    ),
)

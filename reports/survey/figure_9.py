"""Figure 9: prefill time of Llama-2-13b over length by quantization, batch size 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports import format as fmt
from llmviewer.reports.survey.figure import (
    Claim,
    Frames,
    Results,
    Rows,
    SurveyFigure,
    Verdict,
    curves,
    joined_rows,
    log,
)
from llmviewer.reports.survey.peer import SurveyQuery, peers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

FORMATS = {"w16a16": "none", **{name: name for name in ("w8a8", "w8a16", "w4a16", "w2a16", "w1a16")}}
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def frames(results: Results) -> Frames:
    """Returns the prefill time by length and quantization."""
    return {"": joined_rows(results, prefill_time_s="prefill_time_s").rename(columns={"asked": "quantization"})}


def draw(frames: Frames, style: Style) -> Picture:
    """Draws the prefill time over length."""
    figure, (axes,) = style.figure()
    curves(axes, frames[""].assign(ms=frames[""]["prefill_time_s"] * 1e3), ("input_len", "ms", "quantization"), style)
    log(axes, "Prompt length (tokens)", "Prefill time (ms)")
    style.title(figure, "Llama-2-13b on a6000: prefill, batch size 1")
    style.legend(axes, loc="upper left")
    return figure


def seconds(frames: Frames, length: int) -> Rows:
    """Returns the prefill times at one length, by quantization [s]."""
    rows = frames[""]
    return rows[rows["input_len"] == length].set_index("quantization")["prefill_time_s"]


def short_prompts_gain(frames: Frames) -> Verdict:
    """Checks that quantization speeds up prefill of 16 tokens."""
    found = seconds(frames, 16)
    four, two = float(found["w16a16"] / found["w4a16"]), float(found["w4a16"] / found["w2a16"])
    because = f"at 16 tokens w4a16 is {fmt.times(four)} as fast as w16a16, and w2a16 {fmt.times(two)} as fast as w4a16"
    return Verdict(holds=four > 2.5 and two > 1.4, because=because)


def long_prompts_gain_nothing(frames: Frames) -> Verdict:
    """Checks that weight quantization gains nothing from 2,048 tokens on."""
    names = ("w8a16", "w4a16", "w2a16", "w1a16")
    lengths = [length for length in LENGTHS if length >= 2048]
    gain = (
        max(float(found["w16a16"] / found[n]) for found in (seconds(frames, x) for x in lengths) for n in names) - 1.0
    )
    start = next(x for x in LENGTHS if max(seconds(frames, x)["w16a16"] / seconds(frames, x)[n] for n in names) < 1.01)
    because = (
        f"from 2,048 tokens on, quantized weights gain at most {fmt.percent(gain)}; the gain is below 1 % from {start} "
        "tokens on"
    )
    return Verdict(holds=gain < 0.01, because=because)


FIGURE = SurveyFigure(
    title="Figure 9: prefill time of Llama-2-13b by quantization",
    setting="A6000, batch size 1; eager attention.",
    queries={name: SurveyQuery(input_len=LENGTHS).with_options(quantization=text) for name, text in FORMATS.items()},
    frames=frames,
    draw=draw,
    claims=(
        Claim(
            says="At short sequences prefill is memory-bound, and quantization speeds it up.", check=short_prompts_gain
        ),
        Claim(
            says="At long sequences prefill is compute-bound, and quantizing the weights yields no "
            "significant improvement.",
            check=long_prompts_gain_nothing,
        ),
    ),
    peers=(
        *peers(
            ("prefill",),
            ("time_s",),
            ("absent", "mlp_act", "adds", "head bits", "norms", "rate"),
            input_len=(256, 2048, 8192),
            bits=("16/16/16", "4/16/16"),
        ),
        *peers(
            ("prefill",),
            ("time_s",),
            ("scores", "activations", "absent", "mlp_act", "adds", "head bits"),
            input_len=(256, 2048, 8192),
            bits=("8/8/8",),
        ),
    ),
)

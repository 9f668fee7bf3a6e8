"""Figure 11: decode memory of Llama-2-13b over length, by bits of the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from llmviewer.language.quantity import MEMORY
from llmviewer.reports import format as fmt
from llmviewer.reports.plots.style import colour
from llmviewer.reports.survey.figure import (
    Claim,
    Frames,
    Results,
    Rows,
    SurveyFigure,
    Verdict,
    joined_rows,
    labelled,
    tagged,
)
from llmviewer.reports.survey.peer import SurveyQuery, peers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

FORMATS = {"w16 kv16": "none", "w16 kv8": "w16a16kv8", "w16 kv4": "w16a16kv4", "w4 kv16": "w4a16", "w4 kv4": "w4a16kv4"}
LENGTHS = (1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
PARTS = {name: MEMORY[name].title for name in ("weights_bytes", "kv_cache_bytes", "activations_bytes")}
LONG = 50_000


def frames(results: Results) -> Frames:
    """Returns the parts of the memory by length and quantization."""
    rows = joined_rows(results, **{name: name for name in PARTS}).rename(columns={"asked": "quantization"})
    rows["length"] = rows["output_len"]
    rows["total_bytes"] = rows[list(PARTS)].sum(axis="columns")
    return {"": rows.drop(columns=["input_len", "output_len"])}


def draw(frames: Frames, style: Style) -> Picture:
    """Draws stacked memory, one panel per number of bits."""
    shown = ("w16 kv16", "w16 kv8", "w16 kv4")
    figure, many = style.figure(1, 3)
    for axes, name in zip(many, shown, strict=True):
        rows = frames[""].query("quantization == @name")
        stacked = [rows[part].to_numpy() / 2.0**30 for part in PARTS]
        axes.stackplot(
            rows["length"] / 1e3,
            *stacked,
            labels=list(PARTS.values()),
            colors=[colour(at) for at in range(3)],
            alpha=0.9,
        )
        axes.axvline(LONG / 1e3, color=style.theme.ink, linewidth=0.8, linestyle=":")
        axes.set(xlim=(0.0, LENGTHS[-1] / 1e3), ylim=(0.0, float(frames[""]["total_bytes"].max()) / 2.0**30 * 1.02))
        labelled(axes, "Sequence length (1,000 tokens)", "Memory (GiB)" if name == shown[0] else "")
        tagged(axes, name, style)
    style.title(figure, "Llama-2-13b: decode memory, batch size 1")
    style.legend_below(figure, many[0].get_legend_handles_labels()[0])
    return figure


def share(frames: Frames, name: str) -> Rows:
    """Returns the share of the KV cache in the memory, by length."""
    rows = frames[""].query("quantization == @name").set_index("length")
    return rows["kv_cache_bytes"] / rows["total_bytes"]


def cache_takes_most(frames: Frames) -> Verdict:
    """Checks that the KV cache exceeds half of the memory beyond 50,000 tokens."""
    found = share(frames, "w16 kv16")
    lengths = found.index.to_numpy(np.float64)
    half = float(np.interp(0.5, found.to_numpy(), lengths))
    because = (
        f"the 16-bit cache takes {fmt.percent(float(found[LONG]))} of the memory at 50,000 tokens and half of it at "
        f"about {fmt.whole(round(half, -3))} tokens; with 4-bit weights it takes "
        f"{fmt.percent(float(share(frames, 'w4 kv16')[LONG]))} at 50,000 tokens"
    )
    return Verdict(holds=bool((found[lengths >= LONG] > 0.5).all()), because=because)


def quantizing_it_saves(frames: Frames) -> Verdict:
    """Checks the memory saved by quantizing the KV cache at 100,000 tokens."""
    totals = frames[""].query("length == 100000").set_index("quantization")["total_bytes"]
    eight, four = (float(totals[name] / totals["w16 kv16"]) for name in ("w16 kv8", "w16 kv4"))
    because = (
        f"at 100,000 tokens the memory of {fmt.memory(float(totals['w16 kv16']))} shrinks to {fmt.percent(eight)} with "
        f"an 8-bit cache and to {fmt.percent(four)} with a 4-bit cache"
    )
    return Verdict(holds=eight < 0.7 and four < 0.5, because=because)


FIGURE = SurveyFigure(
    title="Figure 11: decode memory of Llama-2-13b by bits of the KV cache",
    setting="Batch size 1, tokens generated one by one; weights, KV cache and activations, as in the survey. The "
    "model was trained for 4,096 tokens.",
    queries={
        name: SurveyQuery(input_len=(1,) * len(LENGTHS), output_len=LENGTHS).with_options(quantization=text)
        for name, text in FORMATS.items()
    },
    frames=frames,
    draw=draw,
    claims=(
        Claim(says="Beyond 50k tokens the KV cache takes most of the memory.", check=cache_takes_most),
        Claim(says="Quantizing it can then decrease the memory significantly.", check=quantizing_it_saves),
    ),
    peers=(
        *peers(
            ("decode",),
            ("weights_bytes", "kv_cache_bytes", "activations_bytes"),
            ("stored", "live", "scales", "cache scales"),
            input_len=(8192,),
            bits=("16/16/16", "4/16/4"),
        ),
    ),
)

"""Figure 20: roofline and decode time of Llama-2-13b over memory bandwidth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.reports import format as fmt
from llmviewer.reports.plots.roofs import scales
from llmviewer.reports.plots.style import colour, dashes, marker
from llmviewer.reports.survey.figure import (
    Claim,
    Frames,
    Results,
    Rows,
    SurveyFigure,
    Verdict,
    curves,
    log,
    rising,
    tagged,
)
from llmviewer.reports.survey.peer import SurveyQuery

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

MULTIPLES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
BATCHES = (1, 16, 64)
LAYER = "up_proj"
#: Bandwidth multiples whose roofs are drawn.
SHOWN = (0.5, 1.0, 2.0, 4.0, 16.0, 64.0)


def frames(results: Results) -> Frames:
    """Returns a decode step and one of its linear layers by batch size and bandwidth."""
    import pandas as pd

    rows = [row for result in results.values() for point in range(len(result)) for row in (_row(result, point),)]
    roofs = next(iter(results.values())).roofs()
    return {"": pd.DataFrame(rows), "roofs": roofs[roofs["roof"] == "compute"]}


def _row(result: Any, point: int) -> dict[str, Any]:
    stage, answer = result.stage("decode", point), result.to_dict(point)
    layer = next(row for row in stage["operators"] if row["name"] == LAYER)
    return {
        "batch_size": answer["workload"]["batch_size"],
        "bandwidth_bytes_per_s": answer["hardware"]["bandwidth_bytes_per_s"],
        "decode_time_s": stage["time_s"],
        "layer": LAYER,
        "arithmetic_intensity": layer["arithmetic_intensity"],
        "performance": layer["flops"] / layer["time_s"],
        "bound": layer["bound"],
    }


def draw(frames: Frames, style: Style) -> Picture:
    """Draws roofs of increasing bandwidth with one linear layer under each, and decode step times."""
    rows = frames[""]
    figure, (left, right) = style.figure(1, 2)
    peak = float(frames["roofs"].set_index("what").loc["tensor bf16, fp16", "rate"])
    scales(left, (0.3, 2e3), (1e11, 4e14))
    base = float(np.median(rows["bandwidth_bytes_per_s"].unique())) / float(np.median(MULTIPLES))
    intensity = np.geomspace(0.3, 2e3, 200)
    for at, multiple in enumerate(SHOWN):
        rate = base * multiple
        height = np.minimum(intensity * rate, peak)
        left.plot(intensity, height, color=colour(at), linestyle=dashes(at), linewidth=1.3, label=fmt.bandwidth(rate))
        points = rows[np.isclose(rows["bandwidth_bytes_per_s"], rate) & (rows["batch_size"] == 1)]
        left.scatter(
            points["arithmetic_intensity"], points["performance"], color=colour(at), marker=marker(at), zorder=5,
            s=3.0 * style.size.text,
        )  # fmt: skip
    tagged(left, f"{LAYER} at batch 1", style)
    style.legend(left, loc="lower right")
    shown = rows.assign(ms=rows["decode_time_s"] * 1e3, tb=rows["bandwidth_bytes_per_s"] / 1e12)
    shown["series"] = "batch " + shown["batch_size"].astype(str)
    curves(right, shown, ("tb", "ms", "series"), style)
    log(right, "Memory bandwidth (TB/s)", "Time of a decode step (ms)")
    tagged(right, "decode step", style)
    style.title(figure, "Llama-2-13b on an a6000 with other bandwidths: decode, 1,024 tokens")
    style.legend(right, loc="upper right")
    return figure


def select(frames: Frames, batch: int) -> Rows:
    """Returns the rows of one batch size."""
    return frames[""].query("batch_size == @batch").set_index("bandwidth_bytes_per_s")


def linear_layers_gain(frames: Frames) -> Verdict:
    """Checks that a linear layer's performance in decode rises with bandwidth."""
    parts, holds = [], True
    for batch in BATCHES:
        rows = select(frames, batch)
        rates = rows["performance"]
        stop = rows.index[rows["bound"] != "memory"]
        holds = holds and rising(rates[rows["bound"] == "memory"]) and float(rates.iloc[-1] / rates.iloc[0]) > 2.0
        level = f", levels off at {fmt.bandwidth(float(stop[0]))}" if len(stop) else ""
        eight = float(rates.iloc[MULTIPLES.index(8.0)] / rates.iloc[MULTIPLES.index(1.0)])
        parts.append(f"batch {batch}: {fmt.times(eight)} the performance with 8 times the bandwidth{level}")
    return Verdict(holds=holds, because=f"{LAYER}, " + "; ".join(parts))


def decode_gets_faster(frames: Frames) -> Verdict:
    """Checks that a decode step takes less time with more bandwidth."""
    parts, holds = [], True
    for batch in BATCHES:
        found = select(frames, batch)["decode_time_s"]
        holds = holds and rising(-found)
        gain = float(found.iloc[MULTIPLES.index(1.0)] / found.iloc[MULTIPLES.index(8.0)])
        parts.append(f"{fmt.times(gain)} at batch {batch}")
    return Verdict(holds=holds, because=f"8 times the bandwidth speeds up a decode step {', '.join(parts)}")


FIGURE = SurveyFigure(
    title="Figure 20: bandwidth, the roofline and decode time",
    setting="Llama-2-13b, A6000 with other bandwidths (the real one is 768 GB/s), 1,024 tokens, eager attention.",
    queries={
        f"batch {batch}": SurveyQuery(batch_size=(batch,) * len(MULTIPLES), bandwidths=MULTIPLES).with_options()
        for batch in BATCHES
    },
    frames=frames,
    draw=draw,
    claims=(
        Claim(
            says="As total memory bandwidth increases, performance of linear layers in decode increases significantly.",
            check=linear_layers_gain,
        ),
        Claim(says="Decode of Llama-2-13b takes less time.", check=decode_gets_faster),
    ),
    differs=(
        "There are no numbers of LLM-Viewer for other bandwidths. At 768 GB/s its decode time, and the difference from "
        "ours, are those of figure 8."
    ),
)

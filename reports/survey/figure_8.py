"""Figure 8: decode time of Llama-2-13b over batch size by quantization, 1,024 tokens."""

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
    rising,
)
from llmviewer.reports.survey.peer import SurveyQuery, peers
from llmviewer.reports.survey.rules import LINEAR

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

FORMATS = {"w16a16": "none", **{name: name for name in ("w8a8", "w8a16", "w4a16", "w2a16", "w1a16")}}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LARGE = BATCHES[-1]


def frames(results: Results) -> Frames:
    """Returns the time of a decode step, of its linear layers, and its memory-bound part."""
    import pandas as pd

    rows = joined_rows(results, decode_time_s="decode_time_s", fits="fits").rename(columns={"asked": "quantization"})
    linear = [_of_linear(result) for result in results.values()]
    return {"": pd.concat([rows, pd.concat(linear, ignore_index=True)], axis="columns")}


def _of_linear(result: object) -> Rows:
    """Returns per point the time of linear layers, their bounds, and the memory-bound time [s]."""
    import pandas as pd

    rows = []
    for point in range(len(result)):  # type: ignore[arg-type]
        stage = result.stage("decode", point)  # type: ignore[attr-defined]
        spent = {row["name"]: row["time_s"] * row["layers"] for row in stage["operators"]}
        bounds = {row["name"]: row["bound"] for row in stage["operators"]}
        rows.append(
            {
                "linear_time_s": sum(spent[name] for name in LINEAR),
                "linear_bound": ", ".join(dict.fromkeys(bounds[name] for name in LINEAR)),
                "memory_bound_s": stage["time_by_bound_s"].get("memory", 0.0),
            }
        )
    return pd.DataFrame(rows)


def draw(frames: Frames, style: Style) -> Picture:
    """Draws the time of a decode step over batch size."""
    figure, (axes,) = style.figure()
    curves(axes, frames[""].assign(ms=frames[""]["decode_time_s"] * 1e3), ("batch_size", "ms", "quantization"), style)
    log(axes, "Batch size (sequences)", "Time of a decode step (ms)")
    style.title(figure, "Llama-2-13b on a6000: decode, 1,024 tokens")
    style.legend(axes, loc="upper left")
    return figure


def column(frames: Frames, batch: int, name: str) -> Rows:
    """Returns a column at one batch size, by quantization."""
    return frames[""].query("batch_size == @batch").set_index("quantization")[name]


def a_small_batch_gains(frames: Frames) -> Verdict:
    """Checks that fewer bits per weight always reduce the time at batch 1."""
    seconds = column(frames, 1, "decode_time_s")
    names = ("w16a16", "w8a16", "w4a16", "w2a16", "w1a16")
    times = ", ".join(f"{name} {fmt.duration(seconds[name])}" for name in names)
    return Verdict(holds=rising([-seconds[name] for name in names]), because=f"at batch 1: {times}")


def small_batches_are_memory_bound(frames: Frames) -> Verdict:
    """Checks that linear layers are memory-bound at batch 1 in every format."""
    bounds = column(frames, 1, "linear_bound")
    because = f"linear layers at batch 1 are bound by {', '.join(dict.fromkeys(bounds))} in all {len(bounds)} formats"
    return Verdict(holds=set(bounds) == {"memory"}, because=because)


def a_large_batch_gains_nothing(frames: Frames) -> Verdict:
    """Checks that going from 4 bits to 2 or 1 does not reduce the time."""
    seconds, linear = (column(frames, LARGE, name) for name in ("decode_time_s", "linear_time_s"))
    gain = max(float(seconds["w4a16"] / seconds[name]) for name in ("w2a16", "w1a16")) - 1.0
    linear_gain = max(float(linear["w4a16"] / linear[name]) for name in ("w2a16", "w1a16")) - 1.0
    because = (
        f"at batch {LARGE} w2a16 and w1a16 are at most {fmt.percent(gain)} faster than w4a16, their linear layers at "
        f"most {fmt.percent(linear_gain)}"
    )
    return Verdict(holds=gain < 0.001 and linear_gain < 1e-9, because=because)


def linear_layers_are_compute_bound(frames: Frames) -> Verdict:
    """Checks that the linear layers are compute-bound at a large batch."""
    bounds = column(frames, LARGE, "linear_bound").loc[["w4a16", "w2a16", "w1a16"]]
    return Verdict(
        holds=set(bounds) == {"compute"},
        because=f"at batch {LARGE} linear layers of w4a16, w2a16 and w1a16 are bound by {', '.join(set(bounds))}",
    )


def the_network_is_compute_bound(frames: Frames) -> Verdict:
    """Checks the bound of the whole network, as claimed by the survey."""
    share = float((column(frames, LARGE, "memory_bound_s") / column(frames, LARGE, "decode_time_s"))["w4a16"])
    because = (
        f"at batch {LARGE}, {fmt.percent(share)} of the time of a w4a16 step is memory-bound: attention reads the KV "
        "cache of every sequence, so batching does not raise its intensity; only the linear layers are compute-bound"
    )
    return Verdict(holds=share < 0.5, because=because)


FIGURE = SurveyFigure(
    title="Figure 8: decode time of Llama-2-13b by quantization",
    setting="A6000, sequence length 1,024; eager attention. Batches that do not fit in 48 GiB are shown as well, as in "
    "the survey.",
    queries={
        name: SurveyQuery(batch_size=BATCHES, input_len=(1024,)).with_options(quantization=text)
        for name, text in FORMATS.items()
    },
    frames=frames,
    draw=draw,
    claims=(
        Claim(
            says="At a small batch, layers are memory-bound before and after quantization.",
            check=small_batches_are_memory_bound,
        ),
        Claim(says="At a small batch, quantization reduces the inference time.", check=a_small_batch_gains),
        Claim(
            says="At a large batch, compressing weights from 4 bits to 2 or 1 does not reduce the inference time.",
            check=a_large_batch_gains_nothing,
        ),
        Claim(says="This is because its linear layers are then compute-bound.", check=linear_layers_are_compute_bound),
        Claim(says="This is because the network is then compute-bound.", check=the_network_is_compute_bound),
    ),
    peers=(
        *peers(("decode",), ("time_s",), ("absent", "mlp_act", "adds", "norms"), batch_size=(1, 64)),
        *peers(
            ("decode",),
            ("time_s",),
            ("scales", "head bits", "absent", "mlp_act", "adds"),
            batch_size=(1, 64),
            bits=("4/16/16",),
        ),
    ),
)

"""Figure 19: throughput, latency and memory over batch size, Llama-2-13b on an A6000."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports import format as fmt
from llmviewer.reports.plots.style import colour, marker
from llmviewer.reports.survey.figure import Claim, Frames, Results, SurveyFigure, Verdict, joined_rows, log, rising
from llmviewer.reports.survey.peer import SurveyQuery, peers

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def frames(results: Results) -> Frames:
    """Returns decode by batch size: tokens per second of all sequences, step time, weights and KV cache."""
    (result,) = results.values()
    rows = joined_rows(
        results,
        decode_time_s="decode_time_s",
        weights_bytes="weights_bytes",
        kv_cache_bytes="kv_cache_bytes",
        fits="fits",
    )
    rows["tokens_per_s"] = rows["batch_size"] / rows["decode_time_s"]
    rows["memory_bytes"] = rows["weights_bytes"] + rows["kv_cache_bytes"]
    rows["capacity_bytes"] = result.memory["capacity_bytes"]
    return {"": rows}


def draw(frames: Frames, style: Style) -> Picture:
    """Draws throughput, latency and memory in three panels."""
    rows = frames[""]
    figure, many = style.figure(1, 3)
    panels = (
        (rows["tokens_per_s"], "Throughput (tokens/s)"),
        (rows["decode_time_s"] * 1e3, "Decode step latency (ms)"),
        (rows["memory_bytes"] / 2.0**30, "Weights and KV cache (GiB)"),
    )
    style.title(figure, "Llama-2-13b on a6000: decode, 1,024 tokens")
    for at, (axes, (values, label)) in enumerate(zip(many, panels, strict=True)):
        axes.plot(rows["batch_size"], values, color=colour(at), marker=marker(at), markersize=0.5 * style.size.text)
        log(axes, "Batch size", label)
    capacity = float(rows["capacity_bytes"].iloc[0]) / 2.0**30
    many[2].axhline(capacity, color=style.theme.ink, linestyle="--", linewidth=0.9)
    many[2].text(
        1.0, capacity * 1.05, f"A6000: {capacity:g} GiB", fontsize=style.size.text * 0.85, color=style.theme.ink
    )
    return figure


def throughput_rises(frames: Frames) -> Verdict:
    """Checks that throughput rises at every step, and 5 times up to batch 64."""
    rates = frames[""].set_index("batch_size")["tokens_per_s"]
    gains = [fmt.times(float(rates[batch] / rates[1])) for batch in (8, 64, 256)]
    because = (
        f"{fmt.per_second(rates[1])} tokens/s at batch 1, then {gains[0]} at batch 8, {gains[1]} at 64 and "
        f"{gains[2]} at 256; it levels off because sequences share the weights but not the KV cache"
    )
    return Verdict(holds=rising(rates) and float(rates[64] / rates[1]) > 5.0, because=because)


def latency_rises(frames: Frames) -> Verdict:
    """Checks that the latency of a decode step rises with the batch size."""
    found = frames[""].set_index("batch_size")["decode_time_s"]
    because = ", ".join(f"{fmt.duration(found[batch])} at batch {batch}" for batch in (1, 8, 64, 256))
    return Verdict(holds=rising(found), because=because)


def memory_rises(frames: Frames) -> Verdict:
    """Checks that memory rises with the batch size."""
    rows = frames[""]
    within = rows.loc[rows["memory_bytes"] <= rows["capacity_bytes"], "batch_size"].max()
    first, last = (fmt.memory(float(rows["memory_bytes"].iloc[at])) for at in (0, -1))
    because = (
        f"{first} at batch 1, {last} at batch {BATCHES[-1]}; the largest batch shown that fits on the A6000 is {within}"
    )
    return Verdict(holds=rising(rows["memory_bytes"]), because=because)


FIGURE = SurveyFigure(
    title="Figure 19: throughput, latency and memory over batch size",
    setting="Llama-2-13b on the A6000, decode with 1,024 tokens, 16 bit, eager attention. Batches that do not fit in "
    "memory are shown as well.",
    queries={"llama-2-13b": SurveyQuery(batch_size=BATCHES).with_options()},
    frames=frames,
    draw=draw,
    claims=(
        Claim(says="Increasing the batch significantly enhances throughput of decode.", check=throughput_rises),
        Claim(says="It increases the response latency.", check=latency_rises),
        Claim(says="It increases memory consumption.", check=memory_rises),
    ),
    peers=(
        *peers(("decode",), ("time_s",), ("absent", "mlp_act", "adds", "norms"), batch_size=(1, 16, 64)),
        *peers(("decode",), ("weights_bytes", "kv_cache_bytes"), ("stored",), batch_size=(1, 64)),
    ),
)

"""Figure 18: rooflines of weight offloading settings."""

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
    joined_rows,
    log,
    tagged,
)
from llmviewer.reports.survey.peer import SurveyQuery

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
GPU, STREAMED, XEON, EPYC = (
    "on the GPU",
    "in DDR, computed on the GPU",
    "in DDR, computed on a Xeon 8480",
    "in DDR, computed on an EPYC 9654",
)
SETTINGS = {
    GPU: "none",
    STREAMED: "weights=1",
    XEON: "weights=1,compute=host",
    EPYC: "weights=1,compute=host,host=epyc-9654-ddr5",
}
#: Minimum share of the peak that counts as full use.
FULL_USE = 0.6
CPUS = {XEON: "xeon-platinum-8480", EPYC: "epyc-9654"}


def frames(results: Results) -> Frames:
    """Returns prefill and a decode step by setting and batch size, and compute rate and bandwidth of each setting."""
    import pandas as pd

    kept = ("prefill_time_s", "prefill_flops", "decode_time_s", "decode_flops")
    steps = joined_rows({name: results[name] for name in SETTINGS}, **{name: name for name in kept})
    gpu = results[GPU].to_dict()["hardware"]
    link = gpu["links"]["pcie"]["bandwidth_bytes_per_s_per_direction"]
    roofs = [
        {"setting": GPU, "flops_per_s": gpu["peak_flops_per_s"]["fp16"], "bytes_per_s": gpu["bandwidth_bytes_per_s"]},
        {"setting": STREAMED, "flops_per_s": gpu["peak_flops_per_s"]["fp16"], "bytes_per_s": link},
    ]
    for setting, name in CPUS.items():
        cpu = results[name].to_dict()["hardware"]
        rates = {"flops_per_s": cpu["peak_flops_per_s"]["bf16"], "bytes_per_s": cpu["bandwidth_bytes_per_s"]}
        roofs.append({"setting": setting, **rates})
    return {"": steps.rename(columns={"asked": "setting"}), "roofs": pd.DataFrame(roofs)}


def draw(frames: Frames, style: Style) -> Picture:
    """Draws the roofs, and the time of a decode step over batch size."""
    figure, (left, right) = style.figure(1, 2)
    scales(left, (0.3, 3e4), (1e10, 4e14))
    intensity = np.geomspace(0.3, 3e4, 200)
    for at, roof in enumerate(frames["roofs"].itertuples()):
        height = np.minimum(intensity * roof.bytes_per_s, roof.flops_per_s)
        left.plot(intensity, height, color=colour(at), linestyle=dashes(at), linewidth=1.4, label=_roof_label(roof))
        ridge = roof.flops_per_s / roof.bytes_per_s
        left.plot([ridge], [roof.flops_per_s], color=colour(at), marker=marker(at), markersize=0.5 * style.size.text)
    tagged(left, "roofs", style)
    rows = frames[""].assign(ms=frames[""]["decode_time_s"] * 1e3)
    curves(right, rows, ("batch_size", "ms", "setting"), style)
    log(right, "Batch size (sequences)", "Time of a decode step (ms)")
    tagged(right, "decode step", style)
    style.title(figure, "Llama-2-13b, 1,024 tokens: weights on an a6000 or in its host's memory (PCIe 4.0)")
    style.legend_below(figure, left.get_legend_handles_labels()[0])
    return figure


def _roof_label(roof: Any) -> str:
    return f"{roof.setting}: {fmt.bandwidth(roof.bytes_per_s)}, {fmt.flops_per_s(roof.flops_per_s)}"


def seconds(frames: Frames, setting: str) -> Rows:
    """Returns decode times by batch size [s]."""
    return frames[""].query("setting == @setting").set_index("batch_size")["decode_time_s"]


def _against(frames: Frames, cpu: str) -> str:
    """Compares the GPU with streamed weights to a CPU, in words."""
    streamed, on_cpu = seconds(frames, STREAMED), seconds(frames, cpu)
    first = next((batch for batch in BATCHES if (streamed < on_cpu).loc[batch:].all()), None)
    where = f"less time from batch {first} on" if first else "more time at all batch sizes shown"
    return f"{fmt.times(float(streamed[1] / on_cpu[1]))} the time of {CPUS[cpu]} at batch 1, {where}"


def streaming_beats_the_cpu(frames: Frames) -> Verdict:
    """Checks the claim at every batch size, because the survey does not restrict it."""
    holds = all((seconds(frames, STREAMED) < seconds(frames, cpu)).all() for cpu in CPUS)
    roofs = frames["roofs"].set_index("setting")["bytes_per_s"]
    because = (
        f"decode with weights streamed to the GPU takes {'; '.join(_against(frames, cpu) for cpu in CPUS)}. While "
        f"memory-bound, a CPU reads its own DDR at {fmt.bandwidth(roofs[XEON])} or {fmt.bandwidth(roofs[EPYC])}, and "
        f"the GPU reads it over PCIe at {fmt.bandwidth(roofs[STREAMED])}"
    )
    return Verdict(holds=holds, because=because)


def large_batches_stream_well(frames: Frames) -> Verdict:
    """Checks that streaming approaches the time with weights on the GPU."""
    ratio = seconds(frames, STREAMED) / seconds(frames, GPU)
    last = BATCHES[-1]
    because = (
        f"a decode step with streamed weights takes {fmt.times(float(ratio[1]))} the time of one with resident "
        f"weights at batch 1, {fmt.times(float(ratio[256]))} at 256 and {fmt.times(float(ratio[last]))} at {last}"
    )
    return Verdict(holds=float(ratio[last]) < 1.05 and float(ratio[1]) > float(ratio[last]), because=because)


def _used(stage: str) -> Any:
    """Returns a check that the GPU fully uses its compute rate at the best batch size."""

    def check(frames: Frames) -> Verdict:
        rows = frames[""].query("setting == @STREAMED").set_index("batch_size")
        peak = float(frames["roofs"].set_index("setting").loc[STREAMED, "flops_per_s"])
        used = rows[f"{stage}_flops"] / rows[f"{stage}_time_s"] / peak
        because = (
            f"{fmt.percent(float(used[1]))} of {fmt.flops_per_s(peak)} at batch 1, at most "
            f"{fmt.percent(float(used.max()))} (batch {used.idxmax()})"
        )
        if stage == "decode":
            because += ": attention reads the KV cache of every sequence, so batching does not raise its intensity"
        return Verdict(holds=float(used.max()) > FULL_USE, because=because)

    return check


def _queries() -> dict[str, SurveyQuery]:
    found: dict[str, Any] = {
        name: SurveyQuery(batch_size=BATCHES).with_options(offload=text, attention="flash")
        for name, text in SETTINGS.items()
    }
    return found | {name: SurveyQuery(hardware=name).with_options() for name in CPUS.values()}


FIGURE = SurveyFigure(
    title="Figure 18: rooflines of offload settings",
    setting="Llama-2-13b, 1,024 tokens, flash attention, A6000 on PCIe 4.0 x16 in servers of 2023 (the caption names "
    "neither model nor host). All weights are in host memory; when the host computes, so is the KV cache.",
    queries=_queries(),
    frames=frames,
    draw=draw,
    claims=(
        Claim(
            says="Data offloaded to the CPU's DDR and transferred to the GPU when needed is better than computing on "
            "the CPU.",
            check=streaming_beats_the_cpu,
        ),
        Claim(says="With a large enough batch offloading achieves good results.", check=large_batches_stream_well),
        Claim(
            says="With a large enough batch the GPU fully uses its computation capacity: prefill.",
            check=_used("prefill"),
        ),
        Claim(
            says="With a large enough batch the GPU fully uses its computation capacity: decode.", check=_used("decode")
        ),
    ),
    differs="LLM-Viewer has no offloading, so it has no numbers for this figure; the survey shows only the roofs.",
)

"""Figure 7: relative memory of Llama-2-13b by quantization."""

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

FORMATS = {"w16a16": "none", "w8a16": "w8a16", "w4a16": "w4a16", "w8a8kv8": "w8a8kv8", "w4a16kv4": "w4a16kv4"}
PARTS = {name: MEMORY[name].title for name in ("weights_bytes", "kv_cache_bytes", "activations_bytes")}
BATCHES, LENGTHS = (1, 16, 1), (2048, 2048, 8192)
ONES = (1, 1, 1)
#: A share of the memory below this is small.
SMALL = 0.02


def queries() -> dict[str, SurveyQuery]:
    """Returns queries of prompts only and of tokens generated one by one, so that peak memory is that of one stage."""
    found = {}
    for name, text in FORMATS.items():
        prefill = SurveyQuery(batch_size=BATCHES, input_len=LENGTHS, output_len=ONES)
        decode = SurveyQuery(batch_size=BATCHES, input_len=ONES, output_len=LENGTHS)
        found[f"prefill, {name}"] = prefill.with_options(quantization=text)
        found[f"decode, {name}"] = decode.with_options(quantization=text)
        found[f"flash prefill, {name}"] = prefill.with_options(quantization=text, attention="flash")
    return found


def frames(results: Results) -> Frames:
    """Returns the parts of the memory by stage, format and size; `relative` is total over the 16-bit total."""
    rows = joined_rows(results, **{name: name for name in PARTS})
    rows[["stage", "quantization"]] = rows.pop("asked").str.split(", ", expand=True)
    rows["length"] = rows[["input_len", "output_len"]].max(axis="columns")
    rows["total_bytes"] = rows[list(PARTS)].sum(axis="columns")
    plain = rows[rows["quantization"] == "w16a16"].set_index(["stage", "batch_size", "length"])["total_bytes"]
    reference = plain.loc[list(zip(rows["stage"], rows["batch_size"], rows["length"], strict=True))].to_numpy()
    rows["relative"] = rows["total_bytes"] / reference
    return {"": rows.drop(columns=["input_len", "output_len"])}


def draw(frames: Frames, style: Style) -> Picture:
    """Draws stacked parts, one panel per stage and size."""
    rows = frames[""]
    sizes = rows[["batch_size", "length"]].drop_duplicates().itertuples(index=False)
    panels = [(stage, batch, length) for batch, length in sizes for stage in ("prefill", "decode")]
    figure, many = style.figure(3, 2)
    for axes, (stage, batch, length) in zip(many, panels, strict=True):
        shown = rows.query("stage == @stage and batch_size == @batch and length == @length")
        _stacked(axes, shown)
        tagged(axes, f"{stage}, batch {batch}, {length} tokens", style)
    labelled(many[2], "", "Memory relative to w16a16")
    for axes in many:
        axes.tick_params(axis="x", rotation=20, labelbottom=axes in many[-2:], labelsize=0.85 * style.size.text)
    style.title(figure, "Llama-2-13b: memory by quantization")
    style.legend_below(figure, many[0].get_legend_handles_labels()[0])
    return figure


def _stacked(axes: object, shown: Rows) -> None:
    base = np.zeros(len(shown))
    reference = (shown["total_bytes"] / shown["relative"]).to_numpy()
    for at, (part, label) in enumerate(PARTS.items()):
        height = shown[part].to_numpy() / reference
        axes.bar(shown["quantization"], height, bottom=base, color=colour(at), label=label, width=0.7)  # type: ignore[attr-defined]
        base = base + height


def low_in_decode(frames: Frames) -> Verdict:
    """Checks that activations take little memory in decode, for every size and format."""
    rows = frames[""].query("stage == 'decode'")
    most = float((rows["activations_bytes"] / rows["total_bytes"]).max())
    return Verdict(holds=most < SMALL, because=f"their largest share of decode memory is {fmt.percent(most)}")


def low_in_prefill(frames: Frames) -> Verdict:
    """Checks that activations are the smallest part of prefill memory in all cases."""
    rows, flash = (frames[""].query("stage == @stage") for stage in ("prefill", "flash prefill"))
    share = rows["activations_bytes"] / rows["total_bytes"]
    smallest = rows["activations_bytes"] < rows[["weights_bytes", "kv_cache_bytes"]].min(axis="columns")
    most = rows.loc[share.idxmax()]
    because = (
        f"they take up to {fmt.percent(float(share.max()))} of prefill memory ({most['quantization']}, batch "
        f"{most['batch_size']}, {fmt.whole(most['length'])} tokens); they are smallest in {int(smallest.sum())} of "
        f"{len(rows)} cases, because eager attention stores large score matrices; with flash attention they take at "
        f"most {fmt.percent(float((flash['activations_bytes'] / flash['total_bytes']).max()))}"
    )
    return Verdict(holds=bool(smallest.all()), because=because)


def cache_grows(frames: Frames) -> Verdict:
    """Checks that the KV cache grows with batch size and length."""
    rows = frames[""].query("stage == 'decode' and quantization == 'w16a16'").set_index(["batch_size", "length"])
    one, many, longer = (float(rows.loc[size, "kv_cache_bytes"]) for size in ((1, 2048), (16, 2048), (1, 8192)))
    because = (
        f"{fmt.memory(one)} at batch 1 and 2,048 tokens, {fmt.memory(many)} at batch 16, "
        f"{fmt.memory(longer)} at 8,192 tokens"
    )
    return Verdict(holds=many > one and longer > one, because=because)


def weights_are_26_gb(frames: Frames) -> Verdict:
    """Checks that the fp16 weights of a 13b model take 26 GB."""
    size = float(frames[""].query("quantization == 'w16a16'")["weights_bytes"].iloc[0])
    return Verdict(holds=abs(size / 26e9 - 1.0) < 0.02, because=f"they take {fmt.traffic(size)}")


CAUSES = ("stored", "live", "scales")
FIGURE = SurveyFigure(
    title="Figure 7: relative memory of Llama-2-13b by quantization",
    setting="Batch size 1 and 16 at 2,048 tokens, 1 at 8,192 (the caption names no sizes); eager attention.",
    queries=queries(),
    frames=frames,
    draw=draw,
    claims=(
        Claim(says="Temporary activations take little memory in the decode stage.", check=low_in_decode),
        Claim(says="Temporary activations take relatively little memory in general.", check=low_in_prefill),
        Claim(says="Memory of the KV cache grows with batch size and sequence length.", check=cache_grows),
        Claim(says="The 13 billion weights take about 26 GB in FP16.", check=weights_are_26_gb),
    ),
    peers=(
        *peers(
            ("prefill",),
            ("weights_bytes", "kv_cache_bytes", "activations_bytes"),
            CAUSES,
            bits=("16/16/16", "4/16/4"),
        ),
        *peers(("decode",), ("activations_bytes",), CAUSES),
    ),
)

"""Figure 5: the roofline of an A6000."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmviewer.reports import format as fmt
from llmviewer.reports.plots.roofs import scales
from llmviewer.reports.survey import table_1
from llmviewer.reports.survey.figure import Claim, Frames, SurveyFigure, Verdict, under

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

    from llmviewer.reports.plots.style import Style

MAIN = "tensor bf16, fp16"


def draw(frames: Frames, style: Style) -> Picture:
    """Draws only the roofs."""
    figure, (axes,) = style.figure()
    style.title(figure, "a6000: data-sheet roofline")
    scales(axes, (0.1, 1e4), (5e10, 1.5e15))
    under(axes, frames["roofs"], MAIN, (), style)
    return figure


def ridge(frames: Frames) -> float:
    """Returns the turning point of fp16 units [FLOP/byte]."""
    roofs = frames["roofs"]
    rate = roofs.loc[roofs["what"] == MAIN, "rate"].iloc[0]
    return float(rate / roofs.loc[roofs["what"] == "device memory", "rate"].iloc[0])


def below_it_memory_bounds(frames: Frames) -> Verdict:
    """Checks the bound of every matrix product of Llama-2-7b in both stages."""
    rows = frames[""].query("matmul_flops > 0")
    turn = ridge(frames)
    low = rows["arithmetic_intensity"] < turn
    wrong = rows[low != (rows["bound"] == "memory")]
    because = (
        f"the turning point is {fmt.intensity(turn)} FLOP/byte; of {len(rows)} matrix products of Llama-2-7b, "
        f"{int(low.sum())} are below it and {len(rows) - int(low.sum())} above, and {len(wrong)} have another bound "
        "than this predicts"
    )
    return Verdict(holds=wrong.empty, because=because)


FIGURE = SurveyFigure(
    title="Figure 5: the roofline of the A6000",
    setting="Data-sheet figures; the layers are the operators of Table 1.",
    queries=table_1.FIGURE.queries,
    frames=table_1.frames,
    draw=draw,
    claims=(
        Claim(
            says="A layer whose arithmetic intensity lies below the turning point is memory-bound, one above it is "
            "compute-bound.",
            check=below_it_memory_bounds,
        ),
    ),
    differs=(
        "LLM-Viewer has one roof for all operators. We assign norms, softmax and activations to the vector units, "
        "which have a quarter of the fp16 rate (38.7 TFLOP/s) and a turning point of 50 FLOP/byte; special functions "
        "have another roof. These operators remain memory-bound at their intensities, so no bound in Table 1 changes."
    ),
)

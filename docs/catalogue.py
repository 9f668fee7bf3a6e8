"""A static site that answers without a server: a page per model with chips as a menu, and their index.

`make catalogue` writes all of it to build/models, from where `make site` takes it; `python docs/catalogue.py FOLDER
MODEL,... CHIP,...` writes a part.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from html import escape
from pathlib import Path

import llmviewer as lv
from llmviewer.core.version import __version__
from llmviewer.reports.html.page import TEMPLATES

MODELS = (
    "llama-3.1-8b llama-3.1-70b llama-3.1-405b llama-3.3-70b llama-3.2-1b llama-3.2-3b llama-2-7b llama-2-13b"
    " llama-2-70b llama-4-scout llama-4-maverick qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b"
    " qwen3-30b-a3b qwen3-235b-a22b qwen3-next-80b-a3b qwen3-coder-480b qwen2.5-7b qwen2.5-14b qwen2.5-32b"
    " qwen2.5-72b qwen3.5-27b deepseek-v3 deepseek-v3.2 deepseek-r1 deepseek-v2-lite gpt-oss-20b gpt-oss-120b"
    " mixtral-8x7b mixtral-8x22b mistral-7b mistral-nemo mistral-small-24b gemma-2-9b gemma-2-27b gemma-3-4b"
    " gemma-3-12b gemma-3-27b phi-4 phi-4-mini jamba-v0.1 falcon-7b glm-4.5-air kimi-k2 minimax-m2 olmo-2-13b"
).split()
CHIPS = (
    "h100-sxm h200 b200 a100-80gb-sxm a100-40gb-pcie l40s a6000 rtx-4090 rtx-5090 rtx-3090 l4 a10 t4 v100-32gb-sxm"
    " mi300x mi325x gaudi-3 tpu-v5e tpu-v6e m2-ultra"
).split()
#: Devices of a tensor group, of which the fewest are taken that hold the model on half of the chips.
DEVICES = (1, 2, 4, 8)


def devices_of(model: str, chips: Sequence[str]) -> tuple[int, dict[str, lv.Result]]:
    """Devices on which a model runs, and the answer of each chip that takes so many."""
    taken: dict[str, lv.Result] = {}
    for devices in DEVICES:
        taken = {}
        for chip in chips:
            try:
                taken[chip] = lv.analyze(model, chip, tensor_parallel_size=devices)
            except lv.UserError as refusal:
                print(f"{model} on {devices} x {chip} is left out: {refusal}", file=sys.stderr)  # noqa: T201
        if sum(one.fits for one in taken.values()) * 2 >= len(chips):
            break
    return devices, taken


def write(folder: Path, models: Sequence[str], chips: Sequence[str]) -> None:
    """Write the pages of some models and chips, calibrated and ideal, and their index; as many at once as cores."""
    folder.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor() as pool:
        rows = "".join(pool.map(partial(_written, folder, chips), models))
    (folder / "index.html").write_text(index(rows), encoding="utf-8")


def _written(folder: Path, chips: Sequence[str], model: str) -> str:
    """Write the page of a model; its row of the index, empty where it has no page."""
    try:
        devices, taken = devices_of(model, chips)
        html = lv.page(model, list(taken), tensor_parallel_size=devices, efficiency=["calibrated", "ideal"])
    except lv.UserError as refusal:
        print(f"{model} has no page: {refusal}", file=sys.stderr)  # noqa: T201
        return ""
    html = html.replace('<p class="by">', '<p class="by"><a href="index.html">All models</a> · ', 1)
    (folder / f"{model}.html").write_text(html, encoding="utf-8")
    holding = {chip: 1.0 / float(one.tpot_s) for chip, one in taken.items() if one.fits}
    fastest = max(holding, key=lambda chip: holding[chip], default="")
    speed = f"{holding[fastest]:,.0f} on {fastest}" if fastest else "none"
    parameters = next(iter(taken.values())).to_dict()["model"]["parameters"]
    cells = (f"{parameters / 1e9:,.1f}", f"{devices}", f"{len(holding)} of {len(taken)}", speed)
    name = f'<a href="{escape(model)}.html">{escape(model)}</a>'
    values = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr><th scope="row" class="left">{name}</th>{values}</tr>'


def index(rows: str) -> str:
    """The page that lists the models."""
    title = "How fast LLMs run on which chip"
    words = "Choose a model: its page computes speed, memory and bottlenecks by itself, for any batch and lengths."
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><meta name="description" content="{words}">
<meta property="og:title" content="{title}"><meta property="og:description" content="{words}">
<title>{title}: llmviewer</title><link rel="icon" href="data:,">
<style>{(TEMPLATES / "report.css").read_text(encoding="utf-8")}</style></head>
<body><header><p class="by">llmviewer {__version__}</p><h1>{title}</h1><p class="lead">{words}</p></header>
<main><div class="scroll" tabindex="0" role="group" aria-label="Models"><table><thead><tr>
<th scope="col" class="left">Model</th><th scope="col">Parameters (10⁹)</th><th scope="col">Devices</th>
<th scope="col">Chips that hold it</th><th scope="col">Tokens/s of one user, at most</th></tr></thead>
<tbody>{rows}</tbody></table></div></main></body></html>
"""


if __name__ == "__main__":
    target, *lists = sys.argv[1:] or ["site"]
    chosen = [one.split(",") for one in lists]
    write(Path(target), chosen[0] if chosen else MODELS, chosen[1] if len(chosen) > 1 else CHIPS)

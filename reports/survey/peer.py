"""Queries that a figure needs, and numbers printed by LLM-Viewer (llm_viewer.yaml) beside ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.core.frozen import frozen
from llmviewer.reports.survey.rules import COUNT_DIFFERENCES

if TYPE_CHECKING:
    import pandas as pd


@frozen
class SurveyQuery:
    """A query of `analyze` or `train`.  Sizes have one value, or one per point.

    options: pairs of option and value.  bandwidths: of hypothetical chips, as multiples of the chip's, one per point.
    """

    model: str = "llama-2-13b"
    hardware: str = "a6000"
    batch_size: tuple[int, ...] = (1,)
    input_len: tuple[int, ...] = (1024,)
    output_len: tuple[int, ...] = (1,)
    options: tuple[tuple[str, Any], ...] = ()
    bandwidths: tuple[float, ...] = ()
    command: str = "analyze"

    def with_options(self, **options: str) -> SurveyQuery:
        """Returns the query with these options; the default is eager attention, as in the survey."""
        chosen = {"efficiency": "ideal", "attention": "eager", **options}
        return replace(self, options=tuple(chosen.items()))


#: Bits of weights/activations/cache -> our quantization option.
BITS = {"16/16/16": "none", "8/8/8": "w8a8kv8", "4/16/16": "w4a16", "4/16/4": "w4a16kv4"}
MEMORY = ("weights_bytes", "kv_cache_bytes", "activations_bytes")


@frozen
class Peer:
    """One number of LLM-Viewer.

    quantity: flops, traffic_bytes, time_s, or a part of memory.  causes: keys of COUNT_DIFFERENCES.
    """

    model: str
    batch_size: int
    input_len: int
    bits: str
    attention: str
    stage: str
    quantity: str
    causes: tuple[str, ...]

    @property
    def query(self) -> SurveyQuery:
        """The query of the same setting; decode memory is that of generating all tokens one by one."""
        lengths = (self.input_len, 1)
        if self.quantity in MEMORY and self.stage == "decode":
            lengths = (1, self.input_len)
        return SurveyQuery(
            model=self.model, batch_size=(self.batch_size,), input_len=lengths[:1], output_len=lengths[1:]
        ).with_options(attention=self.attention, quantization=BITS[self.bits])

    @property
    def theirs(self) -> float:
        """The number printed by LLM-Viewer."""
        keys = ("model", "batch_size", "input_len", "bits", "attention")
        found = [row for row in read()["totals"] if all(row[key] == getattr(self, key) for key in keys)]
        return float(found[0][self.stage][self.quantity])

    def ours(self, results: Mapping[SurveyQuery, Any]) -> float:
        """Returns our number."""
        row = results[self.query].to_frame().iloc[0]
        return float(row[self.quantity if self.quantity in MEMORY else f"{self.stage}_{self.quantity}"])


def peers(
    stages: Iterable[str], quantities: Iterable[str], causes: Iterable[str], **setting: tuple[Any, ...]
) -> tuple[Peer, ...]:
    """Returns every combination of the settings batch_size, input_len, bits, attention and model."""
    from itertools import product

    defaults: dict[str, tuple[Any, ...]] = {
        "model": ("llama-2-13b",), "batch_size": (1,), "input_len": (2048,), "bits": ("16/16/16",),
        "attention": ("eager",),
    }  # fmt: skip
    lists = {**defaults, **setting, "stage": tuple(stages), "quantity": tuple(quantities)}
    return tuple(
        Peer(**dict(zip(lists, values, strict=True)), causes=tuple(causes)) for values in product(*lists.values())
    )


def compared(listed: Iterable[Peer], results: Mapping[SurveyQuery, Any]) -> pd.DataFrame:
    """Returns a row per number: setting, LLM-Viewer's number, ours, and the relative difference."""
    import pandas as pd

    names = ("model", "batch_size", "input_len", "bits", "attention", "stage", "quantity")
    rows = []
    for peer in listed:
        theirs, ours = peer.theirs, peer.ours(results)
        setting = {name: getattr(peer, name) for name in names}
        rows.append({**setting, "llm_viewer": theirs, "ours": ours, "difference": ours / theirs - 1.0})
    return pd.DataFrame(rows)


def reasons(listed: Iterable[Peer]) -> list[str]:
    """Returns the reasons why the numbers differ, without duplicates."""
    return [COUNT_DIFFERENCES[cause].why for cause in dict.fromkeys(cause for peer in listed for cause in peer.causes)]


@cache
def read() -> dict[str, Any]:
    """Returns the content of llm_viewer.yaml."""
    import yaml

    text = Path(__file__).with_name("llm_viewer.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found

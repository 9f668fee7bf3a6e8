"""The calls that are answered over HTTP, each with the document that the command line prints as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.server import arguments, limits, own_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call.  summary: in one sentence.  example: arguments that have an answer.  schema: of its document."""

    name: str
    summary: str
    example: Mapping[str, Any]
    schema: str


_RUN = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}
_LOAD = {**_RUN, "request_rate": 4, "requests": 500, "ttft": "p99:1s"}
CALLS: Mapping[str, Call] = {
    one.name: one
    for one in (
        Call(
            name="analyze",
            summary="Times, memory and every operator of one request on one chip.",
            example={**_RUN, "batch_size": 8, "engine": "vllm"},
            schema="llmviewer.analysis/1",
        ),
        Call(
            name="sweep",
            summary="Metrics of all combinations of sizes, models, chips and options, one row per point.",
            example={**_RUN, "batch_size": [1, 8, 64]},
            schema="llmviewer.sweep/1",
        ),
        Call(
            name="compare",
            summary="One request on several models, chips or options side by side, with ratios to the first.",
            example={"model": "llama-3.1-8b", "hardware": ["h100-sxm", "a100-80gb-sxm"]},
            schema="llmviewer.comparison/1",
        ),
        Call(
            name="size",
            summary="The least hardware that serves a load within limits, or what rejected every candidate.",
            example=_LOAD,
            schema="llmviewer.size/1",
        ),
        Call(
            name="simulate",
            summary="A server under load: percentiles of latencies, throughput, queues and the KV cache.",
            example=_LOAD,
            schema="llmviewer.simulation/1",
        ),
        Call(
            name="explain",
            summary="A number as a tree of formulas, values and their sources.",
            example={"number": "tpot_s", **_RUN},
            schema="llmviewer.explanation/1",
        ),
        Call(
            name="why",
            summary="The difference between two runs, split over the factors in which they differ.",
            example={"a": "llama-3.1-8b --hardware h100", "b": "llama-3.1-8b --hardware a100"},
            schema="llmviewer.why/1",
        ),
        Call(
            name="require",
            summary="The least bandwidth, compute or capacity with which a chip meets a target.",
            example={"model": "llama-3.1-8b", "vary": "bandwidth", "tpot": "10ms"},
            schema="llmviewer.require/1",
        ),
        Call(
            name="elasticity",
            summary="By how much a time falls when a figure of the chip grows.",
            example=_RUN,
            schema="llmviewer.elasticity/1",
        ),
        Call(
            name="advise",
            summary="Changes that make a run faster, each tried, with their risk for the answers.",
            example=_RUN,
            schema="llmviewer.advice/1",
        ),
    )
}


def answer(call: str, given: object) -> str:
    """The JSON text of a call's document.  Raises UserError with the line that a caller of Python reads."""
    words = arguments.check(call, given)
    limits.check(call, words)
    return _sweep(words) if call == "sweep" else _document(call, words)


def _document(call: str, words: Mapping[str, Any]) -> str:
    return text(own_arguments.function(call)(**words).to_dict())


def _sweep(words: Mapping[str, Any]) -> str:
    from llmviewer.result.columns import json_parts

    made = own_arguments.function("sweep")(**words)
    made.check()
    chunks = list(made.chunks())
    with limits.uninterrupted():
        return "".join(json_parts(chunks))


def text(document: object) -> str:
    """A document as JSON text; numbers that are not finite are null."""
    return json.dumps(plain(document), allow_nan=False)


def plain(value: Any) -> Any:
    """A value of JSON; numbers that are not finite are null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def _models() -> object:
    from llmviewer.result import catalog

    return catalog.model_list()


def _hardware() -> object:
    from llmviewer.result import catalog

    return catalog.hardware_list()


def _techniques() -> object:
    from llmviewer.result.technique_cards import technique_list

    return technique_list()


#: Lists of the catalogue -> (function, summary): the documents of `models list` and so on.
LISTS: Mapping[str, tuple[Callable[[], object], str]] = {
    "models": (_models, "Every model of the catalogue with parameters, architecture, KV cache and context."),
    "hardware": (_hardware, "Every chip of the catalogue with peak, bandwidth, memory and power."),
    "techniques": (_techniques, "Every technique with its parameters, formula and source."),
}

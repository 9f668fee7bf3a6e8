"""The calls that are answered over HTTP, each with the document that the command line prints as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from llmviewer.questions import HTTP, QUESTIONS, Question
from llmviewer.server import arguments, limits

#: Questions that are asked over HTTP.
CALLS: Mapping[str, Question] = {name: one for name, one in QUESTIONS.items() if one.has(HTTP)}

#: Those that answer in a moment, and may be asked by an address alone.
CHEAP = ("analyze", "compare", "explain", "why", "require", "elasticity", "train")


def answer(call: str, given: object) -> str:
    """The JSON text of a call's document.  Raises UserError with the line that a caller of Python reads."""
    given, notes = arguments.launched(call, given)
    words = arguments.check(call, given)
    limits.check(call, words)
    return document(CALLS[call], words, notes)


def document(question: Question, words: Mapping[str, Any], notes: list[str]) -> str:
    """The JSON text of the document of a question with checked arguments, and what is told of its launch line."""
    if question.name == "sweep":
        return _sweep(words)
    return text(arguments.noted(question.function()(**words).to_dict(), notes))


def _sweep(words: Mapping[str, Any]) -> str:
    from llmviewer.result.columns import json_parts

    made = CALLS["sweep"].function()(**words)
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
    from llmviewer.result import describe

    return describe.model_list()


def _hardware() -> object:
    from llmviewer.result import describe

    return describe.hardware_list()


def _techniques() -> object:
    from llmviewer.result.describe import technique_list

    return technique_list()


#: Lists of the catalogue -> (function, summary): the documents of `models list` and so on.
LISTS: Mapping[str, tuple[Callable[[], object], str]] = {
    "models": (_models, "Every model of the catalogue with parameters, architecture, KV cache and context."),
    "hardware": (_hardware, "Every chip of the catalogue with peak, bandwidth, memory and power."),
    "techniques": (_techniques, "Every technique with its parameters, formula and source."),
}

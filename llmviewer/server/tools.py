"""Tools for assistants: what each does, its arguments, and its answer in short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmviewer.core.errors import unknown
from llmviewer.core.frozen import frozen
from llmviewer.questions import ASSISTANT, QUESTIONS, Question
from llmviewer.server import arguments, calls, limits

#: What an assistant is told about all tools.
INSTRUCTIONS = (
    "llmviewer predicts how fast a language model runs on a chip. Values are in SI units (seconds, bytes). Times are"
    " calibrated by measured kernels unless efficiency is ideal, which is the lower bound of the data sheet; interval80"
    " is the range that holds a measurement with 80 % probability, null where it is not known. Report the interval and"
    " the basis with a value. Names of models and chips come from list_models and list_hardware. An answer is short:"
    " *_left_out counts what is not shown of a list, and the resource that `document` names is the whole of it."
)
#: Entries of a list of the catalogue that are described; of more there are names alone.
DESCRIBED = 10
#: Peaks of a chip, and the formats whose peaks are listed.
RATES, SERVED = "peak_flops_per_s", ("bf16", "fp16", "fp8", "fp4")
Words = Mapping[str, Any]


@frozen
class Tool:
    """One tool.  schema: of its arguments, made when it is first listed.  document: JSON text of all that answers."""

    name: str
    title: str
    description: str
    schema: Callable[[], dict[str, Any]]
    answer: Callable[[Words], dict[str, Any]]
    document: Callable[[Words], str]

    def called(self, given: object) -> dict[str, Any]:
        """The answer to these arguments; numbers that are not finite are null.  Raises UserError."""
        found: dict[str, Any] = calls.plain(self.answer(given if isinstance(given, Mapping) else {}))
        return found


def _tool(question: Question) -> Tool:
    """The tool of a question, whose answer is that of its call in short."""

    def checked(given: Words) -> tuple[dict[str, Any], list[str]]:
        given, notes = arguments.launched(question.name, given)
        words = arguments.check(question.name, given)
        if question.name in limits.OF_POINTS:  # loads and sizings take what they need: the machine is the user's own
            limits.check(question.name, words)
        return words, notes

    def answer(given: Words) -> dict[str, Any]:
        words, notes = checked(given)
        return arguments.noted(question.short(question.function()(**words), words), notes)

    return Tool(
        name=question.name,
        title=question.title,
        description=question.use,
        schema=lambda: arguments.schema(question.name),
        answer=answer,
        document=lambda given: calls.document(question, *checked(given)),
    )


def _listed(name: str, title: str, facts: str, keys: tuple[str, ...]) -> Tool:
    """The tool of a list of the catalogue."""

    def answer(given: Words) -> dict[str, Any]:
        found = _found(calls.LISTS[name][0](), keys, given)
        return {name: [one["name"] if len(found) > DESCRIBED else _trimmed(one) for one in found]}

    return Tool(
        name=f"list_{name}",
        title=title,
        description=f"{facts} Names alone where more than {DESCRIBED} are found.",
        schema=_search,
        answer=answer,
        document=lambda _: calls.text(calls.LISTS[name][0]()),
    )


def _trimmed(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry; of a chip's peaks those of the formats that models are served in."""
    if RATES not in entry:
        return entry
    return {**entry, RATES: {name: entry[RATES][name] for name in SERVED if name in entry[RATES]}}


def _found(listed: Any, keys: tuple[str, ...], given: Words) -> list[dict[str, Any]]:
    """The entries whose name has the text that is searched, with a few of their facts."""
    for name in given:
        if name != "search":
            raise unknown("option", name, ("search",))
    wanted = str(given.get("search", "")).lower()
    kept = [
        one for one in listed if any(wanted in str(one.get(key, "")).lower() for key in ("name", "title", "aliases"))
    ]
    return [{key: one[key] for key in keys if key in one} for one in kept]


def _search() -> dict[str, Any]:
    text = {"type": "string", "description": "Only names with this text, such as llama or h100.", "default": ""}
    return {"type": "object", "properties": {"search": text}, "additionalProperties": False}


TOOLS: Mapping[str, Tool] = {
    one.name: one
    for one in (
        *(_tool(question) for question in QUESTIONS.values() if question.has(ASSISTANT)),
        _listed(
            "models",
            "List models",
            "Names of the models of the catalogue with architecture, parameters and longest context.",
            ("name", "architecture", "parameters", "active_parameters", "max_context_len", "error"),
        ),
        _listed(
            "hardware",
            "List chips",
            "Names of the chips of the catalogue with memory, bandwidth and peak rates.",
            ("name", "title", "generation", "memory_bytes", "bandwidth_bytes_per_s", RATES),
        ),
    )
}


def chosen(text: str) -> Mapping[str, Tool]:
    """The tools of a comma-separated list, in their usual order; all for an empty one.  Raises UserError."""
    names = [name.strip() for name in text.split(",")] if text.strip() else list(TOOLS)
    for name in names:
        if name not in TOOLS:
            raise unknown("tool", name, TOOLS)
    return {name: one for name, one in TOOLS.items() if name in names}

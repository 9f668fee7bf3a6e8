"""Tools for assistants: what each does, its arguments, and its answer in short."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.core.errors import unknown
from llmviewer.server import arguments, calls, compact, limits, own_arguments
from llmviewer.techniques.options import OPTIONS

#: What an assistant is told about all tools.
INSTRUCTIONS = (
    "llmviewer predicts how fast a language model runs on a chip. Values are in SI units (seconds, bytes). Times are"
    " calibrated by measured kernels unless efficiency is ideal, which is the lower bound of the data sheet; interval80"
    " is the range that holds a measurement with 80 % probability, null where it is not known. Report the interval and"
    " the basis with a value. Names of models and chips come from list_models and list_hardware."
)
Words = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.  schema: of its arguments, made when it is first listed."""

    name: str
    title: str
    description: str
    schema: Callable[[], dict[str, Any]]
    answer: Callable[[Words], dict[str, Any]]

    def called(self, given: object) -> dict[str, Any]:
        """The answer to these arguments; numbers that are not finite are null.  Raises UserError."""
        found: dict[str, Any] = calls.plain(self.answer(given if isinstance(given, Mapping) else {}))
        return found


def _call(name: str, short: Callable[[Any], dict[str, Any]]) -> Callable[[Words], dict[str, Any]]:
    """The answer of a call of Python, in short."""

    def answer(given: Words) -> dict[str, Any]:
        words = arguments.check(name, given)
        if name == "compare":
            limits.check(name, words)
        return short(own_arguments.function(name)(**words))

    return answer


def _explained(given: Words) -> dict[str, Any]:
    """The explanation of a number, with what the run that has it rests on."""
    from llmviewer.result.explanation.explain import explained  # other tools do not need it

    words = arguments.check("explain", given)
    run = own_arguments.function("analyze")(**{name: value for name, value in words.items() if name != "number"})
    return compact.explanation(explained(run, words["number"]), run)


def _sized(given: Words) -> dict[str, Any]:
    """The answer of a sizing, with what the times of its best configuration rest on."""
    from llmviewer.simulation.call import ENGINE

    words = arguments.check("size", given)
    found = own_arguments.function("size")(**words)
    if found.best is None:
        return compact.sizing(found, None)
    workload = found.question.workload
    sizes = {"input_len": workload.input_len, "output_len": workload.output_len}
    options = {name: value for name, value in found.best.options.items() if name in OPTIONS}
    run = {"engine": ENGINE, **options, **{name: max(round(value), 1) for name, value in sizes.items()}}
    hardware = found.best.parts[0][0].screened.hardware
    return compact.sizing(found, own_arguments.function("analyze")(words["model"], hardware, **run))


def _diagnosed(given: Words) -> dict[str, Any]:
    """The diagnosis of a file, with what the prediction rests on."""
    words = arguments.check("diagnose", given)
    found = own_arguments.function("diagnose")(**words)
    of_the_file = ("measured", *own_arguments.KEYWORDS["diagnose"])
    run = {name: value for name, value in words.items() if name not in of_the_file and value is not None}
    return compact.diagnosis(found, own_arguments.function("analyze")(**{**run, "engine": found.engine}))


def _models(given: Words) -> dict[str, Any]:
    from llmviewer.result import catalog

    keys = ("name", "architecture", "parameters", "active_parameters", "max_context_len", "error")
    return {"models": _found(catalog.model_list(), keys, given)}


def _hardware(given: Words) -> dict[str, Any]:
    from llmviewer.result import catalog

    keys = ("name", "title", "generation", "memory_bytes", "bandwidth_bytes_per_s", "peak_flops_per_s")
    found = _found(catalog.hardware_list(), keys, given)
    return {"hardware": [{**one, "peak_flops_per_s": _main_rates(one)} for one in found]}


def _main_rates(chip: Mapping[str, Any]) -> dict[str, Any]:
    """The peaks of the formats that models are served in."""
    rates = chip.get("peak_flops_per_s", {})
    return {name: rates[name] for name in ("bf16", "fp16", "fp8", "fp4") if name in rates}


def _found(listed: list[dict[str, Any]], keys: tuple[str, ...], given: Words) -> list[dict[str, Any]]:
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
        Tool(
            name="analyze",
            title="Predict one run",
            description=(
                "Time to first token, time per output token, end-to-end latency, throughput and memory of one request"
                " or batch of a model on a chip, with 80 % intervals. Use it for: how fast, and does it fit."
            ),
            schema=lambda: arguments.schema("analyze"),
            answer=_call("analyze", compact.analysis),
        ),
        Tool(
            name="compare",
            title="Compare configurations",
            description=(
                "The same request on several models, chips or options side by side: give lists for model, hardware or"
                f" options, at most {limits.MAX_COMPARED} combinations. separable_from_first says whether a difference"
                " is beyond the errors."
            ),
            schema=lambda: arguments.schema("compare"),
            answer=_call("compare", compact.comparison),
        ),
        Tool(
            name="size",
            title="Find the least hardware",
            description=(
                "Which chips, how many and how configured, for requests that arrive at a rate (request_rate) within"
                " limits (ttft, tpot, e2e, such as p99:1s), with cost. If nothing fits, reason names what rejected"
                " every candidate. hardware: a chip, a list, or all."
            ),
            schema=lambda: arguments.schema("size"),
            answer=_sized,
        ),
        Tool(
            name="explain",
            title="Explain a number",
            description=(
                "One number of an analysis as a tree: its formula, its largest parts, and the source of each leaf, down"
                " to data sheets and fits. Use it for: where does this number come from."
            ),
            schema=lambda: arguments.schema("explain"),
            answer=_explained,
        ),
        Tool(
            name="why",
            title="Explain a difference",
            description=(
                "Why one run is faster than another: the difference of a metric split over bandwidth, peak, kernels,"
                " options and sizes so that it adds up, with the probability that its sign is right."
            ),
            schema=lambda: arguments.schema("why"),
            answer=_call("why", compact.difference),
        ),
        Tool(
            name="diagnose",
            title="Diagnose a measured run",
            description=(
                "Where a measured run lost its time against the prediction of the same work. Reads the file named by"
                " measured, on this machine: a profile or the result of a benchmark."
            ),
            schema=lambda: arguments.schema("diagnose"),
            answer=_diagnosed,
        ),
        Tool(
            name="list_models",
            title="List models",
            description="Names of the models of the catalogue with architecture, parameters and longest context.",
            schema=_search,
            answer=_models,
        ),
        Tool(
            name="list_hardware",
            title="List chips",
            description="Names of the chips of the catalogue with memory, bandwidth and peak rates.",
            schema=_search,
            answer=_hardware,
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

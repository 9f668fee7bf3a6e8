"""Every question, declared once: who asks it, what answers it, how the answer is shown, and which doors it has.

The command line, `import llmviewer`, the HTTP API, the tools of assistants and the viewer are made from here.  Modules
and functions are named by text and imported when first asked for, so that a start costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from importlib import import_module
from typing import Any

from llmviewer.core.frozen import frozen

#: Doors beside `import llmviewer` and the command line, which every question has.
HTTP, ASSISTANT, WEB = "http", "assistant", "web"
DOORS = (HTTP, ASSISTANT, WEB)


@frozen
class Question:
    """A question, its answer and its doors.

    summary, detail: of its command.  title, use: what assistants and the viewer call it, and what it is for.  call: its
    function.  answer: the class of the function's answer, which has `to_dict`.  schema: of that document.  example:
    arguments that have an answer.  own: options that it alone has.  page: of the answer, as tables.  brief: the answer
    in short, for assistants; empty: the whole document.  command: module of a command with more than one that is made
    from the declaration.  tab: of the viewer; empty: one made from the declaration.  lists: arguments of which there
    may be several, beside options where `lists_of_options`.  warns: the command prints the answer's warnings, which its
    page has not.  closed: door -> why the question is not asked there.
    """

    name: str
    summary: str
    title: str
    use: str
    call: str
    answer: str
    schema: str
    example: Mapping[str, Any]
    detail: str = ""
    own: str = ""
    page: str = ""
    brief: str = ""
    command: str = ""
    tab: str = ""
    lists: tuple[str, ...] = ()
    lists_of_options: bool = False
    warns: bool = False
    closed: Mapping[str, str] = field(default_factory=dict)

    def function(self) -> Any:
        """The Python function, the same that `import llmviewer` offers."""
        return _named(self.call)

    def options(self) -> Mapping[str, Any]:
        """The declared options that this question alone has."""
        found: Mapping[str, Any] = _named(self.own) if self.own else {}
        return found

    def page_of(self, answered: Any) -> Any:
        """The page of an answer."""
        return _named(self.page)(answered)

    def short(self, answered: Any, words: Mapping[str, Any]) -> dict[str, Any]:
        """The answer in short.  words: the arguments with which it was asked."""
        found: dict[str, Any] = _named(self.brief)(answered, words) if self.brief else answered.to_dict()
        return found

    def has(self, door: str) -> bool:
        """Whether the question is asked at a door."""
        return door not in self.closed


def home_of(name: str) -> str:
    """The module of a function or of the class of an answer; empty for any other name."""
    homes = (one for question in QUESTIONS.values() for one in (question.call, question.answer))
    return {path.rpartition(".")[2]: path.rpartition(".")[0] for path in homes}.get(name, "")


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


_RUN = {"model": "llama-3.1-8b", "hardware": "h100-sxm"}
_LOAD = {**_RUN, "request_rate": 4, "requests": 500, "ttft": "p99:1s"}
_FILES = "it reads files of the machine, and a server reads none"

QUESTIONS: Mapping[str, Question] = {
    one.name: one
    for one in (
        Question(
            name="analyze",
            summary="One model on one chip, operator by operator.",
            title="Predict one run",
            use="Time to first token, time per output token, end-to-end latency, throughput and memory of one"
            " request or batch of a model on a chip, with 80 % intervals. Use it for: how fast, and does it"
            " fit.",
            call="llmviewer.api.calls.analyze",
            answer="llmviewer.result.result.Result",
            schema="llmviewer.analysis/1",
            example={**_RUN, "batch_size": 8, "engine": "vllm"},
            own="llmviewer.result.costs.OF_ONE_RUN",
            page="llmviewer.reports.sweep_page.of_result",
            brief="llmviewer.server.compact.analysis",
            command="llmviewer.cli.analyze",
            tab="verdict",
        ),
        Question(
            name="sweep",
            summary="Many batch sizes and lengths, one row per point.",
            title="Many points",
            use="Metrics of all combinations of batch sizes, lengths, models, chips and options, one row per point:"
            " give lists. Use it for: how a figure grows with the batch or the context.",
            call="llmviewer.api.calls.sweep",
            answer="llmviewer.result.sweep.Sweep",
            schema="llmviewer.sweep/1",
            example={**_RUN, "batch_size": [1, 8, 64]},
            own="llmviewer.result.costs.COSTS",
            brief="llmviewer.server.compact.sweep",
            command="llmviewer.cli.sweep",
            tab="sweep",
            lists=("model", "hardware", "batch_size", "input_len", "output_len"),
            lists_of_options=True,
        ),
        Question(
            name="compare",
            summary="Several chips, models or quantizations side by side.",
            title="Compare configurations",
            use="The same request on several models, chips or options side by side: give lists for model, hardware"
            " or options, at most 12 combinations. separable_from_first says whether a difference is beyond the"
            " errors.",
            call="llmviewer.api.calls.compare",
            answer="llmviewer.result.comparison.Comparison",
            schema="llmviewer.comparison/1",
            example={"model": "llama-3.1-8b", "hardware": ["h100-sxm", "a100-80gb-sxm"]},
            own="llmviewer.result.costs.COSTS",
            page="llmviewer.reports.comparison_page.page",
            brief="llmviewer.server.compact.comparison",
            command="llmviewer.cli.compare",
            tab="compare",
            lists=("model", "hardware"),
            lists_of_options=True,
        ),
        Question(
            name="crossover",
            summary="Fastest configuration at each batch size and context length.",
            title="Fastest configuration",
            use="The fastest of several models, chips or options at each batch size and context length, and where"
            " one overtakes another: give lists for model, hardware or options.",
            call="llmviewer.api.calls.crossover",
            answer="llmviewer.result.crossover.Crossover",
            schema="llmviewer.crossover/1",
            example={**_RUN, "quantization": ["none", "fp8"], "batch_size": [1, 64], "context": [1024, 8192]},
            own="llmviewer.result.crossover.OWN",
            page="llmviewer.reports.crossover_page.page",
            command="llmviewer.cli.crossover",
            lists=("model", "hardware", "batch_size", "context"),
            lists_of_options=True,
            closed={WEB: "its lists of options have no form; the tab Compare takes further configurations"},
        ),
        Question(
            name="why",
            summary="Why one run is faster than another, by factor.",
            title="Explain a difference",
            use="Why one run is faster than another: the difference of a metric split over bandwidth, peak,"
            " kernels, options and sizes so that it adds up, with the probability that its sign is right.",
            detail="Splits the difference between two runs over bandwidth, peak, kernels, options and sizes, so that"
            " it adds up.\n\n"
            "A factor's amount is the mean, over all orders in which the factors may change from A to B, of"
            " what its own change adds (Shapley values). Also prints the difference by operator, and how"
            " certain its sign is.",
            call="llmviewer.planning.why.why",
            answer="llmviewer.planning.why.Why",
            schema="llmviewer.why/1",
            example={"a": "llama-3.1-8b --hardware h100", "b": "llama-3.1-8b --hardware a100"},
            own="llmviewer.planning.why.OWN",
            page="llmviewer.reports.why_page.page",
            brief="llmviewer.server.compact.difference",
            tab="compare",
        ),
        Question(
            name="advise",
            summary="Changes that make a run faster, each tried.",
            title="Advise",
            use="Changes of a run that make it faster, each tried, with their published risk for the quality of"
            " answers, and the best combination within limits. Use it for: what to change.",
            detail="Tries number formats, kernels, batches, chunks, tensor groups, speculation and offloading, and"
            " combines them.\n\n"
            "Each change is answered as by analyze and ranked by its gain, with its published risk for the"
            " quality of answers. The combination takes the best change, then the best on top of it, until"
            " none gains 2 %.\n\n"
            "Exits 1 if nothing that was tried fits in memory and keeps the limits.",
            call="llmviewer.planning.advise.advise",
            answer="llmviewer.planning.advise.Advice",
            schema="llmviewer.advice/1",
            example=_RUN,
            own="llmviewer.planning.advise.OWN",
            page="llmviewer.reports.advice_page.page",
            brief="llmviewer.server.compact.advice",
        ),
        Question(
            name="explain",
            summary="Any number as a tree: formula, values, source of each.",
            title="Explain a number",
            use="One number of an analysis as a tree: its formula, its largest parts, and the source of each leaf,"
            " down to data sheets and fits. Use it for: where does this number come from.",
            call="llmviewer.api.calls.explain",
            answer="llmviewer.result.explanation.explain.Explanation",
            schema="llmviewer.explanation/1",
            example={"number": "tpot_s", **_RUN},
            own="llmviewer.result.explanation.explain.OWN",
            page="llmviewer.reports.explanation_page.page",
            brief="llmviewer.server.compact.explanation",
            command="llmviewer.cli.explain",
            tab="explain",
        ),
        Question(
            name="simulate",
            summary="A server under load: percentiles, queues, the highest rate.",
            title="Simulate a load",
            use="A server under load: percentiles of latencies, throughput, queues and the KV cache, or the highest"
            " rate within limits (find_rate with requests). Use it for: what users of a busy server see.",
            call="llmviewer.simulation.call.simulate",
            answer="llmviewer.simulation.result.Simulation",
            schema="llmviewer.simulation/1",
            example=_LOAD,
            own="llmviewer.simulation.options.LOAD",
            page="llmviewer.reports.simulation_page.page",
            brief="llmviewer.server.compact.simulation",
            command="llmviewer.cli.simulate",
            tab="load",
        ),
        Question(
            name="size",
            summary="The least hardware for a load within limits, with cost.",
            title="Find the least hardware",
            use="Which chips, how many and how configured, for requests that arrive at a rate (request_rate), or"
            " of so many users at once (concurrency), within limits (ttft, tpot, e2e, such as p99:1s), with cost. If"
            " nothing fits, reason names what rejected every candidate. hardware: a chip, a list, or all.",
            call="llmviewer.planning.call.size",
            answer="llmviewer.planning.sizing.Sizing",
            schema="llmviewer.size/1",
            example=_LOAD,
            own="llmviewer.planning.options.OWN",
            page="llmviewer.reports.sizing_page.page",
            brief="llmviewer.server.compact.sizing",
            command="llmviewer.cli.size",
            tab="size",
            lists=("hardware",),
            lists_of_options=True,
        ),
        Question(
            name="fit",
            summary="Every model that runs on a chip, with its format and speed.",
            title="Models that fit",
            use="Which models run on a chip with a context, each in its widest format that fits, with tokens/s, memory,"
            " longest context and what the format costs in quality. Use it for: what can I run on this machine.",
            detail="Lists the known models that run on a chip with a context, each in the widest format that fits.\n\n"
            "Formats are those of the engine: GGUF of llama.cpp at a desk, 16, 8 and 4 bits of vLLM on a server. The"
            " speed is that of one user at the end of the context; memory is accounted as by analyze.\n\n"
            "Exits 1 if no model runs.",
            warns=True,
            call="llmviewer.planning.fitting.fit",
            answer="llmviewer.planning.fitting.Fitting",
            schema="llmviewer.fit/1",
            example={"hardware": "rtx-4090"},
            own="llmviewer.planning.fitting.OWN",
            page="llmviewer.reports.fitting_page.page",
            brief="llmviewer.server.compact.fitting",
        ),
        Question(
            name="require",
            summary="The least bandwidth, compute or capacity that meets a target, or the largest batch or context.",
            title="Require",
            use="The least bandwidth, compute or capacity with which a chip meets a target of tpot, ttft, e2e or"
            " tokens_per_s, or the largest batch_size, context, concurrency or request_rate that does. Use it for:"
            " which chip would be needed, how many requests a chip takes.",
            detail="Finds how much bandwidth, compute or capacity a chip would need, all its other figures being"
            " those of a real one.\n\n"
            "Two or three varied figures give the frontier between them. --vary batch-size, context, concurrency"
            " or request-rate finds the largest that fits and meets all targets, the rate by simulation. Exits 1 if"
            " nothing meets the target.",
            warns=True,
            call="llmviewer.planning.require.require",
            answer="llmviewer.planning.require.Required",
            schema="llmviewer.require/1",
            example={"model": "llama-3.1-8b", "vary": "bandwidth", "tpot": "10ms"},
            own="llmviewer.planning.require.OWN",
            page="llmviewer.reports.require_page.page",
            brief="llmviewer.server.compact.required",
        ),
        Question(
            name="elasticity",
            summary="What ten percent more of each figure of a chip buys.",
            title="Elasticity",
            use="By how much a time falls when bandwidth, peak, a link, launches or the host of a chip get better."
            " Use it for: which figure of the chip matters.",
            detail="Tells by how much a time falls for ten percent more bandwidth, peak, link rate, launches or host"
            " speed.\n\n"
            "`llmviewer plot elasticity` draws it.",
            warns=True,
            call="llmviewer.planning.elasticity.elasticity",
            answer="llmviewer.planning.elasticity.Elasticities",
            schema="llmviewer.elasticity/1",
            example=_RUN,
            own="llmviewer.planning.elasticity.OWN",
            page="llmviewer.reports.elasticity_page.page",
            brief="llmviewer.server.compact.of_a_run",
        ),
        Question(
            name="train",
            summary="Whether a training step fits, and how long it takes.",
            title="Train",
            use="Whether a training step fits in memory, and how long it takes: of all weights, of adapters (lora)"
            " or of a draft model. Use it for: can I fine-tune this model here.",
            detail="Tells whether a training step fits in memory, and how long it takes.\n\n"
            "All weights are trained; with --lora its adapters alone, with --speculative the heads or the"
            " draft model alone.",
            warns=True,
            call="llmviewer.planning.train.train",
            answer="llmviewer.planning.train.Training",
            schema="llmviewer.training/1",
            example={"model": "llama-3.2-1b", "hardware": "h100-sxm", "batch_size": 4},
            own="llmviewer.planning.train.OWN",
            page="llmviewer.reports.training_page.page",
            brief="llmviewer.server.compact.of_a_run",
        ),
        Question(
            name="check",
            summary="A contract that predictions must keep, for CI.",
            title="Check a contract",
            use="Conditions that predictions must keep, such as {'llama-3.1-8b on l40s, vllm': 'tpot_s <= 30 ms at"
            " batch 8'}: which hold, and by how much the others break.",
            call="llmviewer.planning.contract.check",
            answer="llmviewer.planning.contract.Check",
            schema="llmviewer.check/1",
            example={"contract": [{"llama-3.1-8b on h100-sxm": "tpot_s <= 30 ms at batch 8"}]},
            own="llmviewer.planning.contract.OWN",
            page="llmviewer.reports.contract_page.page",
            command="llmviewer.cli.check",
            closed={WEB: "a contract is a file of lines for CI; each of its lines is a page of the viewer"},
        ),
        Question(
            name="diagnose",
            summary="Where a recorded run lost its time, operator by operator.",
            title="Diagnose a measured run",
            use="Where a measured run lost its time against the prediction of the same work. Reads the file named"
            " by measured, on this machine: a profile or the result of a benchmark.",
            call="llmviewer.calibrate.diagnosis.call.diagnose",
            answer="llmviewer.calibrate.diagnosis.diagnosis.Diagnosis",
            schema="llmviewer.diagnosis/1",
            example={"measured": "trace.json.gz", **_RUN},
            own="llmviewer.calibrate.diagnosis.call.OWN",
            page="llmviewer.reports.diagnosis_page.page",
            brief="llmviewer.server.compact.diagnosis",
            command="llmviewer.cli.diagnose",
            closed={HTTP: _FILES, WEB: _FILES},
        ),
    )
}

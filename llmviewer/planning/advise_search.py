"""Changes of a run worth trying, towards a goal within limits: single ones, and a greedy search for a combination."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from llmviewer.api.configuration import Configuration
from llmviewer.api.trials import MULTIPLES, PIPELINE, TENSOR, changed, number_formats, tensor_group, tried
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import as_built
from llmviewer.core.workload import Request
from llmviewer.planning.run_metrics import RunMetric
from llmviewer.result.result import LEAST_GAIN, Change, Result
from llmviewer.result.stages import value_at
from llmviewer.simulation.limits import Limit, limit
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.techniques.speculation.acceptance_presets import PRESETS, Preset


@frozen(eq=False)
class Goal:
    """The metric to improve, and limits on latencies that have to hold."""

    metric: RunMetric
    limits: tuple[Limit, ...] = ()

    def holds(self, result: Result) -> bool:
        """Whether a result fits in memory, its engine starts, and all limits are kept."""
        return self._lacks(result) == (1.0, 1.0)

    def is_better(self, result: Result, other: Result) -> bool:
        """Whether a result is better by LEAST_GAIN: in memory, else in the limits, else in the metric."""
        for lack, before in zip(self._lacks(result), self._lacks(other), strict=True):
            if lack != before:
                return lack * LEAST_GAIN <= before or lack == 1.0
        return self.metric.gain(self.metric.of(other), self.metric.of(result)) >= LEAST_GAIN

    def order(self, result: Result) -> tuple[float, float, float]:
        """The key by which results are sorted, the best first."""
        value = self.metric.of(result)
        return (*self._lacks(result), value if self.metric.less_is_better else -value)

    def _lacks(self, result: Result) -> tuple[float, float]:
        """Memory over the budget, and the largest latency over its limit; 1 where nothing is lacking."""
        return _memory_lack(result), max([1.0, *(self.over(one, result) for one in self.limits)])

    @staticmethod
    def over(one: Limit, result: Result) -> float:
        """A latency over its limit; 0 for one that is not defined."""
        latency = float(getattr(result, one.metric))
        return latency / one.seconds if latency > 0.0 else 0.0


def _memory_lack(result: Result) -> float:
    """Memory over the budget, above 1 if a device or the host lacks any, or the engine for its longest context."""
    if result.runs:
        return 1.0
    memory = result.memory
    return max(float(memory["total_bytes"]) / float(memory["budget_bytes"]), 1.0 + 1e-9)


def limits(texts: Mapping[str, str | float | None]) -> tuple[Limit, ...]:
    """The limits of `--ttft 500ms`, by option.  Raises UserError; one request has no percentiles."""
    found = tuple(limit(name, text) for name, text in texts.items() if text is not None)
    for one in found:
        if one.statistic != "mean":
            name = one.metric.removesuffix("_s")
            raise UserError(f"{name} is {quoted(texts[name])}; allowed: a time such as 80ms; percentiles need a load")
    return found


#: Most prompt tokens of one prefill pass that are tried.
CHUNKS = (512, 2048, 8192)
#: Shares of the weights that the host stores, where a run does not fit or offloads already: copied to the device, or
#: multiplied by the host.
SHARES = (
    "none",
    *(f"weights={share}{by}" for share in ("0.25", "0.5", "0.75", "1") for by in ("", ",compute=host")),
)
#: Plans of FlexGen, which search the shares themselves: tried on the run as asked alone, since each takes a second.
PLANS = ("flexgen", "flexgen,compute=host")
#: Kernels that are tried where no engine has its own.
KERNELS = {"fusion": "all", "attention": "flash-decoding"}
NO_ENGINE = "kernels"
#: Methods of published acceptance that run with these words alone.
METHODS = ("eagle", "eagle3", "mtp", "ngram", "lookahead")

#: Options that change the number of devices.
DEVICE_OPTIONS = (TENSOR, PIPELINE[0])

Choice = tuple[str, Any]


def choices(configuration: Configuration, result: Result) -> Iterator[Choice]:
    """Options with a value to try on a run with this result, in the order in which equal gains are ranked."""
    yield from _kernels(configuration)
    yield from (("max_num_batched_tokens", tokens) for tokens in CHUNKS)
    yield from _speculation(configuration)
    weights, cache = number_formats(configuration)
    if configuration.model.checkpoint is as_built:  # a quantized checkpoint has no weights of 16 bits to convert
        yield from weights
    yield from cache
    if _offloads(configuration, result):
        yield from (("offload", share) for share in SHARES)
    yield from _tensor_groups(configuration)
    if result.refusal is not None and result.memory["max_model_len_to_start"]:
        yield "max_model_len", result.memory["max_model_len_to_start"]
    if float(result.memory["total_bytes"]) > MULTIPLES[-1] * float(result.memory["budget_bytes"]):
        yield PIPELINE


def plans(configuration: Configuration, result: Result) -> Iterator[Choice]:
    """Plans that search the shares of offloading themselves."""
    yield from (("offload", plan) for plan in PLANS if _offloads(configuration, result))


def _offloads(configuration: Configuration, result: Result) -> bool:
    """Whether a run does not fit, or offloads already."""
    return not result.fits or not _is_default(configuration, "offload")


def larger_batches(workload: Request, result: Result) -> Iterator[Choice]:
    """Twice, four and eight times the batch and the largest that fits, which raise throughput."""
    batch, largest = int(value_at(workload.batch_size, 0)), int(result.memory["max_batch_size"] or 0)
    wanted = {batch * 2, batch * 4, batch * 8, largest}
    yield from (("batch_size", size) for size in sorted(wanted) if batch < size <= largest)


def smaller_batches(workload: Request, result: Result) -> Iterator[Choice]:
    """Parts of the batch and the largest that fits, for a run that does not fit or breaks a limit."""
    batch, largest = int(value_at(workload.batch_size, 0)), int(result.memory["max_batch_size"] or 0)
    wanted = {batch // 2, batch // 4, batch // 8, min(largest, batch - 1)}
    yield from (("batch_size", size) for size in sorted(wanted, reverse=True) if size > 0)


def _kernels(configuration: Configuration) -> Iterator[Choice]:
    if configuration.options.engine == NO_ENGINE:
        defaults = ((name, value) for name, value in KERNELS.items())
        yield from ((name, value) for name, value in defaults if _is_default(configuration, name))


def _is_default(configuration: Configuration, name: str) -> bool:
    """Whether an option of a technique was left at its default."""
    return configuration.techniques[name] == TECHNIQUES[name].default


def _tensor_groups(configuration: Configuration) -> Iterator[Choice]:
    """Multiples of the tensor group that one link joins."""
    for factor in MULTIPLES:
        name, size = tensor_group(configuration, factor)
        if int(size) <= min(configuration.chip.near, 8.0):
            yield name, size


def _speculation(configuration: Configuration) -> Iterator[Choice]:
    """Methods with a published acceptance of this model, with as many draft tokens as measured and half of them."""
    for preset in PRESETS.values():
        if preset.method in METHODS and not preset.tree_tokens and _is_target(preset, configuration.model.name):
            for tokens in dict.fromkeys((preset.drafted, -(-preset.drafted // 2))):
                yield "speculative", f"{preset.method},tokens={tokens},acceptance={preset.name}"


def _is_target(preset: Preset, model: str) -> bool:
    """Whether acceptance was measured with a model: `Llama-3.1-8B-Instruct` is `llama-3.1-8b`."""
    target = re.sub(r"\s*\(.*\)|-instruct", "", preset.target.lower()).strip().replace(" ", "-")
    return target == model.lower().removesuffix("-instruct")


def acceptance_of(value: str) -> Preset | None:
    """The published acceptance that a value of --speculative names."""
    found = re.search(r"acceptance=([^,]+)", value)
    return PRESETS.get(found[1]) if found else None


#: Whether a change may be made.
Allowed = Callable[[Change], bool]
#: Most changes of a combination.
MOST_STEPS = 8


@frozen(slots=False, eq=False)
class Run:
    """A run with its result, from which changes start.

    most_devices: those of a change; None: as many as are tried.  steps: changes that were made to the run as asked.
    reached: runs with one change more, each with its own changes tried once, whichever scope asks for them.
    """

    goal: Goal
    configuration: Configuration
    request: Request
    result: Result
    most_devices: int | None = None
    steps: int = 0
    reached: dict[Change, Run] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices of the run."""
        return int(self.configuration.system.parallelism.devices)

    @cached_property
    def singles(self) -> list[Change]:
        """All single changes that are supported here."""
        return list(self._singles())

    def _singles(self) -> Iterator[Change]:
        for name, value in self._choices():
            found = tried(self.configuration, self.request, {name: value}) if self._allows(name, value) else None
            if found is not None and _is_defined(self.goal, found.result):
                yield found

    def _allows(self, name: str, value: Any) -> bool:
        """Whether a change takes no more devices than allowed."""
        if self.most_devices is None or name not in DEVICE_OPTIONS:
            return True
        try:
            made, _ = changed(self.configuration, self.request, {name: value})
        except UserError:  # the chip or the model does not support it
            return False
        return made.system.parallelism.devices <= self.most_devices

    def _choices(self) -> Iterator[Choice]:
        """Values to try; the batch is part of the question unless throughput is, or the run misses something."""
        yield from choices(self.configuration, self.result)
        yield from plans(self.configuration, self.result) if self.steps == 0 else ()
        if "tokens_per_s" in self.goal.metric.name:
            yield from larger_batches(self.request, self.result)
        if not self.goal.holds(self.result):
            yield from smaller_batches(self.request, self.result)

    def after(self, change: Change) -> Run:
        """The run with a change."""
        if change not in self.reached:
            configuration, request = changed(self.configuration, self.request, change.words)
            made = replace(self, configuration=configuration, request=request, result=change.result, reached={})
            self.reached[change] = replace(made, steps=self.steps + 1)
        return self.reached[change]


def _is_defined(goal: Goal, result: Result) -> bool:
    try:
        goal.metric.of(result)
    except UserError:
        return False
    return True


def combination(start: Run, allowed: Allowed) -> list[Change]:
    """The best change, then the best on top of it, until none is better; each with the result so far.

    An option may change again, such as a share of offloaded weights after their number format.  allowed: whether a
    change may be made.
    """
    run, steps = start, list[Change]()
    while len(steps) < MOST_STEPS:
        better = [one for one in run.singles if allowed(one) and run.goal.is_better(one.result, run.result)]
        if not better:
            break
        best = min(better, key=lambda one: run.goal.order(one.result))
        steps.append(best)
        run = run.after(best)
    return steps


@frozen
class Scope:
    """Changes that a combination may make.  devices: most of them.  batch: least size of the batch."""

    devices: int
    batch: float

    def __call__(self, change: Change) -> bool:
        """Whether a change is within the scope."""
        return change.devices <= self.devices and float(change.words.get("batch_size", self.batch)) >= self.batch


def widest_needed(start: Run, scopes: Sequence[Scope]) -> tuple[Scope, list[Change]]:
    """The first scope with a combination that holds, and that combination; without one, the nearest of all."""
    found = [(scopes[0], combination(start, scopes[0]))]
    for scope in scopes[1:]:
        if start.goal.holds(_end(start, found[-1][1])):
            return found[-1]
        found.append((scope, combination(start, scope)))
    return min(reversed(found), key=lambda one: start.goal.order(_end(start, one[1])))


def _end(start: Run, steps: list[Change]) -> Result:
    return steps[-1].result if steps else start.result

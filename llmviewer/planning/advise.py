"""`lv.advise`: changes of a run that were tried, ranked by gain, and their greedy combination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmviewer.api import calls
from llmviewer.api.configuration import configuration
from llmviewer.api.trials import run_line
from llmviewer.core import arguments
from llmviewer.language.option import Kind, Option, taking
from llmviewer.planning.advice import Advice
from llmviewer.planning.advise_goal import Goal, limits
from llmviewer.planning.advise_search import Run, Scope, widest_needed
from llmviewer.planning.run_metrics import RUN_METRICS, run_metric
from llmviewer.result.stages import value_at
from llmviewer.techniques.options import OPTIONS, WORKLOAD

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import SizedRunOptions

#: Devices of a combination where no run on as many as asked fits and keeps the limits.
MOST_DEVICES = 8
#: Options beside those of `analyze`.
OWN = {
    "metric": Option(
        kind=Kind.WORD, choices=tuple(RUN_METRICS), help="To improve: tpot_s, ttft_s, e2e_s, output_tokens_per_s ..."
    ),
    "ttft": Option(kind=Kind.TIME, help="Limit of the time to first token: 500ms."),
    "tpot": Option(kind=Kind.TIME, help="Limit of the time per output token: 20ms."),
    "max_gpus": Option(kind=Kind.WHOLE, help="Most devices; default: as many as asked, more if nothing else holds."),
}


@taking(OPTIONS)
def advise(
    model: ModelName,
    hardware: ChipName,
    *,
    metric: str = "tpot_s",
    ttft: str | float | None = None,
    tpot: str | float | None = None,
    max_gpus: int | None = None,
    **options: Unpack[SizedRunOptions],
) -> Advice:
    """Changes of a run that make it better, each tried, and their greedy combination.

    model, hardware, options: as of `analyze`, sizes included.  metric: what to improve: tpot_s, ttft_s, e2e_s (less is
    better), output_tokens_per_s, output_tokens_per_s_per_device ... (more is better).  ttft, tpot: limits that have to
    hold ("500ms").  max_gpus: most devices; by default as many as asked, more only if nothing else holds.

    Raises UserError.
    """
    goal = Goal(metric=run_metric(metric), limits=limits({"ttft": ttft, "tpot": tpot}))
    sizes = {name: one.checked(name, options.get(name, one.default)) for name, one in WORKLOAD.items()}
    words = {name: value for name, value in options.items() if name not in WORKLOAD}
    request = calls.request(*sizes.values())
    made = configuration(model, hardware, **words)
    most = None if max_gpus is None else arguments.whole_number("max_gpus", max_gpus)
    most = None if most is None else max(most, int(made.system.parallelism.devices))
    start = Run(goal=goal, configuration=made, request=request, result=made.answer(request), most_devices=most)
    goal.metric.of(start.result)
    line = run_line(model, hardware, {**words, **sizes})
    return _advice(start, line)


def _advice(start: Run, line: Mapping[str, tuple[str, ...]]) -> Advice:
    goal, singles = start.goal, start.singles
    scope, steps = widest_needed(start, _scopes(start))
    better = [one for one in singles if goal.is_better(one.result, start.result)]
    better.sort(key=lambda one: goal.order(one.result))
    holding = [one for one in better if goal.holds(one.result)]
    return Advice(
        goal=goal,
        result=start.result,
        changes=tuple(one for one in holding if scope(one)),
        more_devices=tuple(one for one in holding if one.devices > scope.devices),
        broken=tuple(one for one in better if one not in holding),
        tried=len(singles),
        steps=tuple(steps),
        line=line,
    )


def _scopes(start: Run) -> list[Scope]:
    """The scopes of a combination: as asked; with more devices unless limited; with smaller batches."""
    batch = float(value_at(start.request.batch_size, 0))
    devices = start.most_devices or start.devices
    most = start.most_devices or max(MOST_DEVICES, devices)
    sizes = [devices, *(size for size in (2 * devices, 4 * devices) if size < most), most]
    scopes = [Scope(devices=size, batch=least) for least in (batch, 1.0) for size in sizes]
    return list(dict.fromkeys(scopes))

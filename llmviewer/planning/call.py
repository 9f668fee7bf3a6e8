"""`lv.size`: which chips, how many and how run, for a load within limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar

from llmviewer.api import build
from llmviewer.api.configuration import images_notes
from llmviewer.core import arguments, data
from llmviewer.core.errors import UserError
from llmviewer.core.parsing import duration
from llmviewer.hardware.names import counted
from llmviewer.language.option import taking
from llmviewer.planning import options as declared
from llmviewer.planning.against import against
from llmviewer.planning.autoscaling import gpu_hours
from llmviewer.planning.capacities import capacity_notes, with_searched_rates
from llmviewer.planning.choices import Choice, order_of
from llmviewer.planning.floors import ChipScreen, Tried, best_of_chip, mixed_pools, screen_chip
from llmviewer.planning.fronts import front_of, steady_choices
from llmviewer.planning.gates import farthest
from llmviewer.planning.options import Question
from llmviewer.planning.screen import Order
from llmviewer.planning.sensitivity import sensitivity
from llmviewer.planning.sizing import Rejection, Sizing
from llmviewer.planning.space import SEARCHED, few_bits_notes, sum_as_named, sum_of
from llmviewer.simulation.parallel import on_all_cores
from llmviewer.techniques.options import RUN_OPTIONS
from llmviewer.timing import engine
from llmviewer.timing.engine_serving import ENGINE

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import SizingOptions

#: Chips whose best configurations are simulated; the others are too dear to win.
MOST_CHIPS = 16
HARDWARE = "hardware_specs"

Advance = Callable[[int], None]
One = TypeVar("One")
Found = TypeVar("Found")


@taking(
    declared.OWN,
    RUN_OPTIONS,
    defaults=dict.fromkeys((*SEARCHED, *declared.STEP_LIMITS, "batching")),
)
def size(
    model: ModelName,
    hardware: ChipName | Sequence[ChipName],
    *,
    advance: Advance = lambda chips: None,
    best_so_far: Callable[[str], None] = lambda text: None,
    **options: Unpack[SizingOptions],
) -> Sizing:
    """Which chips, how many and how run, for requests at a rate or of so many users, within limits on latencies.

    model: as of `analyze`.  hardware: chips, a list or comma-separated; "all" of hardware_specs.  options: the load and
    limits as of `simulate` (request_rate=50 or concurrency=200, input_len=2000, output_len=300, ttft="p99:1s",
    tpot="p99:50ms", or a trace), those of planning/options.py (max_gpus=64, max_usd_per_hour=40, objective="usd",
    price="h100=2.10"), and options of a run, each a value or a list of values to try.  advance: called with steps that
    are done, two per chip.  best_so_far: called with each better configuration in words.  An interrupt (Ctrl-C) while
    chips are searched or simulated, or highest rates found, ends the search: the answer is the best of what was
    searched, with a note.  Raises UserError.
    """
    asked = declared.question(model, chips_of(hardware), {**options, **_bound(hardware, options)})
    if asked.objective == "watts" and (unlike := next(filter(sum_of, asked.hardware), None)):
        raise UserError(
            f"--objective watts: the power of unlike devices ({unlike}) is not known; allowed: "
            f"{', '.join(one for one in declared.OBJECTIVES if one != 'watts')}"
        )
    watch = Watch(advance=advance, told=best_so_far)
    screens = screens_of(asked, watch)
    _check_space(screens)
    tried = tried_on(asked, screens, watch)
    choices = _ordered(asked, [one for each in tried for one in each.choices], watch)
    best = _best_of_each_chip(choices)
    best += steady_choices(asked, screens, {each.hardware for each in tried})
    if watch.stopped:
        return _interrupted(asked, screens, tried, best, watch)
    front, runs = front_of(asked, screens, choices, best[0] if best else None)
    held = {one.hardware for one in best}
    rejected = [_rejection(one, tried) for one in screens if one.hardware not in held]
    return Sizing(
        question=asked,
        choices=tuple(best),
        front=front,
        rejected=tuple(sorted((one for one in rejected if one is not None), key=lambda one: one.hardware)),
        searched=sum(one.points for one in screens),
        structures=sum(len(one.structures) for one in screens),
        simulated=sum(one.runs for one in tried) + runs,
        sensitivity=sensitivity(asked, best[0]) if best else {},
        runner_up=next((one for one in choices if one is not best[0]), None) if best else None,
        scaling=_scaling(asked, best[0]) if best else None,
        notes=_notes(asked, best),
        against=against(asked, screens, choices, best[0]) if choices else {},
    )


@dataclass(slots=True, kw_only=True)
class Watch:
    """News of a search while it runs, and the part of it that the user has stopped; empty: none.

    least: measures of the best configuration so far, one that is simulated before all others.
    """

    advance: Advance = lambda steps: None
    told: Callable[[str], None] = lambda text: None
    stopped: str = ""
    least: tuple[bool, tuple[Any, ...]] | None = None

    def each(
        self, function: Callable[[One], Found], values: Sequence[One], seen: Callable[[Found], None], part: str
    ) -> list[Found]:
        """`function` of every value until the user interrupts.  Raises KeyboardInterrupt if none is answered by then.

        seen: called with each as it is known.  part: what is searched, in words.
        """
        known: dict[int, Found] = {}

        def done(place: int, found: Found) -> None:
            known[place] = found
            seen(found)
            self.advance(1)

        try:
            on_all_cores(function, values, done)
        except KeyboardInterrupt:
            if not known:
                raise
            self.stopped = self.stopped or f"{len(known)} of {len(values)} {part}"
        return [known[place] for place in sorted(known)]

    def better(self, order: Sequence[Any], text: str, *, simulated: bool) -> None:
        """Tell a configuration if it is better than all before."""
        measures = (not simulated, tuple(order))
        if self.least is None or measures < self.least:
            self.least = measures
            self.told(text if simulated else f"{text}, before simulation")


def _interrupted(
    asked: Question, screens: Sequence[ChipScreen], tried: Sequence[Tried], best: Sequence[Choice], watch: Watch
) -> Sizing:
    """The answer of a search that was stopped: without a front, changes of the load and chips that were rejected."""
    return Sizing(
        question=asked,
        choices=tuple(best),
        front=(),
        rejected=(),
        searched=sum(one.points for one in screens),
        structures=sum(len(one.structures) for one in screens),
        simulated=sum(one.runs for one in tried),
        notes=(f"interrupted: {watch.stopped}; the best of these", *_notes_of_chips(asked, best)),
    )


#: Times the devices of the prediction from which a note says what the others are for.
MANY = 2.0


def _notes(asked: Question, best: Sequence[Choice]) -> tuple[str, ...]:
    """Warnings about load, formats and prices of the best of each chip."""
    return (
        *(capacity_notes(asked, best[0]) if best else ()),
        *_notes_of_chips(asked, best),
    )


def _notes_of_chips(asked: Question, best: Sequence[Choice]) -> tuple[str, ...]:
    """Warnings about versions, formats, prices and images, and options that are not used."""
    chips = (chip for one in best for part, _ in one.parts for chip in part.screened.chip.split("+"))
    return (
        *_doubt_notes(asked, best),
        *_version_notes(str(one.options.get("engine", ENGINE)) for one in best),
        *few_bits_notes(str(one.options.get("quantization", "none")) for one in best),
        *asked.prices.notes(chips, date.today()),
        *images_notes(asked.workload.images),
        *_unused(asked, best),
    )


def _doubt_notes(asked: Question, best: Sequence[Choice]) -> Iterator[str]:
    """Warnings about chips whose number is that of the errors of their times, not of the prediction."""
    for one in best:
        if 0 < one.predicted_devices <= one.devices_needed / MANY:
            alone = "device holds" if one.predicted_devices == 1 else "devices hold"
            kept = f"{one.devices_needed} hold them with probability {asked.load.confidence:g}"
            yield (
                f"{one.hardware}: {one.predicted_devices} {alone} the limits by the prediction; {kept}, as its "
                "times are uncertain (--confidence 0 sizes by the prediction)"
            )


def _version_notes(presets: Iterable[str]) -> list[str]:
    """Warnings about versions of engines of which no runs were measured."""
    return [note for note in (engine.load(name).version_note for name in dict.fromkeys(presets)) if note]


def _ordered(asked: Question, choices: Sequence[Choice], watch: Watch) -> list[Choice]:
    """Configurations that hold, best first, the best of each chip and the runner-up with their highest rates.

    An interrupt leaves the highest rates out.
    """
    order = order_of(asked.objective)
    if watch.stopped:
        return sorted(choices, key=order)
    try:
        return _with_rates(asked, choices, order)
    except KeyboardInterrupt:
        watch.stopped = "highest rates are not searched"
        return sorted(choices, key=order)


def _with_rates(asked: Question, choices: Sequence[Choice], order: Callable[[Choice], Order]) -> list[Choice]:
    if asked.objective == "usd-per-token":  # at full load
        return sorted(with_searched_rates(asked, choices), key=order)
    found = sorted(choices, key=order)
    shown = [*_best_of_each_chip(found), *found[1:2]]
    searched = with_searched_rates(asked, [one for one in found if one in shown])
    return sorted([*searched, *(one for one in found if one not in shown)], key=order)


def _unused(asked: Question, best: Sequence[Choice]) -> tuple[str, ...]:
    """A note on a router that no simulation has: a rate or users, unlike a trace, are divided by the replicas."""
    pooled = any(len(one.parts) > 1 and count > 1 for one in best for _, count in one.parts)
    several = any(one.replicas > 1 for one in best)
    if "router" not in asked.load.words or not best or pooled or (several and not asked.load.is_divided):
        return ()
    return (f"--router: one replica{' is simulated, under its share of the load' if several else ''}, not used",)


def _listed(hardware: Any) -> list[Any]:
    """The chips as they are named, of a list or separated by commas."""
    names: list[Any] = []
    for one in hardware if isinstance(hardware, list | tuple) else [hardware]:
        names += [name.strip() for name in one.split(",")] if isinstance(one, str) else [one]
    return names


def _bound(hardware: Any, options: Mapping[str, Any]) -> dict[str, int]:
    """The most devices, as max_gpus, where chips are named with a number: 8xh100.  Raises UserError for two bounds."""
    counts = {counted(one)[0] if isinstance(one, str) else 0 for one in _listed(hardware)}
    if counts == {0}:
        return {}
    stated = options.get("max_gpus")
    given = set() if stated is None else {declared.OWN["max_gpus"].checked("max_gpus", stated)}
    if len(counts | given) > 1:
        raise UserError("size has one bound on devices: give max_gpus alone, or one number before every chip")
    return {"max_gpus": counts.pop()}


def chips_of(hardware: Any) -> tuple[Any, ...]:
    """The chips that are compared, each once.  Raises UserError for unknown ones."""
    names = _listed(hardware)
    if names == ["all"]:
        return tuple(data.stems(HARDWARE))
    if not names or "" in names:
        raise UserError("hardware has no chip; give names separated by commas, or all")
    chips = {_as_named(name): name for name in names}
    return tuple(stem if data.user_path(str(name)) is None else name for stem, name in chips.items())


def _as_named(name: Any) -> str:
    return sum_as_named(name) if sum_of(name) else build.chip_of(arguments.path_or_name("hardware", name)).name


def screens_of(asked: Question, watch: Watch) -> list[ChipScreen]:
    """The first floor of every chip, several at a time, or of those before an interrupt."""
    build.model_of(asked.model, build.options_of({}))  # once, before processes are forked

    def seen(one: ChipScreen) -> None:
        if one.ordered:
            first = one.ordered[0]
            text = _words(first.devices, one.hardware, first.usd_per_hour)
            watch.better(_first_order(asked, one), text, simulated=False)

    return watch.each(lambda chip: screen_chip(asked, chip), asked.hardware, seen, "chips are searched")


def _words(devices: int, hardware: str, usd: float | None) -> str:
    """A configuration as it is told while the search goes on."""
    cost = f", ${usd:.2f} an hour" if usd is not None and usd < float("inf") else ""
    return f"best so far {devices} x {hardware}{cost}"


def _check_space(screens: Sequence[ChipScreen]) -> None:
    """Raise UserError where no structure can be priced at all, with the first reason."""
    if not any(one.structures for one in screens):
        reason = next((gate.text for one in screens for gate in one.gates), "no layout fits max_gpus")
        raise UserError(f"size has nothing to search: {reason}")


def tried_on(asked: Question, screens: Sequence[ChipScreen], watch: Watch) -> list[Tried]:
    """The second floor: simulations of the chips that may win, several at a time, then of pools of two chips."""
    hopeful = sorted((one for one in screens if one.ordered), key=lambda one: _first_order(asked, one))
    simulated = hopeful[:MOST_CHIPS]
    watch.advance(len(screens) - len(simulated))

    def seen(one: Tried) -> None:
        for choice in one.choices:
            text = _words(choice.devices, choice.hardware, choice.usd_per_hour)
            watch.better(choice.order(asked.objective), text, simulated=True)

    tried = watch.each(lambda one: best_of_chip(asked, one), simulated, seen, "chips are simulated")
    return tried if watch.stopped else [*tried, mixed_pools(asked, hopeful, tried)]


def _first_order(asked: Question, one: ChipScreen) -> Order:
    return one.ordered[0].order(asked.objective, asked.workload)


def _best_of_each_chip(choices: Sequence[Choice]) -> list[Choice]:
    """The first configuration of every chip or pair of chips, in order."""
    found: dict[str, Choice] = {}
    for one in choices:
        found.setdefault(one.hardware, one)
    return list(found.values())


def _rejection(one: ChipScreen, tried: Sequence[Tried]) -> Rejection | None:
    """Why a chip has no configuration; None where no layout was within the bound on devices."""
    gates = [*one.gates, *(gate for each in tried if each.hardware == one.hardware for gate in each.gates)]
    return Rejection(hardware=one.hardware, gate=farthest(gates)) if gates else None


def _scaling(asked: Question, best: Choice) -> dict[str, float] | None:
    """GPU hours of an autoscaler with the replicas of the best configuration."""
    if asked.words["autoscale"] is None or not best.highest_rate:
        return None
    window_s, start_up_s = (duration(name, asked.words[name]) for name in ("autoscale", "start_up"))
    needed = best.replicas - (best.spare if len(best.parts) == 1 else 0)
    return gpu_hours(asked.traffic, best.highest_rate / needed, best.devices_needed // needed, window_s, start_up_s)

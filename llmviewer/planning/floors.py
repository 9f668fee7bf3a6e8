"""The two floors of `size`: all structures of a chip screened in closed form, and the best candidates simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llmviewer.api import build
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.planning.choices import Choice, choice_of, order_of
from llmviewer.planning.gates import Gate, first_gate, told
from llmviewer.planning.late_gates import late_gate
from llmviewer.planning.options import STEP_LIMITS, Question
from llmviewer.planning.pools import Pair, pairs
from llmviewer.planning.screen import Candidate, Screened, candidates, fastest, screened
from llmviewer.planning.space import Refusal, Structure, structures, sum_of
from llmviewer.planning.verification import Answer, verified, verified_pair

#: Pairs of pools of a chip that are kept for simulation.
MOST_PAIRS = 2
#: Devices of one structure where the user sets no limit.
MOST_DEVICES = 72


@frozen(eq=False)
class ChipScreen:
    """Findings of the first floor for one chip.

    ordered: the best points of each structure and pairs of pools, those first that the steady state prefers.  gates:
    of the structures that are rejected, where no point of one pool is left: otherwise its simulation tells more.
    points: number of points that were priced.
    """

    hardware: str
    structures: tuple[Screened, ...]
    ordered: tuple[Candidate | Pair, ...]
    gates: tuple[Gate, ...]
    points: int


def points_of(asked: Question, one: Screened) -> list[Candidate]:
    """The points of a structure worth a simulation: the fastest for the least latency, else of the fewest replicas."""
    choose = fastest if asked.objective == "latency" else candidates
    return choose(one, asked.workload, asked.bounds)


def screen_chip(asked: Question, hardware: Any) -> ChipScreen:
    """The first floor of one chip.  Raises UserError."""
    done = list(_priced(asked, hardware))
    priced = [one for one in done if not isinstance(one, Gate)]
    gates = [one for one in done if isinstance(one, Gate)]
    made = [each for _, each in priced]
    points = [points_of(asked, each) for each in made]
    found: list[Candidate | Pair] = []
    if "disaggregated" not in asked.only:
        found += (one for several in points for one in several)
    if not found:
        gates += (_gate_of(asked, *one) for one, several in zip(priced, points, strict=True) if not several)
    if "continuous" not in asked.only:
        found += pairs(made, asked.workload, asked.bounds)[:MOST_PAIRS]
    found.sort(key=lambda one: one.order(asked.objective, asked.workload))
    return ChipScreen(
        hardware=str(hardware),
        structures=tuple(made),
        ordered=tuple(found),
        gates=tuple(gates),
        points=sum(each.points(asked.bounds) for each in made),
    )


def _gate_of(asked: Question, structure: Structure, one: Screened) -> Gate:
    """Why a structure has no point."""
    try:
        gate = first_gate(structure, one.curves, asked.workload)
    except UserError as error:
        return Gate(constraint="support", margin=None, unit="", text=error.marked)
    return gate or late_gate(one, asked.workload, asked.bounds)


def _priced(asked: Question, hardware: Any) -> Iterator[tuple[Structure, Screened] | Gate]:
    """Every structure of a chip with its curves, or the reason why it has none."""
    prices = [asked.prices.of(chip.name) for chip in sum_of(hardware) or (build.chip_of(hardware),)]
    known = [price.usd_per_hour for price in prices if price is not None]
    usd = sum(known) / len(known) if len(known) == len(prices) else None
    allowed = {name: values for name, values in asked.lists.items() if name not in ("batching", *STEP_LIMITS)}
    limits = {name: asked.lists[name] for name in STEP_LIMITS if name in asked.lists}
    most = int(min(asked.bounds.devices, MOST_DEVICES))
    for one in structures(asked.model, hardware, allowed, most):
        done = one if isinstance(one, Refusal) else screened(one, asked.workload, limits, usd)
        if isinstance(done, Refusal):
            yield Gate(constraint="support", margin=None, unit="", text=done.reason)
        else:
            assert isinstance(one, Structure)
            yield one, done


#: Candidates of a chip that are simulated, and chips whose pools are combined.
MOST_CANDIDATES, MOST_MIXED = 4, 4
#: Probability of the limits above which no other configuration of the same cost is simulated.
SURE = 0.9


@frozen
class Tried:
    """Simulated configurations of a chip: choices that hold, the gates of those that do not, and their number."""

    hardware: str
    choices: tuple[Choice, ...] = ()
    gates: tuple[Gate, ...] = ()
    runs: int = 0


def best_of_chip(asked: Question, one: ChipScreen) -> Tried:
    """The configurations of a chip that hold in simulation, until no other candidate can be better."""
    return simulated(asked, one.hardware, one.ordered)


def mixed_pools(asked: Question, screens: Sequence[ChipScreen], tried: Sequence[Tried]) -> Tried:
    """Pools of two chips of one maker, if the steady state finds them better than all that was simulated.

    They stand in different machines, so the user names the network between them.
    """
    name = "+".join(one.hardware for one in screens[:2])
    if "network" not in asked.lists or "continuous" in asked.only:
        return Tried(hardware=name)
    together = [structure for one in screens[:MOST_MIXED] for structure in one.structures]
    mixed = [one for one in pairs(together, asked.workload, asked.bounds) if len(set(one.chips)) > 1 and one.one_maker]
    held = sorted((one for each in tried for one in each.choices), key=order_of(asked.objective))
    better = [
        one
        for one in mixed
        if not held or one.order(asked.objective, asked.workload)[:2] < held[0].order(asked.objective)[:2]
    ]
    return simulated(asked, name, better[:1])


def simulated(asked: Question, hardware: str, candidates: Sequence[Candidate | Pair]) -> Tried:
    """Candidates that hold in simulation, in their order until none that is left can be better than one that holds."""
    choices: list[Choice] = []
    gates: list[Gate] = []
    done: set[str] = set()
    for one in candidates:
        if len(done) >= MOST_CANDIDATES and choices:
            break
        if choices and not _may_win(asked, one, min(choices, key=order_of(asked.objective))):
            continue
        answer = _answer(asked, one)
        if isinstance(answer, Gate):
            gates.append(answer)
        elif answer.holds:
            choices.append(choice_of(asked, one, answer))
        else:
            gates.append(_gate(asked, answer))
        done.add(str(sorted(one.key.items())))
    return Tried(hardware=hardware, choices=tuple(choices), gates=tuple(gates), runs=len(done))


def _may_win(asked: Question, one: Candidate | Pair, held: Choice) -> bool:
    """Whether a candidate can be better than a configuration that holds, by the least that it can need.

    Power is known only of what was simulated.  At equal cost another one is worth a simulation if the limits of the
    one that holds are unsure.
    """
    if asked.objective == "watts":
        return True
    least, best = one.least(asked.objective, asked.workload)[:2], held.order(asked.objective)[:2]
    unsure = held.probability is not None and held.probability < SURE
    return least < best or (least == best and unsure)


def _answer(asked: Question, one: Candidate | Pair) -> Answer | Gate:
    try:
        if isinstance(one, Pair):
            return verified_pair(asked.model, one, asked.load, asked.bounds)
        return verified(asked.model, one, asked.load, asked.bounds)
    except UserError as error:
        return Gate(constraint="support", margin=None, unit="", text=error.marked)


def _gate(asked: Question, answer: Answer) -> Gate:
    """The limit that a simulated configuration exceeds."""
    layout = f"{answer.devices} devices"
    if not answer.saturated and not answer.broken:
        text = f"the limits hold with less than the asked probability with {layout}"
        return Gate(constraint="simulation", margin=None, unit="", text=text)
    if answer.saturated:
        return Gate(constraint="simulation", margin=None, unit="", text=f"saturated with {layout}")
    limit = answer.broken[0]
    value = answer.latencies[limit.metric][limit.statistic] or 0.0
    name = f"{limit.metric.removesuffix('_s').upper()} {limit.statistic}"
    load = f"{answer.users} users" if answer.users else f"{answer.rate:.3g} requests/s"
    text = f"{name} {told(value)} at {load} of a replica with {layout}"
    return Gate(constraint="simulation", margin=value - limit.seconds, unit="s", text=text)

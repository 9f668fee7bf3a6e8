"""Configurations with their figures: latencies, cost, power, and the order in which an objective prefers them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from llmviewer import api
from llmviewer.analysis.power import carbon_g, energy_of
from llmviewer.analysis.power_shares import board_watts, shares_of
from llmviewer.api.configuration import configuration
from llmviewer.core.frozen import frozen
from llmviewer.planning.chance import chance_of
from llmviewer.planning.options import Question
from llmviewer.planning.pools import Pair, of_answers, of_prompts
from llmviewer.planning.screen import Candidate, Order, capacity
from llmviewer.planning.space import has_few_bits
from llmviewer.planning.verification import Answer
from llmviewer.planning.workload import Workload
from llmviewer.simulation.call import BATCHING
from llmviewer.timing.engine_serving import ENGINE

#: A pool: its point, and replicas.
Part = tuple[Candidate, int]


def watts_of(asked: Question, parts: Sequence[Part], answer: Answer) -> tuple[float, float] | None:
    """Mean power of all devices under the load [W], spare ones included, and with their servers; None where no power
    is published.

    Every device draws its idle power all the time; each request adds the energy of its work.  Of two pools, prompts add
    theirs to the first and answers to the second.  At most the power of all devices at full load.
    """
    workload, spare = asked.workload, int(asked.words["spare"])
    found = [_work(asked, part, answer) for part, _ in parts]
    first, last = found[0], found[-1]
    if first is None or last is None:
        return None
    joules = first.per_input_token * workload.input_len + last.per_output_token * workload.output_len
    idle = sum(work.idle_w * part.screened.devices * (count + spare) for work, (part, count) in _pairs(found, parts))
    most = sum(count * part.screened.devices * part.screened.watts for part, count in parts)
    watts = min(idle + rate_of(asked, answer) * joules, max(most, idle))
    servers = [work.server_w * part.screened.devices * (count + spare) for work, (part, count) in _pairs(found, parts)]
    return watts, watts + sum(servers)


def rate_of(asked: Question, answer: Answer) -> float:
    """The rate of all replicas [1/s]: as asked, or that at which the users of a closed loop are answered."""
    return answer.rate * answer.replicas if asked.load.users else asked.workload.rate


@frozen
class _Work:
    """Energy of tokens beyond idle power [J], and the idle power of a device and of its share of the server [W]."""

    per_input_token: float
    per_output_token: float
    idle_w: float
    server_w: float


def _pairs(found: Sequence[_Work | None], parts: Sequence[Part]) -> list[tuple[_Work, Part]]:
    return [(work, part) for work, part in zip(found, parts, strict=True) if work is not None]


def _work(asked: Question, part: Candidate, answer: Answer) -> _Work | None:
    """Energy of tokens at the mean number of running sequences of a rank; None where it is not known."""
    if part.screened.is_sum:
        return None
    words = {"engine": ENGINE, "batching": BATCHING, **part.words}
    one = configuration(asked.model, part.screened.hardware, **words)
    lengths = (max(round(size), 1) for size in (asked.workload.input_len, asked.workload.output_len))
    shares = shares_of(one.system.chip, one.system.efficiency)
    answered = one.answer(api.request(max(round(answer.running) * part.screened.ranks, 1), *lengths))
    energy = energy_of(answered.analysis, shares)
    if energy is None or shares is None:
        return None
    board_w = float(np.max(board_watts(one.system.chip)[0]))
    idle_w = shares.idle * board_w
    working = max(1.0 - idle_w * part.screened.devices / float(energy.watts[0]), 0.0)
    return _Work(
        per_input_token=working * float(energy.joules_per_prompt_token[0]),
        per_output_token=working * float(energy.joules_per_answer_token[0]),
        idle_w=idle_w,
        server_w=shares.server * board_w,
    )


@frozen
class Choice:
    """One configuration with its figures; those without a price or a source of power are None.

    options: words of `simulate`.  devices, replicas: spare ones included.  rate: of one replica without them [1/s].
    ttft_s, tpot_s, e2e_s: the limited statistics [s].  probability: that all limits hold, by the calibration's errors;
    None for ideal times.  capacity: highest rate of the replicas within the limits in the steady state [1/s].
    searched_rate: that of one simulated server, found by simulations as `simulate --find-rate` does [1/s]; None where
    it was not searched, or the requests are too few to overload a server.  prompt_share: of the time of the devices.
    simulated: False for points in the steady state alone.  spare: replicas beyond those needed.  parts: pools with
    their replicas, for the capacity under other loads.  ratios: metric -> bounds over value by level, from the
    calibration; empty for ideal times and the steady state.  turns: mean of a session, 0 of
    requests that are none; pauses_s: in which its user thinks [s].  users: of one replica in a closed loop, else 0;
    most_users: those that it holds within the limits, searched as the rate is, which is then that of these users.
    predicted_devices: fewest that were tried and hold by the prediction alone, spare ones left out; 0: not simulated.
    """

    model: str
    hardware: str
    devices: int
    replicas: int
    options: Mapping[str, Any]
    rate: float
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float | None
    tokens_per_s: float
    capacity: float
    prompt_share: float
    spare: int
    output_len: float
    input_len: float
    searched_rate: float | None = None
    probability: float | None = None
    predicted_devices: int = 0
    usd_per_hour: float | None = None
    price: Mapping[str, Any] | None = None
    watts: float | None = None
    joules_per_output_token: float | None = None
    grams_co2_per_token: float | None = None
    simulated: bool = True
    mean_tpot_s: float | None = None
    mean_e2e_s: float | None = None
    parts: tuple[Part, ...] = ()
    ratios: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    turns: float = 0.0
    pauses_s: float = 0.0
    users: int = 0
    most_users: int | None = None

    @property
    def sessions_held(self) -> float | None:
        """Sessions in progress at the highest rate within the limits, those whose users pause included (Little's law);
        None where requests are no turns, and in a closed loop, which holds those of its users."""
        if self.users or not self.turns or self.mean_e2e_s is None:
            return None
        return self.highest_rate / self.turns * (self.turns * self.mean_e2e_s + self.pauses_s)

    @property
    def tokens_per_s_per_device(self) -> float:
        """Output tokens per second and device, spare ones included."""
        return self.tokens_per_s / self.devices

    @property
    def devices_needed(self) -> int:
        """Devices without those of spare replicas."""
        return self.devices - sum(self.spare * part.screened.devices for part, _ in self.parts)

    @property
    def servers(self) -> int:
        """Replicas that share the load; 1 for two pools."""
        return self.replicas - self.spare if len(self.parts) == 1 else 1

    @property
    def in_a_server(self) -> int:
        """Replicas that one simulation of this configuration has: all of them for a trace, else one."""
        return int(self.options.get("replicas", 1))

    @property
    def highest_rate(self) -> float:
        """The highest rate of all replicas within the limits [1/s]: searched, else that of the steady state."""
        if self.searched_rate is None:
            return self.capacity
        return self.searched_rate * self.servers / self.in_a_server

    @property
    def has_few_bits(self) -> bool:
        """Whether its weights have about four bits or less; the quality of its answers is not judged."""
        return has_few_bits(str(self.options.get("quantization", "none")))

    @property
    def usd_per_token(self) -> float | None:
        """Dollars per output token at the asked rate, input included."""
        return None if self.usd_per_hour is None else self.usd_per_hour / 3600.0 / self.tokens_per_s

    @property
    def usd_per_token_full(self) -> float | None:
        """Dollars per output token at the highest rate within the limits."""
        if self.usd_per_hour is None or not self.highest_rate:
            return None
        return self.usd_per_hour / 3600.0 / (self.highest_rate * self.output_len)

    @property
    def head_room(self) -> float | None:
        """The highest rate or number of users within the limits over the asked one, less 1; None if not searched."""
        if self.users:
            return None if self.most_users is None else self.most_users / self.users - 1.0
        asked = self.tokens_per_s / self.output_len
        return None if self.searched_rate is None else self.highest_rate / asked - 1.0

    def to_dict(self) -> dict[str, Any]:
        """The CONFIGURATION object of the JSON schema."""
        usd = self.usd_per_token
        return {
            "model": self.model,
            "hardware": self.hardware,
            "engine": str(self.options.get("engine", ENGINE)),
            "devices": self.devices,
            "replicas": self.replicas,
            "options": dict(self.options),
            "request_rate_per_replica": self.rate,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": self.e2e_s,
            "intervals": self.intervals(),
            "probability": self.probability,
            "output_tokens_per_s_per_device": self.tokens_per_s_per_device,
            "output_tokens_per_s_per_user": 1.0 / self.mean_tpot_s if self.mean_tpot_s else None,
            "usd_per_hour": self.usd_per_hour,
            "usd_per_million_output_tokens": None if usd is None else 1e6 * usd,
            "usd_per_million_tokens": self.split_cost(),
            "watts": self.watts,
            "joules_per_output_token": self.joules_per_output_token,
            **self._carbon(),
            **self._sessions(),
            **(
                {"concurrency_per_replica": self.users, "max_concurrency_per_server": self.most_users}
                if self.users
                else {}
            ),
            "price": None if self.price is None else dict(self.price),
            "max_request_rate_per_server": self.searched_rate,
            "head_room": self.head_room,
            "simulated": self.simulated,
            "quality_not_judged": self.has_few_bits,
        }

    def intervals(self) -> dict[str, dict[str, list[float]]]:
        """Bounds of each latency by level, from the errors of the calibration [s]; empty where they are not known."""
        values = {name: getattr(self, name) for name in ("ttft_s", "tpot_s", "e2e_s")}
        return {
            name: {level: [values[name] * bound for bound in bounds] for level, bounds in levels.items()}
            for name, levels in self.ratios.items()
            if values.get(name) is not None
        }

    def _carbon(self) -> dict[str, float]:
        """Grams of carbon dioxide per million output tokens, where the user gives g/kWh and power is known."""
        if self.grams_co2_per_token is None:
            return {}
        return {"grams_co2_per_million_output_tokens": 1e6 * self.grams_co2_per_token}

    def _sessions(self) -> dict[str, float | None]:
        """Sessions in progress, and those for a dollar an hour, where requests are turns."""
        if (held := self.sessions_held) is None:
            return {}
        return {"sessions_held": held, "sessions_per_usd_hour": held / self.usd_per_hour if self.usd_per_hour else None}

    def split_cost(self) -> dict[str, float] | None:
        """Dollars per million tokens of prompts and of answers, divided by the time that each takes."""
        if self.usd_per_hour is None:
            return None
        per_request = self.usd_per_hour / 3600.0 / (self.tokens_per_s / self.output_len)
        return {
            "input": 1e6 * per_request * self.prompt_share / self.input_len,
            "output": 1e6 * per_request * (1.0 - self.prompt_share) / self.output_len,
        }

    def order(self, objective: str) -> Order:
        """The figures that an objective compares, less is better; a configuration without a price comes last."""
        measure = {
            "usd": self.usd_per_hour,
            "gpus": float(self.devices),
            "usd-per-token": self.usd_per_token_full,
            "watts": self.watts,
            "latency": self.mean_e2e_s,
        }[objective]
        known = float("inf") if measure is None else measure
        usd = float("inf") if self.usd_per_hour is None else self.usd_per_hour
        doubt = 1.0 - round(self.probability or 0.0, 1)
        return (
            known,
            float(self.devices),
            usd,
            doubt + 1e-3 * len(self.options),
            self.mean_e2e_s or 0.0,
            str(self.options),
        )


def order_of(objective: str) -> Callable[[Choice], Order]:
    """The key by which an objective sorts configurations."""
    return lambda one: one.order(objective)


def choice_of(asked: Question, one: Candidate | Pair, answer: Answer) -> Choice:
    """The configuration of a simulated answer."""
    workload, spare, sessions = asked.workload, int(asked.words["spare"]), asked.traffic.sessions
    parts = _parts(one, answer)
    devices = sum((count + spare) * part.screened.devices for part, count in parts)
    usd = sum(part.screened.usd_per_hour(count + spare) for part, count in parts)
    rate = rate_of(asked, answer)
    watts, wall_watts = watts_of(asked, parts, answer) or (None, None)
    carbon = asked.costs.carbon_g_per_kwh
    found: dict[str, Any] = {name: answer.limited(asked.workload, name) for name in ("ttft_s", "tpot_s", "e2e_s")}
    return Choice(
        model=asked.model_name,
        hardware=answer.hardware,
        devices=devices,
        replicas=answer.replicas + (spare if len(parts) == 1 else 0),
        options=answer.words,
        rate=answer.rate,
        users=answer.users,
        tokens_per_s=rate * workload.output_len,
        capacity=max(capacity_of(parts, workload), rate),
        prompt_share=_prompt_share(parts),
        spare=spare,
        output_len=workload.output_len,
        input_len=workload.input_len,
        probability=chance_of(workload.limits, answer.latencies, answer.ratios),
        predicted_devices=answer.predicted_devices,
        usd_per_hour=usd if usd < float("inf") else None,
        price=_price(asked, parts),
        watts=watts,
        joules_per_output_token=None if watts is None else watts / (rate * workload.output_len),
        grams_co2_per_token=None
        if carbon is None or wall_watts is None
        else float(carbon_g(wall_watts / (rate * workload.output_len), carbon, asked.costs.pue)),
        mean_tpot_s=answer.latencies["tpot_s"]["mean"],
        mean_e2e_s=answer.latencies["e2e_s"]["mean"],
        parts=parts,
        ratios=answer.ratios,
        turns=sessions.mean_turns if sessions else 0.0,
        pauses_s=sessions.pauses_s if sessions else 0.0,
        **found,
    )


def _parts(one: Candidate | Pair, answer: Answer) -> tuple[Part, ...]:
    pools = one.parts if isinstance(one, Pair) else (one,)
    return tuple(zip(pools, answer.counts, strict=True))


def capacity_of(parts: tuple[Part, ...], workload: Workload) -> float:
    """The highest rate of these pools within the limits in the steady state [1/s]: that of the slower pool."""
    works = (workload,) if len(parts) == 1 else (of_prompts(workload), of_answers(workload))
    return min(capacity(part.screened, work) * count for (part, count), work in zip(parts, works, strict=True))


def _prompt_share(parts: tuple[Part, ...]) -> float:
    """Share of the cost that prompts cause: of the time of one pool, or the pool for prompts of two."""
    if len(parts) == 1:
        return parts[0][0].prompt_share
    usd = [part.screened.devices * count * (part.screened.usd or 1.0) for part, count in parts]
    return usd[0] / sum(usd)


def _price(asked: Question, parts: tuple[Part, ...]) -> dict[str, Any] | None:
    """The price of a device with date and source; of two chips, both."""
    chips = list(dict.fromkeys(chip for part, _ in parts for chip in part.screened.chip.split("+")))
    known = list(dict.fromkeys(price for price in map(asked.prices.of, chips) if price is not None))
    if len(known) < len(chips):
        return None
    if len(known) == 1:
        return known[0].to_dict()
    return {
        "usd_per_hour": None,
        "kind": known[0].kind,
        "term": "; ".join(dict.fromkeys(one.term for one in known)),
        "date": min(one.date or "" for one in known) or None,
        "source": "; ".join(one.source for one in known),
    }

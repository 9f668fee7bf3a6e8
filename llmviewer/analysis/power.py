"""Energy of requests at full load: joules per token, and watts of a configuration.

Idle power x time, and a share of the board power for each resource while it works; docs/energy.md has the formula.  A
resource at its data-sheet peak draws its share: pJ per FLOP is share x TDP / dense peak of the number format, and pJ
per byte share x TDP / bandwidth, so that the shares of a generation hold for chips of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.evaluation import Evaluation
from llmviewer.core import data
from llmviewer.core.counts import Array, Count, total
from llmviewer.hardware.chip import Chip
from llmviewer.serving.schedule import Schedule

JOULES_PER_KWH = 3.6e6
#: Resource of the roofline -> share that it draws.
SHARE_OF = {"compute": "compute", "vector": "compute", "memory": "memory", "link": "link"}
#: File of the fitted constants in calibrate/.
FILE = "power.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerShares:
    """Shares of a chip's board power: drawn always, and added by each resource at its data-sheet peak.

    server: fans, CPUs and power supplies, per chip.  basis: fitted, or borrowed from the generation named.
    """

    idle: float
    compute: float
    memory: float
    link: float
    server: float
    basis: str

    def work_s(self, evaluation: Evaluation) -> Count:
        """Dynamic energy of each forward pass on one device over the board power [s]."""
        return evaluation.sum(
            lambda row: total(
                seconds * float(getattr(self, SHARE_OF[name]))
                for name, seconds in row.ideal.resources
                if name in SHARE_OF
            )
        )

    def joules(self, chip: Chip, time_s: Count, work_s: Count) -> Count:
        """Energy of a device that is busy for `time_s` [J]: idle + work, at most the board's power x time."""
        tdp, most = board_watts(chip)
        return np.minimum(tdp * (self.idle * time_s + work_s), most * time_s)


def shares_of(chip: Chip) -> PowerShares | None:
    """Power shares of a chip's generation, else of the one that lends; None if the board power is unknown."""
    if chip.tdp_w is None:
        return None
    constants = _constants()
    lender = str(constants["lender"])
    own = constants["generations"].get(chip.generation)
    figures = own or constants["generations"][lender]
    basis = "fitted" if own else f"borrowed from {lender}"
    names = ("idle", "compute", "memory", "link")
    return PowerShares(
        **{name: float(figures[name]) for name in names}, server=float(constants["server"]["share"]), basis=basis
    )


def all_in_w(chip: str) -> float | None:
    """Power that a data centre provides per chip, by its stem [W]; None if it is not published."""
    found = _all_in().get(chip)
    return None if found is None else found * 1e3


def board_watts(chip: Chip) -> tuple[Count, Count]:
    """Board power of a chip, and the limit set on it [W]."""
    assert chip.tdp_w is not None and chip.power_w is not None  # checked by shares_of
    return chip.tdp_w, chip.power_w


@cache
def _constants() -> Mapping[str, Any]:
    """Constants that calibrate/fit_power.py fitted."""
    return data.read_yaml(data.folder("calibrate") / FILE)


@cache
def _all_in() -> Mapping[str, float]:
    """Power provided per chip [kW]."""
    return dict(data.read_yaml(data.folder("hardware_specs/power") / "all-in.yaml")["all_in_kw_per_gpu"])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Energy:
    """Energy of a configuration at full load; arrays have one entry per point.

    watts: mean power of all devices; wall_watts: with servers, without the cooling that PUE counts.  Joules are those
    of devices; time in which devices wait for each other counts with the output.  basis: of the constants.
    """

    joules_per_prompt_token: Array
    joules_per_answer_token: Array
    watts: Array
    wall_watts: Array
    basis: str


@dataclass(frozen=True, slots=True, eq=False)
class _Use:
    """Use of devices by one request in one stage: device-seconds, and dynamic energy over the board power [s]."""

    busy_s: Array
    work_s: Array

    def within(self, slot_s: Array) -> tuple[Array, Array]:
        """Time that it takes of a slot [s], and the share of the stage in it; steps may share passes with prompts."""
        taken = np.minimum(self.busy_s, slot_s)
        return taken, np.divide(taken, self.busy_s, out=np.zeros_like(taken), where=self.busy_s > 0.0)


def energy_of(analysis: Analysis, shares: PowerShares | None) -> Energy | None:
    """Energy of an analysis with these power shares; None without them.

    Prompts and then answers take their device-seconds of the slot of a request (devices / requests per second); what
    is left of it is idle.  Of a pass with prompts and decode steps, each takes the share of its tokens.
    """
    if shares is None:
        return None
    chip, request, devices = analysis.system.chip, analysis.request, float(analysis.system.parallelism.devices)
    tokens_per_s = request.batch_size * request.output_len / analysis.e2e_s
    per_second = np.asarray(tokens_per_s / request.output_len)
    prompt, answer = _uses(analysis, shares)
    slot_s = np.maximum(devices / per_second - prompt.busy_s, 0.0)
    taken, answer_share = answer.within(slot_s)
    prompt_j = shares.joules(chip, prompt.busy_s, prompt.work_s)
    answer_j = shares.joules(chip, answer.busy_s, answer.work_s) * answer_share
    answer_j = answer_j + shares.joules(chip, slot_s - taken, 0.0) + prompt_j * _riding(analysis.schedule)
    prompt_j = prompt_j * (1.0 - _riding(analysis.schedule))
    tdp, most = board_watts(chip)
    watts = np.minimum((prompt_j + answer_j) * per_second, devices * most)
    return Energy(
        joules_per_prompt_token=prompt_j / request.input_len,
        joules_per_answer_token=answer_j / request.output_len,
        watts=watts,
        wall_watts=watts + devices * shares.server * tdp,
        basis=shares.basis,
    )


def prompt_share(analysis: Analysis) -> Array:
    """Share of the prompt in the device-seconds of a request."""
    prompt, answer = _uses(analysis, None)
    return prompt.busy_s / (prompt.busy_s + answer.busy_s)


def carbon_g(joules: Count, g_per_kwh: float, pue: float = 1.0) -> Count:
    """Carbon dioxide of an energy [g], with the carbon intensity of the power and the data centre's PUE."""
    return joules / JOULES_PER_KWH * pue * g_per_kwh


def _uses(analysis: Analysis, shares: PowerShares | None) -> tuple[_Use, _Use]:
    """Use of devices by the prompt and by the answer of one request."""
    ones = (analysis, *(own for _, own in analysis.drafts))
    passes = {id(one): _per_pass(one, shares) for one in ones}
    caching = (analysis, *(own for draft, own in analysis.drafts if draft.caches))
    prompt = np.sum([_per_prompt(one, *passes[id(one)]) for one in caching], axis=0)
    answer = analysis.per_round(lambda one: _per_answer(one, *passes[id(one)]))
    return _Use(*prompt), _Use(*answer)


def _riding(plan: Schedule) -> Array:
    """Share of the tokens of prefill passes that belong to sequences which decode in them."""
    prompts, *decoding = (plan.prefill(group.batch_size * group.new_tokens) for group in plan.step.groups)
    riding = total(decoding)
    return np.asarray(riding / (prompts + riding))


def _per_pass(analysis: Analysis, shares: PowerShares | None) -> tuple[Count, Count, float]:
    """Time and work of a pass on the mean device [s], without shares no work, and the devices that run it."""
    parallelism, passes = analysis.system.parallelism, analysis.passes
    stages = passes.evaluation.stages or (passes.evaluation,)
    work = 0.0 if shares is None else total(shares.work_s(stage) for stage in stages) / len(stages)
    devices = float(parallelism.devices // (parallelism.data * parallelism.instances))
    return passes.time_s / len(stages), work, devices


def _per_prompt(analysis: Analysis, time_s: Count, work: Count, devices: float) -> Array:
    """Device-seconds and work of the prefill of one prompt, as rows of an array [s]."""
    plan, length = analysis.schedule, analysis.request.input_len
    batch, new = plan.step.groups[0].batch_size, plan.step.groups[0].new_tokens
    own = length - analysis.system.kv_cache.prefix_hit(length)
    prompts = plan.prefill(batch) if analysis.model.encoder is not None else plan.prefill(batch * new) / own
    return np.stack((plan.prefill(time_s), plan.prefill(work))) * devices / prompts


def _per_answer(analysis: Analysis, time_s: Count, work: Count, devices: float) -> Array:
    """Device-seconds and work of all decode steps of one sequence, as rows of an array [s]."""
    plan = analysis.schedule
    whole = analysis.passes.is_whole
    pair = [plan.decode_sum(each) if whole else plan.decode(each) * plan.tokens for each in (time_s, work)]
    return np.stack(pair) * devices / plan.decode(plan.step.groups[0].batch_size)

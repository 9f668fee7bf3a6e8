"""Energy of requests at full load: joules per token, and watts of a configuration.

Idle power x time, and a share of the board power for each resource while it works; formula: docs/reference/energy.md.
"""

from __future__ import annotations

import numpy as np

from llmviewer.analysis.analysis import Analysis
from llmviewer.analysis.power_shares import PowerShares, board_watts
from llmviewer.core.counts import Array, Count, total
from llmviewer.core.frozen import frozen
from llmviewer.serving.schedule import Schedule

JOULES_PER_KWH = 3.6e6


@frozen(eq=False)
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


@frozen(kw_only=False, eq=False)
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
    images = [_per_prompt(one, *_per_pass(one, shares)) * seen.images.count for seen, one in analysis.towers]
    prompt = np.sum([*(_per_prompt(one, *passes[id(one)]) for one in analysis.caching), *images], axis=0)
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
    work = 0.0 if shares is None else passes.work_s(shares)
    devices = float(parallelism.devices // (parallelism.data * parallelism.instances))
    return passes.time_s / len(passes.evaluation.each_stage), work, devices


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
    return (
        np.stack([plan.decode_sum(each) for each in (time_s, work)])
        * devices
        / plan.decode(plan.step.groups[0].batch_size)
    )

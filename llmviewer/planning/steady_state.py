"""Steady state of a server with random arrivals or a closed loop, in closed form: arrays of loads -> latencies.

A replica runs n sequences; a decode step takes d(n), and prompts of one request take p.  Little's law gives
n = rate x steps x TPOT with TPOT = d(n) / (1 - rate x p), since prompts interrupt decode steps.  Prompts wait for each
other as in an M/D/1 queue.  Percentiles are those of Poisson numbers of sequences and interruptions, and of an
exponential tail of waiting times.  In a closed loop n is known and the rate follows.  `size` orders configurations by
these and simulates the best.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.core.counts import Array
from llmviewer.core.frozen import frozen
from llmviewer.planning.workload import Workload

#: Share of prompts in the time of a replica beyond which no load is called steady.
MOST_PROMPTS = 0.98
#: Rounds in which the number of prompts in a pass and its duration agree.
ROUNDS = 4
#: A time that is none, by which one can divide [s].
INSTANT_S = 1e-12


@frozen(eq=False)
class Curves:
    """Times of one rank at a representative step [s].

    sequences, step_s: numbers of sequences, ascending, and the time per token of each.  alone_s: passes of one prompt.
    together_s: each further prompt of a pass.  packed: most prompts of a pass.  passes: passes of a prompt.  slots:
    sequences whose KV cache fits.  request_s: of the host, before the first token.  Figures of prompts and slots have
    one value per token budget, in a column.
    """

    sequences: Array
    step_s: Array
    alone_s: Array
    together_s: Array
    packed: Array
    passes: Array
    slots: Array
    request_s: float

    @property
    def of_prompts(self) -> Curves:
        """The times of a pool that computes prompts and first tokens alone."""
        return replace(self, step_s=np.full(len(self.step_s), INSTANT_S))

    @property
    def of_answers(self) -> Curves:
        """The times of a pool that generates all tokens after the first."""
        none = np.zeros_like(self.alone_s)
        return replace(self, alone_s=none, together_s=none, passes=none)

    @property
    def of_first_budget(self) -> Curves:
        """The times with the first token budget alone."""
        columns = ("alone_s", "together_s", "packed", "passes", "slots")
        return replace(self, **{name: getattr(self, name)[:1] for name in columns})

    def step(self, sequences: Array) -> Array:
        """Time per token with so many running sequences [s]."""
        return np.interp(sequences, self.sequences, self.step_s)

    def running(self, tokens_per_s: Array) -> Array:
        """Sequences that generate so many tokens per second; infinite beyond what the largest batch generates."""
        rates = np.maximum.accumulate(self.sequences / self.step_s)
        found = np.interp(tokens_per_s, np.r_[0.0, rates], np.r_[0.0, self.sequences])
        return np.where(tokens_per_s > rates[-1], np.inf, found)


@frozen(eq=False)
class Steady:
    """Latencies at a load, broadcast over budgets, limits of sequences and rates; infinite where it is not sustained.

    mean_tpot_s, mean_ttft_s: means.  ttft_s, tpot_s, e2e_s: at the statistics of the limits [s].  running: sequences.
    prompt_share: of the time that a request takes of its rank.
    """

    running: Array
    mean_ttft_s: Array
    mean_tpot_s: Array
    ttft_s: Array
    tpot_s: Array
    e2e_s: Array
    prompt_share: Array

    def excess(self, workload: Workload) -> Array:
        """The largest ratio of a latency to its limit; at most 1 where all limits hold."""
        sustained = np.isfinite(self.mean_tpot_s)
        ratios = [np.where(sustained, 0.0, np.inf)]
        ratios += [getattr(self, one.metric) / one.seconds for one in workload.limits]
        return np.asarray(np.max(ratios, axis=0))


def steady(curves: Curves, workload: Workload, rate: Array, most: Array) -> Steady:
    """The steady state of one rank.  rate: requests per second; most: sequences that may run."""
    with np.errstate(all="ignore"):  # overload divides by zero, and its times are infinite
        return _steady(curves, workload, rate, np.minimum(most, curves.slots))


def _steady(curves: Curves, workload: Workload, rate: Array, most: Array) -> Steady:
    prompt_s, busy = _prompts(curves, rate)
    running = curves.running(rate * workload.steps / (1.0 - busy))
    step_s = curves.step(np.maximum(running, 1.0))
    tpot_s = np.where(workload.steps > 0, step_s / (1.0 - busy), 0.0)
    wait_s, tail_s = _waiting(curves, rate, prompt_s, step_s, workload.exceeding("ttft_s"))
    first_s = curves.request_s + prompt_s + curves.passes * step_s
    spread = workload.deviations("tpot_s")
    deviation = np.sqrt(running / _restoring(curves, running))
    peak = running + spread * deviation
    over = np.maximum(running + workload.deviations("ttft_s") * deviation - most, 0.0)
    slot_s = over * (workload.steps * tpot_s + first_s) / np.maximum(most, 1.0)
    bursts = spread * np.sqrt(rate * tpot_s / np.maximum(workload.steps, 1.0)) * prompt_s
    slow_s = curves.step(np.clip(peak, 1.0, np.maximum(most, 1.0))) / (1.0 - busy) + bursts
    sustained = (busy < MOST_PROMPTS) & (running <= most) & (most >= 1.0)

    def known(seconds: Array) -> Array:
        return np.where(sustained, seconds, np.inf)

    mean_ttft_s, slow_tpot_s = first_s + wait_s, np.where(workload.steps > 0, slow_s, 0.0)
    ttft_s = first_s + (wait_s if workload.statistic("ttft_s") == "mean" else tail_s) + slot_s
    slow = workload.statistic("e2e_s") != "mean"
    e2e_s = (ttft_s + workload.steps * slow_tpot_s) if slow else mean_ttft_s + workload.steps * tpot_s
    latencies = map(known, (mean_ttft_s, tpot_s, ttft_s, slow_tpot_s, e2e_s))
    names = ("mean_ttft_s", "mean_tpot_s", "ttft_s", "tpot_s", "e2e_s")
    answer_s = workload.steps * step_s / np.maximum(running, 1.0)
    share = prompt_s / (prompt_s + answer_s)
    return Steady(running=known(running), prompt_share=known(share), **dict(zip(names, latencies, strict=True)))


def closed(curves: Curves, workload: Workload, users: Array, most: Array) -> Steady:
    """The steady state of one rank with users in a closed loop, all statistics in the mean: a server at its best.

    users: of the rank; most: sequences that may run.  Where n of them run, the server takes n prompts and the steps of
    n answers for n requests, so each is answered in that time; the others wait for a slot, or their users pause.
    """
    most = np.minimum(most, curves.slots)
    sent = np.maximum(np.asarray(users, dtype=float), 1.0)
    shape = np.broadcast_shapes(np.shape(sent), np.shape(most))
    present, steps = np.broadcast_to(sent, shape), workload.steps
    with np.errstate(all="ignore"):  # no slots divide by zero, and their times are infinite
        for _ in range(ROUNDS if workload.think_s else 1):
            running = np.maximum(np.minimum(present, most), 1.0)
            step_s = curves.step(running)
            served_s = curves.alone_s * running + steps * step_s
            first_s = curves.request_s + curves.alone_s + curves.passes * step_s
            ttft_s = first_s + (present / running - 1.0) * served_s
            tpot_s = (served_s - curves.alone_s) / steps if steps else np.zeros(np.shape(served_s))
            e2e_s = ttft_s + steps * tpot_s
            present = sent * e2e_s / (e2e_s + workload.think_s)
        share = curves.alone_s / (curves.alone_s + steps * step_s / running)
    times = (ttft_s, tpot_s, ttft_s, tpot_s, e2e_s, running, share)
    names = ("mean_ttft_s", "mean_tpot_s", "ttft_s", "tpot_s", "e2e_s", "running", "prompt_share")
    found = (np.where(np.broadcast_to(most, np.shape(one)) >= 1.0, one, np.inf) for one in times)
    return Steady(**dict(zip(names, found, strict=True)))


def _restoring(curves: Curves, running: Array) -> Array:
    """Elasticity of the rate at which n sequences generate tokens: 1 where steps take as long with more sequences.

    The number of sequences varies by n / elasticity, as in a birth-death process around its mean.
    """
    least = np.maximum(np.where(np.isfinite(running), running, 1.0), 1.0)
    slope = np.log(curves.step(1.1 * least) / curves.step(least)) / np.log(1.1)
    return np.asarray(np.clip(1.0 - slope, 0.05, 1.0))


def _prompts(curves: Curves, rate: Array) -> tuple[Array, Array]:
    """Time of the prompts of one request [s], and their share in the time of a rank: more share a pass under load."""
    prompts = np.ones(np.broadcast_shapes(np.shape(rate), curves.alone_s.shape))
    pass_s = curves.alone_s * prompts
    for _ in range(ROUNDS):
        prompts = np.clip(rate * (pass_s + curves.step_s[0]), 1.0, curves.packed)
        pass_s = curves.alone_s + (prompts - 1.0) * curves.together_s
    return pass_s / prompts, np.minimum(rate * pass_s / prompts, 0.9999)


def _waiting(curves: Curves, rate: Array, prompt_s: Array, step_s: Array, exceeding: float) -> tuple[Array, Array]:
    """Mean wait of a prompt for the step that runs and for other prompts, and the wait that few exceed [s]."""
    service_s = prompt_s + step_s * np.maximum(curves.passes - 1.0, 0.0) + step_s / curves.packed
    load = np.minimum(rate * service_s, 0.9999)
    queue_s = load * service_s / (2.0 * (1.0 - load))
    tail_s = service_s / (2.0 * (1.0 - load)) * np.log(np.maximum(load / max(exceeding, 1e-9), 1.0))
    return 0.5 * step_s + queue_s, step_s + tail_s

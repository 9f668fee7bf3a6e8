"""Early exit in pipelines: the next token starts when this one is known, while later stages fill its caches."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.analysis.pipeline_exits import StageTimes, time_to_next_pass
from llmviewer.core.ir import Block, Graph

from .answers import analyze as analyze_ideal

analyze = functools.partial(analyze_ideal, "llama-2-7b", "a100-80gb-sxm", input_len=512, output_len=4)
HEAD_7B = 32000 * 4096 + 4096  # lm_head and final norm


def tpot(**options: Any) -> float:
    return float(analyze(**options).analysis.tpot_s[0])


def in_four(text: str, **options: Any) -> float:
    return tpot(pipeline_parallel_size=4, early_exit=text, **options)


def stages(layer_s: float, sizes: tuple[int, ...]) -> list[StageTimes]:
    """Stages of layers without anything else."""
    found, first = [], 0
    for size in sizes:
        block = Block(name="layer", operators=(), repeats=size, numbers=tuple(range(first, first + size)))
        found.append(StageTimes(Graph(blocks=(block,)), {"layer": layer_s}, layer_s * size))
        first += size
    return found


def simulated(sizes: tuple[int, ...], depths: list[int]) -> float:
    """Mean time per token of the events themselves, one unit per layer.

    A stage takes a token when the stage before is done with it and it is done with the token before; the first stage
    takes it when the token before is known: after as many layers as that one runs.
    """
    free, known = [0.0] * len(sizes), 0.0
    for depth in depths:
        at, done, exited = known, 0, 0.0
        for stage, size in enumerate(sizes):
            start = max(at, free[stage])
            if done < depth <= done + size:
                exited = start + depth - done
            at = free[stage] = start + size
            done += size
        known = exited
    return known / len(depths)


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (9, 9, 7, 7), (7, 9, 9, 7)])
def test_the_time_per_token_is_that_of_the_events(sizes: tuple[int, ...]) -> None:
    """Exits after 4 (0.3), 8 (0.3) and 16 (0.2) of 32 layers: exact for equal stages, else a bound that is near."""
    chances = {4: 0.3, 8: 0.3, 16: 0.2, 32: 0.2}
    depths = np.random.default_rng(5).choice(list(chances), size=20_000, p=list(chances.values())).tolist()
    reach = [sum(p for depth, p in chances.items() if depth > layer) for layer in range(32)]
    ours, events = float(time_to_next_pass(stages(1.0, sizes), reach)), simulated(sizes, depths)
    slowest = max(sizes)
    assert ours == pytest.approx(sum(p * max(depth, slowest) for depth, p in chances.items()))
    assert events == pytest.approx(ours, rel=0.02 if len(set(sizes)) == 1 else 0.06)
    assert events <= ours * 1.02


def test_two_exits_of_four_stages_by_hand() -> None:
    """Exits after layers 8 and 16, the ends of stages 1 and 2 (EE-LLM's 7B: `--exit-layer-nums 9 17 --pre-exit`).

    t: time of a stage of eight layers.  40 % take max(t, t), 30 % 2 t, 30 % 4 t: 2.2 t, beside 4 t without exits.
    The rest (head, checks, sends) is below 8 % of a token's time on this chip.
    """
    ratio = in_four("exits=8:0.4/16:0.3,kv=pipeline") / tpot(pipeline_parallel_size=4)
    assert ratio == pytest.approx(2.2 / 4.0, rel=0.08)
    assert in_four("exits=8:1,kv=pipeline") / tpot(pipeline_parallel_size=4) == pytest.approx(1 / 4, rel=0.2)


def test_exits_within_the_first_stage_save_nothing_more() -> None:
    """Every stage runs its layers for every token, so that one token per stage time is the limit."""
    last = in_four("exits=8:1,confidence=position,kv=pipeline")
    assert in_four("exits=2:1,confidence=position,kv=pipeline") == pytest.approx(last, rel=0.02)
    assert in_four("exits=2:1,confidence=position,kv=none") < 0.4 * last


def test_the_parallel_stream_beats_propagation_and_never_exits_without_exits() -> None:
    """With kv=pipeline the keys and values of skipped layers cost no time of the token that skips them."""
    for exits in ("exits=8:0.5/16:0.2", "mean=0.5"):
        times = [in_four(f"{exits},kv={kv}") for kv in ("pipeline", "propagate")]
        assert times[0] < times[1] < tpot(pipeline_parallel_size=4)
    assert in_four("exits=8:0,kv=pipeline") == tpot(pipeline_parallel_size=4)


@pytest.mark.parametrize("kv", ["none", "propagate", "recompute"])
def test_without_the_parallel_stream_a_token_takes_as_long_as_on_one_device(kv: str) -> None:
    """The stages run one after another, each its own layers; only the sends are added."""
    for exits in ("exits=8:0.4/16:0.3", "mean=0.6"):
        one, four = tpot(early_exit=f"{exits},kv={kv}"), in_four(f"{exits},kv={kv}")
        assert one <= four * (1 + 1e-9) and four == pytest.approx(one, rel=0.02)


def test_prefill_and_its_stages_are_those_without_exits() -> None:
    plain, early = (analyze(pipeline_parallel_size=4, early_exit=text) for text in ("none", "mean=0.5,kv=pipeline"))
    assert early.analysis.ttft_s == pytest.approx(plain.analysis.ttft_s, rel=1e-3)


def test_a_batch_leaves_with_its_deepest_sequence() -> None:
    """0.7 of the sequences exit after 8 layers: of 2 sequences, both with 0.49: 0.49 t + 0.51 x 4 t = 2.53 t."""
    ratio = in_four("exits=8:0.7,kv=pipeline", batch_size=2) / tpot(pipeline_parallel_size=4, batch_size=2)
    assert ratio == pytest.approx(2.53 / 4.0, rel=0.08)


def test_enough_micro_batches_keep_all_stages_busy_and_exits_save_nothing() -> None:
    """Four micro-batches in four stages: each stage works all the time, on all layers of all tokens.

    Only the head, 7 % of the last stage's time, is spread over the stages in which tokens exit.
    """
    many = {"pipeline_parallel_size": "4,microbatches=4", "batch_size": 4}
    plain, early = tpot(**many), tpot(early_exit="exits=8:0.7,kv=pipeline", **many)
    assert plain * 0.93 < early <= plain


def test_stages_with_exits_store_a_head_of_their_own() -> None:
    """Exits after 8 and 16 layers: stages 1 and 2 store lm_head and its norm, and a classifier of 2 x 4096 each."""
    found = analyze(pipeline_parallel_size=4, early_exit="exits=8:0.4/16:0.3,kv=pipeline")
    plain = analyze(pipeline_parallel_size=4)

    def weights(result: Any) -> list[float]:
        stored = [stage.graph.stored_weights() for stage in result.analysis.evaluation.stages]
        return [sum(tensor.elements * times for tensor, times in one) for one in stored]

    more = [own - before for own, before in zip(weights(found), weights(plain), strict=True)]
    assert more == [HEAD_7B + 2 * 4096, HEAD_7B + 2 * 4096, 0, 0]


def test_softmax_confidence_stores_the_head_of_a_stage_once() -> None:
    """Every layer is checked, by the one head of its stage; 31 of 32 layers are."""
    found = analyze(pipeline_parallel_size=4, early_exit="mean=0.6,confidence=softmax,kv=pipeline")
    stored = [
        sum(t.elements * n for t, n in stage.graph.stored_weights()) for stage in found.analysis.evaluation.stages
    ]
    assert sum(stored) == models.load("llama-2-7b").parameters + 3 * HEAD_7B


def test_recurrent_layers_run_for_every_token_in_the_parallel_stream() -> None:
    """mamba: kv=propagate would skip tokens; with kv=pipeline all stages run all of them."""
    own = functools.partial(analyze_ideal, "mamba-2.8b", "a100-80gb-sxm", input_len=64, output_len=4)
    plain, early = (own(pipeline_parallel_size=2, early_exit=text) for text in ("none", "mean=0.5,kv=pipeline"))
    assert early.analysis.tpot_s < plain.analysis.tpot_s

"""The crossover map agrees with single analyses and needs at least two configurations."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest

from llmviewer import api
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.reports import crossover_page
from llmviewer.result.crossover import CROSSOVER_METRICS, NO_WINNER, Crossover, configuration_names, crossover
from llmviewer.result.separable import in_common, overlap

from .answers import analyze

BATCHES, CONTEXTS = np.array([1.0, 16.0, 128.0]), np.array([512.0, 4096.0])
SCHEMES = ("none", "w8a8", "w4a16")


def roofline_of(schemes: Iterable[str], **options: str) -> dict[str, api.Configuration]:
    options = {"efficiency": "ideal", **options}
    return {scheme: api.configuration("llama-2-7b", "a100", quantization=scheme, **options) for scheme in schemes}


def test_the_winner_is_the_configuration_with_the_least_decode_time_among_those_that_fit() -> None:
    found = crossover(roofline_of(SCHEMES), BATCHES, CONTEXTS, "decode_time_s")
    for i, context in enumerate(CONTEXTS):
        for j, batch in enumerate(BATCHES):
            answers = [
                analyze("llama-2-7b", "a100", batch_size=int(batch), input_len=int(context), quantization=scheme)
                for scheme in SCHEMES
            ]
            times = [answer.stage("decode")["time_s"] for answer in answers]
            finite = found.values[:, i, j][np.isfinite(found.values[:, i, j])]
            assert list(finite) == [t for t, v in zip(times, found.values[:, i, j], strict=True) if np.isfinite(v)]
            winner = int(found.winner[i, j])
            assert winner == NO_WINNER if not len(finite) else found.values[winner, i, j] == finite.min()


def test_four_bit_weights_win_at_batch_1_and_all_int8_wins_once_compute_bounds_the_layers() -> None:
    """A100: at batch 1 traffic decides and w4a16 has the least; at batch 512 and short context int8 units decide."""
    found = crossover(roofline_of(SCHEMES), np.array([1.0, 512.0]), np.array([32.0]), "decode_time_s")
    assert [found.names[int(w)] for w in found.winner[0]] == ["w4a16", "w8a8"]


def test_one_configuration_is_rejected() -> None:
    with pytest.raises(UserError, match="two configurations or more"):
        crossover({"alone": api.configuration("llama-2-7b", "a100")}, BATCHES, CONTEXTS, "decode_time_s")


def test_the_command_writes_axes_winners_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = "crossover llama-2-7b --hardware a100 --quantization none,w4a16 --batch-size 1,8 --context 512,1024,2048"
    assert main([*words.split(), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["configurations"] == ["none", "w4a16"]
    assert (len(answer["winner"]), len(answer["winner"][0])) == (3, 2)
    assert np.shape(answer["values"]) == (2, 3, 2)


def test_configurations_are_named_by_their_differing_options() -> None:
    plain = {"model": "llama-2-7b", "quantization": "none", "speculative": "none", "hardware": "a100"}
    assert configuration_names([plain, {**plain, "quantization": "w4a16"}]) == ["none", "w4a16"]
    drafted = {**plain, "speculative": "eagle,tokens=4", "hardware": "h100"}
    assert configuration_names([plain, drafted]) == ["a100, speculative none", "h100, eagle,tokens=4"]
    assert (
        configuration_names([{"tensor_parallel_size": "2"}, {"tensor_parallel_size": "4"}])[0]
        == "tensor parallel size 2"
    )


@pytest.mark.parametrize("metric", CROSSOVER_METRICS)
def test_the_map_names_the_metric_that_is_minimized(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = "crossover llama-2-7b --hardware a100 --quantization none,w4a16 --batch-size 1 --context 512 --metric"
    assert main([*words.split(), metric]) == 0
    shown = capsys.readouterr().out
    assert "of the points" in shown and "\nlowest " in shown and "_s" not in shown


@pytest.mark.parametrize("command", ["analyze", "sweep", "compare", "crossover"])
def test_help_paragraphs_have_no_gaps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    message, _, options = capsys.readouterr().out.partition("Arguments:")
    assert "   " not in message.replace("\n  ", "\n")
    assert "di\n" not in options, "no word is cut"


def test_speculation_wins_at_small_batches_with_many_tokens_and_loses_at_large_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Off and several numbers of draft tokens in one map; `best` is the fastest at every point."""
    drafts = [f"draft=tinyllama-1.1b,tokens={tokens},acceptance=0.7" for tokens in ("2", "8", "best")]
    words = "crossover llama-2-70b --hardware h100 -tp 8 --batch-size 1,64,512 --context 128 --format json".split()
    words += ["--efficiency", "ideal"]
    assert main([*words, "--speculative", ";".join(["none", *drafts])]) == 0
    found = json.loads(capsys.readouterr().out)
    none, two, eight, best = (plane[0] for plane in found["values"])
    assert eight[0] < two[0] < none[0] and none[2] < two[2] < eight[2]
    assert all(least <= min(others) for least, *others in zip(best, none, two, eight, strict=True))


def test_the_margin_is_the_lead_over_the_second_best() -> None:
    """A100 at batch 1: weights of 4.16 bits are read in 0.27 of the time of 16 bits, 8-bit ones in half."""
    found = crossover(roofline_of(SCHEMES), np.array([1.0]), np.array([32.0]), "decode_time_s")
    best, second, _ = np.sort(found.values[:, 0, 0])
    assert found.margin[0, 0] == second / best - 1.0 > 0.5
    assert not found.tied.any(), "roofline times have no interval"


def test_letters_of_the_map_are_those_of_its_legend() -> None:
    """`w4a16` is the faster one at batch 1, `none` at batch 8; the legend keeps the order in which they were asked."""
    values = np.array([[[2.0, 3.0]], [[5.0, 1.0]]])
    sizes = {"batch_sizes": np.array([1.0, 8.0]), "contexts": np.array([512.0])}
    named: dict[str, str] = {"metric": "tpot_s", "efficiency": "ideal", "engine": ""}
    found = Crossover(names=("w4a16", "none"), values=values, low=values, high=values, **sizes, **named)
    legend, drawn = crossover_page.page(found)
    # each wins one of two points: 2 against 5, and 1 against 3
    assert legend.lines == (  # type: ignore[union-attr]
        ("A", "w4a16", "50.0 % of the points, by 2.50×, at most 2.50×"),
        ("B", "none", "50.0 % of the points, by 3.00×, at most 3.00×"),
    )
    assert drawn.rows[0].cells[1:] == ("A", "B")  # type: ignore[union-attr]


def test_configurations_tie_where_their_intervals_overlap() -> None:
    """A chip ties with itself; H100 and A100 separate at batch 1, where the interval of one ends before the other's."""
    chips = {chip: api.configuration("llama-2-7b", chip) for chip in ("h100", "h100-sxm", "a100")}
    twice = crossover(chips, BATCHES, CONTEXTS, "decode_time_s")
    fitting = np.isfinite(twice.values).all(axis=0)
    assert fitting.any() and (twice.margin[fitting] == 0.0).all() and twice.tied[fitting].all()
    assert (twice.low < twice.values)[:, fitting].all() and (twice.values < twice.high)[:, fitting].all()
    pair = crossover({chip: chips[chip] for chip in ("h100", "a100")}, BATCHES, CONTEXTS, "decode_time_s")
    assert (pair.tied == (pair.low[1] <= pair.high[0]))[fitting].all()
    assert not pair.tied[:, 0].any()


def test_errors_that_both_share_are_in_neither_interval() -> None:
    """50 % of error on 10 and 13: they meet.  If all of it is shared, nothing is left of it; of half, 35 % is."""
    one, other = (np.array([[0.5 * value], [value], [1.5 * value]]) for value in (10.0, 13.0))
    assert overlap(one, other).all() and not overlap(one, other, 1.0).any()
    assert overlap(one, other, 0.5).all()  # 10 x 1.354 > 13 x 0.646
    far = 3.0 * one
    assert overlap(one, far).all() and not overlap(one, far, 0.5).any()  # 13.5 < 30 x 0.646
    wide = np.array([[2.6], [13.0], [23.4]])  # 80 %: what it has beyond 50 % is sqrt(0.8^2 - 0.5^2) = 62 %
    assert overlap(one, wide, 1.0).all() and not overlap(one, 3.0 * wide, 1.0).any()  # 10 against 39 x 0.38 = 14.6


def test_a_draft_shares_the_errors_of_the_kernels() -> None:
    """The target's kernels on the same chip run with and without a draft; on another chip nothing is shared."""
    words = {"speculative": "draft=llama-3.2-1b,tokens=4,acceptance=0.7"}
    sizes = np.array([1.0, 16.0, 64.0]), np.array([1024.0])
    plain, drafted = (api.configuration("llama-3.1-8b", "h100", **options) for options in ({}, words))
    pair = crossover({"none": plain, "draft": drafted}, *sizes, "tpot_s")
    common = in_common(*pair.sources)
    assert ((common > 0.8) & (common <= 1.0 + 1e-9)).all()
    overlapping = np.maximum(pair.low[0], pair.low[1]) <= np.minimum(pair.high[0], pair.high[1])
    assert (pair.tied <= overlapping).all() and pair.tied.sum() < overlapping.sum()
    other = crossover({"h100": plain, "a100": api.configuration("llama-3.1-8b", "a100")}, *sizes, "tpot_s")
    assert in_common(*other.sources) == 0.0


def test_the_call_and_the_command_draw_the_same_map_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("crossover llama-3.1-8b --hardware h100 --quantization none,fp8 --format json".split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["contexts"][-1] == 131072 and printed["batch_sizes"][-1] == 256
    assert api.crossover("llama-3.1-8b", "h100", quantization=["none", "fp8"]).to_dict() == printed

"""The map of winners is what single analyses say, and refuses to compare one thing with itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmviewer import api
from llmviewer.cli import main
from llmviewer.crossover import NOBODY, crossover
from llmviewer.errors import UserError

from .answers import analyze

BATCHES, CONTEXTS = np.array([1.0, 16.0, 128.0]), np.array([512.0, 4096.0])
SCHEMES = ("none", "w8a8", "w4a16")


def test_the_winner_is_the_configuration_with_the_least_decode_time_among_those_that_fit() -> None:
    configurations = {scheme: api.configuration("llama-2-7b", "a100", quantization=scheme) for scheme in SCHEMES}
    found = crossover(configurations, BATCHES, CONTEXTS, "decode_time_s")
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
            assert winner == NOBODY if not len(finite) else found.values[winner, i, j] == finite.min()


def test_four_bit_weights_win_at_batch_1_and_all_int8_wins_once_compute_bounds_the_layers() -> None:
    """A100: at batch 1 bytes decide, w4a16 moves the fewest; at batch 512 and short context int8 units decide."""
    configurations = {scheme: api.configuration("llama-2-7b", "a100", quantization=scheme) for scheme in SCHEMES}
    found = crossover(configurations, np.array([1.0, 512.0]), np.array([32.0]), "decode_time_s")
    assert [found.names[int(w)] for w in found.winner[0]] == ["w4a16", "w8a8"]


def test_one_configuration_is_refused() -> None:
    with pytest.raises(UserError, match="two configurations or more"):
        crossover({"alone": api.configuration("llama-2-7b", "a100")}, BATCHES, CONTEXTS, "decode_time_s")


def test_the_command_writes_axes_winners_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    words = "crossover llama-2-7b --hardware a100 --quantization none,w4a16 --batch-size 1,8 --context 512,1024,2048"
    assert main([*words.split(), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["configurations"] == ["none", "w4a16"]
    assert (len(answer["winner"]), len(answer["winner"][0])) == (3, 2)
    assert np.shape(answer["values"]) == (2, 3, 2)

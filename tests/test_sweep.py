"""Points of a sweep: their order, and a grid cut into chunks."""

from __future__ import annotations

import numpy as np
import pytest

from llmviewer.cli import main
from llmviewer.core.workload import Request
from llmviewer.result.sweep import CHUNK_PASSES, Grid


def grid() -> Grid:
    return Grid(
        batch_sizes=np.array([1.0, 8.0]), input_lens=np.array([16.0, 64.0, 256.0]), output_lens=np.array([2.0, 5.0])
    )


def triples(request: Request) -> list[tuple[float, float, float]]:
    columns = (request.batch_size, request.input_len, request.output_len)
    return list(zip(*(np.asarray(column).tolist() for column in columns), strict=True))


def test_the_batch_size_varies_fastest_then_the_prompt_then_the_output() -> None:
    assert triples(grid().points(0, 12)) == [
        (batch, prompt, output) for output in (2.0, 5.0) for prompt in (16.0, 64.0, 256.0) for batch in (1.0, 8.0)
    ]
    assert triples(grid().points(7, 8)) == [(8.0, 16.0, 5.0)]


def test_chunks_contain_the_points_in_order() -> None:
    pieces = list(grid().chunks(max_points=5.0))
    assert [len(triples(piece)) for piece in pieces] == [5, 5, 2]
    assert [point for piece in pieces for point in triples(piece)] == triples(grid().points(0, 12))


def test_a_chunk_has_about_as_many_forward_passes_as_fit_the_cpu_cache() -> None:
    """4096 answers of 63 tokens: a prefill pass, the decode step shown and 62 steps each, so 16384 / 64 per chunk."""
    many = Grid(batch_sizes=np.arange(1.0, 4097.0), input_lens=np.array([16.0]), output_lens=np.array([63.0]))
    assert [len(triples(piece)) for piece in many.chunks()] == [CHUNK_PASSES // 64] * 16


def test_a_refused_point_leaves_no_part_of_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    words = "sweep bert-base --hardware gb10 --batch-size 4 --output-len 8 --format".split()
    for kind in ("json", "csv"):
        assert main([*words, kind]) == 2
        told = capsys.readouterr()
        assert not told.out and told.err.startswith("error: ") and told.err.count("\n") == 1

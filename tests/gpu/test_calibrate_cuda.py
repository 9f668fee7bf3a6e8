"""Measuring on a CUDA device: graphs, cold weights, and every kernel runs or gives a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="measuring needs torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from llmviewer.calibrate import environment, record, sizes  # noqa: E402
from llmviewer.calibrate.run import run  # noqa: E402

SMALL = replace(
    sizes.SIZES["cuda", "quick"],
    models=("llama-3.2-1b",),
    tokens=(1, 64),
    widths=(4096,),
    prompts=((1, 512),),
    caches=((8, 1024),),
    copy_bytes=(2**20, 2**28),
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder: Path = tmp_path_factory.mktemp("samples")
    run(folder, "cuda", SMALL)
    return record.read(folder)[1]  # type: ignore[return-value]


def test_kernels_are_timed_in_graphs(tables: dict) -> None:
    gemm = tables["gemm"]
    assert set(gemm[gemm["kernel"] == "torch.mm"]["timed"]) == {"graph"}
    assert {"bfloat16"} <= set(gemm["dtype"])


def test_no_large_copy_is_faster_than_twice_the_memory(tables: dict) -> None:
    """Cold arrays of 256 MiB: no device moves 20 TB/s from memory."""
    copy = tables["copy"]
    large = copy[copy["bytes"] == 2**28]
    assert (large["moved_bytes"] / large["latency_us"] < 20e6).all()


def test_blocks_run_with_a_graph_and_without(tables: dict) -> None:
    assert set(tables["block"]["graph"]) == {True, False}


def test_the_environment_names_driver_clock_and_chip() -> None:
    facts = environment.describe("cuda")
    assert facts["compute_capability"]
    assert facts["cache_bytes"] > 0

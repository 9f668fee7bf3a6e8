"""Measured kernels of a serving step: scaled and sparse products, packed attention, samplers, cache writes, host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
import pandas as pd
import torch

from llmviewer.calibrate import plan, sizes
from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import KERNELS, fp8, launch, moe, serving, sparse, varlen
from llmviewer.calibrate.kernels.dtypes import UnsupportedError
from llmviewer.calibrate.rows.gemm import SPARSE
from llmviewer.calibrate.shapes import Heads
from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core.ir import Role
from llmviewer.timing.kernels import gemm

HEADS = plan.heads_of(Heads(4, 2, 16, 16), "float32")


@pytest.fixture
def buffers() -> Buffers:
    return Buffers("cpu", 1024)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str, Callable[..., Any]], list[dict[str, Any]]]:
    """Replaces a function of torch and returns the list of its arguments, call by call."""

    def replaced(owner: Any, name: str, plain: Callable[..., Any]) -> list[dict[str, Any]]:
        seen: list[dict[str, Any]] = []

        def remember(*tensors: Any, **options: Any) -> Any:
            seen.append({"tensors": tensors, **options})
            return plain(*tensors, **options)

        monkeypatch.setattr(owner, name, remember, raising=False)
        return seen

    return replaced


def group_of(case: plan.KernelCase, device: str = "h100-sxm") -> RowGroup:
    """The row of a case as a fit reads it."""
    columns = {"device": device, "source": "llmviewer", "engine": "torch 2.11.0", "latency_us": 10.0, **case.columns}
    clean, reasons = usable_rows(pd.DataFrame([columns]), case.table)
    assert list(reasons) == []
    (group,) = row_groups(clean)
    assert isinstance(group, RowGroup)
    return group


@pytest.mark.parametrize(
    ("dtype", "rows", "scales"),
    [("fp8", 6, ((), ())), ("fp8_rows", 6, ((6, 1), (1, 384))), ("fp8_block", 8, ((8, 5), (5, 3)))],
)
def test_scales_have_the_layout_of_scaled_mm(
    calls: Any, buffers: Buffers, dtype: str, rows: int, scales: tuple[tuple[int, ...], ...]
) -> None:
    """6 x 640 times 384 x 640: five blocks along k, whose scales are stored in steps of eight, and rows padded to 8."""
    seen = calls(torch, "_scaled_mm", lambda x, w, **options: torch.zeros(len(x), w.shape[1]))
    output: Any = KERNELS["fp8"]({"dtype": dtype, "m": 6, "n": 384, "k": 640}, buffers).run(0)
    (call,) = seen
    assert output.shape == (rows, 384)
    assert tuple(tuple(call[name].shape) for name in ("scale_a", "scale_b")) == scales
    assert call["tensors"][1].stride() == (1, 640)
    if dtype == "fp8_block":
        assert (call["scale_a"].stride(), call["scale_b"].stride()) == ((1, 8), (1, 8))
    assert call["use_fast_accum"] == (dtype == "fp8_rows")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_half_of_the_weights_are_zero_before_compression(calls: Any, dtype: torch.dtype) -> None:
    seen = calls(torch, "_cslt_compress", lambda weight: weight)
    sparse.compressed(torch.ones(4, 16).to(dtype))
    assert seen[0]["tensors"][0].float().view(4, 4, 4).sum(-1).eq(2.0).all()


def test_sparse_products_run_the_kernel_that_a_search_found(
    calls: Any, buffers: Buffers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "need_sparse_units", lambda kind: None)
    calls(torch, "_cslt_compress", lambda weight: weight)
    calls(torch, "_cslt_sparse_mm_search", lambda packed, x, **options: 7)
    monkeypatch.setattr(torch._C, "_cusparselt", None, raising=False)
    seen = calls(torch, "_cslt_sparse_mm", lambda packed, x, **options: (packed @ x).t())
    output: Any = KERNELS["sparse"]({"dtype": "bfloat16_2of4", "m": 3, "n": 16, "k": 32}, buffers).run(0)
    assert output.shape == (8, 16)  # rows are padded to eight
    assert (seen[0]["alg_id"], seen[0]["transpose_result"]) == (7, True)


def test_sparse_products_need_cuda(buffers: Buffers) -> None:
    with pytest.raises(UnsupportedError, match="cuSPARSELt"):
        KERNELS["sparse"]({"dtype": "bfloat16_2of4", "m": 8, "n": 16, "k": 32}, buffers)


def test_rows_of_sparse_products_are_those_that_pruning_makes() -> None:
    """9/16 of the bytes of 16-bit weights and half of the FLOP; dense fits are equals where none is of its kind."""
    dense, group = (group_of(plan.linear(name, 64, 4096, 4096)) for name in ("bfloat16", f"bfloat16{SPARSE}"))
    (before,), (after,) = dense.operators, group.operators
    assert after.read_bytes(Role.WEIGHT) == pytest.approx(before.read_bytes(Role.WEIGHT) * 9.0 / 16.0)
    assert after.matmul_flops == pytest.approx(before.matmul_flops / 2.0)
    assert (gemm.variant(before), gemm.variant(after)) == ("bf16", "bf16-2of4")
    assert gemm.FAMILY.equivalents["bf16-2of4"] == ("bf16", "fp16")


@pytest.mark.parametrize(
    ("case", "engine", "variant"),
    [
        (plan.linear("fp8_rows", 8, 512, 512), "torch-rows", "fp8"),
        (plan.linear("fp8_block", 8, 512, 512), "torch", "fp8-block"),
        (plan.linear("fp8_2of4", 8, 512, 512), "torch", "fp8-2of4"),
    ],
)
def test_scaled_and_sparse_products_have_fits_of_their_own(case: plan.KernelCase, engine: str, variant: str) -> None:
    group = group_of(case)
    assert (group.engine, gemm.variant(group.operators[-1])) == (engine, variant)


def _attended(q: Any, k: Any, v: Any, *_: Any, **options: Any) -> Any:
    return q


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("kernel", ["varlen", "varlen_paged"])
def test_packed_attention_is_called_as_torch_wants(
    calls: Any, buffers: Buffers, monkeypatch: pytest.MonkeyPatch, window: int, kernel: str
) -> None:
    """Three sequences of 300 tokens: packed 900 keys, or two pages of 256 each in any order, 300 of them in use."""
    known = frozenset({"window_size", "block_table", "seqused_k", "enable_gqa"})
    seen = calls(varlen, "attend", _attended)
    monkeypatch.setattr(varlen, "varlen", lambda kind: (varlen.attend, known))  # type: ignore[attr-defined]
    case = plan.decode(kernel, {**HEADS, "window": window}, 3, 300)
    KERNELS["varlen"](case.columns, buffers).run(0)
    (call,) = seen
    q, k, _, starts, keys, queries, most = call["tensors"]
    assert (q.shape, queries, most, starts.tolist()) == ((3, 4, 16), 1, 300, [0, 1, 2, 3])
    assert call.get("window_size") == ((99, 0) if window else None)
    if kernel == "varlen_paged":
        assert (k.shape, keys, call["seqused_k"].tolist()) == ((6, 256, 2, 16), None, [300] * 3)
        assert sorted(call["block_table"].flatten().tolist()) == [*range(6)]
    else:
        assert (k.shape, keys.tolist()) == ((900, 2, 16), [0, 300, 600, 900])


def test_a_torch_without_pages_is_named(buffers: Buffers, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 has no block_table."""
    monkeypatch.setattr(varlen, "varlen", lambda kind: (_attended, frozenset({"window_size"})))
    with pytest.raises(UnsupportedError, match="has no block_table"):
        KERNELS["varlen"](plan.decode("varlen_paged", HEADS, 1, 256).columns, buffers)
    assert group_of(plan.decode("varlen", HEADS | {"dtype": "bfloat16", "kv_dtype": "bfloat16"}, 1, 256)).engine == (
        "torch-varlen"
    )


def test_samplers_choose_likely_tokens() -> None:
    """Half of the probability on one word, the rest spread: greedy takes it, top-p of 0.4 nothing else."""
    torch.manual_seed(0)
    logits = torch.zeros(200, 1000)
    logits[:, 17] = torch.log(torch.tensor(999.0))
    assert serving.SAMPLERS["greedy"](logits).eq(17).all()
    assert 60 < serving.SAMPLERS["sample"](logits).eq(17).sum() < 140
    assert 180 < serving.SAMPLERS["top_k"](logits).eq(17).sum() < 200  # 999 against 49 others
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "TOP_P", 0.4)
        assert serving.SAMPLERS["top_p"](logits).eq(17).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
def test_cache_writes_reach_as_many_slots_as_tokens(buffers: Buffers, dtype: str) -> None:
    case = next(plan._cache_writes(sizes.size_named("cuda", "quick")))
    columns = {**case.columns, "dtype": dtype, "tokens": 5, "width": 64}
    cache: Any = KERNELS["serving"](columns, buffers).run(0)
    assert cache.shape == (5 * serving.SLOTS, 64)
    assert cache.element_size() == (1 if dtype == "fp8" else 2)
    (operator,) = group_of(plan.KernelCase(table="elementwise", kernel="serving", columns=columns)).operators
    assert operator.traffic_bytes == pytest.approx(5 * 64 * (2 + cache.element_size()))


@pytest.mark.parametrize("op", [*launch.LAUNCHES])
def test_launches_run_on_any_device(buffers: Buffers, op: str) -> None:
    work = KERNELS["launch"]({"op": op, "graph": True, "dtype": "float32"}, buffers)
    assert work.graph
    assert torch.as_tensor(work.run(0)).isfinite().all()


@pytest.mark.parametrize("op", ["memory_copy", "memory_read", "disk_write", "disk_read"])
def test_memory_and_disk_of_the_host_are_timed_without_a_gpu(buffers: Buffers, op: str) -> None:
    work = KERNELS["host"]({"op": op, "pinned": False, "bytes": 4096, "moved_bytes": 4096}, buffers)
    work.run(0)
    assert not work.graph


def test_copies_to_a_device_need_one(buffers: Buffers) -> None:
    with pytest.raises(UnsupportedError, match="CUDA"):
        KERNELS["host"]({"op": "h2d", "pinned": True, "bytes": 4096}, buffers)


def test_experts_in_8_bits_are_those_in_16_bits_with_rows_converted(calls: Any) -> None:
    """The grouped product with scales, by groups of rows in plain torch, against the one in 16 bits."""

    def grouped(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        parts = zip([0, *offs.tolist()], offs.tolist(), weights, strict=False)
        return torch.cat([x[start:end].float() @ weight.float() for start, end, weight in parts]).to(torch.bfloat16)

    def scaled(x: Any, weights: Any, rows: Any, columns: Any, *, offs: Any, **options: Any) -> torch.Tensor:
        assert (x.dtype, rows.shape, columns.shape) == (weights.dtype, (len(x),), weights.shape[::2])
        return grouped(x, weights, offs)

    calls(torch, "_grouped_mm", grouped)
    seen = calls(torch, "_scaled_grouped_mm", scaled)
    torch.manual_seed(0)
    chosen = moe.choice((3, 0, 5), 4, torch.bfloat16, Buffers("cpu", 1024))
    x = torch.randn(4, 32).bfloat16()
    weights = tuple((torch.randn(shape) * 0.2).to(torch.float8_e4m3fn) for shape in ((3, 64, 32), (3, 32, 32)))
    wide = tuple(weight.bfloat16() for weight in weights)
    got = moe.layer(x, chosen, weights, torch.arange(8), torch.ones(200))  # type: ignore[arg-type]
    want = moe.layer(x, chosen, wide, torch.arange(8))  # type: ignore[arg-type]
    assert len(seen) == 2
    assert float((got - want).float().norm() / want.float().norm()) < 0.1


def test_scales_exist_for_every_8_bit_dtype_of_the_plan() -> None:
    assert {name for name, (kernel, _) in plan.PRODUCTS.items() if kernel == "fp8"} == {*fp8.SCALES}

"""Measured kernels of a serving step: scaled and sparse products, packed attention, samplers, cache writes, host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
import pandas as pd
import torch

from llmviewer import models
from llmviewer.calibrate import plan, shapes, sizes
from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.fit import fit_key
from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.calibrate.kernels import KERNELS, fp8, launch, moe, recurrence, serving, sparse, varlen
from llmviewer.calibrate.kernels.dtypes import UnsupportedError
from llmviewer.calibrate.rows.gemm import SPARSE
from llmviewer.calibrate.shapes import Heads, RecurrentHeads
from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.calibrate.usable import usable_rows
from llmviewer.core.ir import Role
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.timing.kernels import gemm
from llmviewer.timing.kernels.families import families_of

HEADS, BF16_HEADS = (plan.heads_of(Heads(4, 2, 16, 16), dtype) for dtype in ("float32", "bfloat16"))


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


def group_of(case: KernelCase, device: str = "h100-sxm") -> RowGroup:
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


@pytest.mark.parametrize("dtype", ["mxfp8", "nvfp4"])
def test_scales_in_tiles_pass_the_checks_of_torch(
    monkeypatch: pytest.MonkeyPatch, buffers: Buffers, dtype: str
) -> None:
    """torch checks sizes and dtypes of the scales of tensors without data as it does on CUDA; 6 x 640 by 384 x 640."""
    product = torch._scaled_mm

    def on_meta(x: torch.Tensor, w: torch.Tensor, **options: Any) -> torch.Tensor:
        scales = {name: options.pop(name).to("meta") for name in ("scale_a", "scale_b")}
        assert scales["scale_b"].numel() == 384 * (640 // fp8.TILED[dtype][0])
        return product(x.to("meta"), w.to("meta"), **scales, **options)

    monkeypatch.setattr(torch, "_scaled_mm", on_meta)
    work = KERNELS["fp8"]({"dtype": dtype, "m": 6, "n": 384, "k": 640}, buffers)
    assert torch.as_tensor(work.run(0)).shape == (6, 384)
    monkeypatch.setitem(fp8.SCALES, dtype, lambda *sizes: tuple(s[:-1] for s in fp8._tiled(dtype)(*sizes)))
    with pytest.raises((RuntimeError, ValueError, AssertionError)):
        KERNELS["fp8"]({"dtype": dtype, "m": 6, "n": 384, "k": 640}, buffers).run(0)


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
        (plan.linear("mxfp8", 8, 512, 512), "torch-mx", "fp8"),
        (plan.linear("nvfp4", 8, 512, 512), "torch", "fp4"),
        (plan.several_adapters("bfloat16", 8, 16, 512), "torch-adapters", "bf16"),
    ],
)
def test_scaled_and_sparse_products_have_fits_of_their_own(case: KernelCase, engine: str, variant: str) -> None:
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


def test_rows_of_several_adapters_are_products_of_adapters(buffers: Buffers) -> None:
    """They are no experts, which are sorted and summed; the product itself is the grouped one."""
    case = plan.several_adapters("bfloat16", 16, 32, 64)
    (operator,) = group_of(case).operators
    assert families_of(operator) == ("gemm",)
    assert torch.as_tensor(KERNELS["experts"](case.columns, buffers).run(0)).shape == (16, 32)


@pytest.mark.slow
def test_prompts_of_sliding_windows_see_their_window(buffers: Buffers) -> None:
    """Compiled for this processor: token 100 sees keys 85 to 100."""
    columns = plan.prefill("flex", {**HEADS, "window": 16}, 2, 128).columns
    torch.manual_seed(0)
    with torch.inference_mode():
        got = torch.as_tensor(KERNELS["flex"](columns, buffers).run(0))
    torch.manual_seed(0)  # the same tensors again
    same = Buffers("cpu", 1024)
    k, v = same.rotating(torch.float32, *[(2, 2, 128, 16)] * 2).tensors[0]
    q, at = same.random(torch.float32, (2, 4, 128, 16)), torch.arange(128)
    seen = (at[None] <= at[:, None]) & (at[:, None] - at[None] < 16)
    assert seen[100].nonzero().flatten().tolist() == [*range(85, 101)]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert group_of(plan.prefill("flex", {**BF16_HEADS, "window": 16}, 2, 128)).engine == "torch-flex"


@pytest.mark.slow
def test_sinks_need_the_sum_that_a_processor_lacks(buffers: Buffers) -> None:
    with torch.inference_mode(), pytest.raises(Exception, match="return_lse"):
        KERNELS["flex"](plan.prefill("flex_sinks", HEADS, 1, 128).columns, buffers)


@pytest.mark.parametrize("op", [*recurrence.UPDATES])
def test_a_token_of_a_recurrence_is_that_of_its_definition(op: str) -> None:
    """One head of two channels and two state elements, by hand: softplus(0) = ln 2, so half of the state decays."""
    states = torch.tensor([[[[1.0, 0.0], [0.0, 2.0]]]])
    x, zero = torch.tensor([[[1.0, 2.0]]]), torch.zeros(1, 1)
    k, q = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    y = recurrence.UPDATES[op](states, x, zero, zero, k, q)
    if op == "mamba2":  # the state gains ln 2 x k; the output reads its second column, gate 0 skips nothing
        expected = torch.tensor([[0.5 + 0.6931, 0.0], [2 * 0.6931, 1.0]])
        assert y.flatten().tolist() == pytest.approx([0.0, 1.0])
    else:  # half of the error x - state k is added along k
        expected = torch.tensor([[0.5 + 0.25, 0.0], [1.0, 1.0]])
        assert y.flatten().tolist() == pytest.approx([0.0, 1.0])
    assert torch.allclose(states[0, 0], expected, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("op", [*recurrence.UPDATES])
def test_recurrences_compile_for_this_processor(buffers: Buffers, op: str) -> None:
    columns = plan.recurrence(RecurrentHeads(op, 4, 8, 16, 2), "float32", 3).columns
    with torch.inference_mode():
        assert torch.as_tensor(KERNELS["recurrence"](columns, buffers).run(0)).isfinite().all()


def test_rows_of_recurrences_are_those_of_the_models_graph() -> None:
    """Mamba-Codestral: 128 heads of 64 channels and 128 state elements, read and written in 16 bits: 4 MiB a token."""
    (shape,) = shapes.recurrences(("mamba-codestral-7b",))
    group = group_of(plan.recurrence(shape, "bfloat16", 4))
    (operator,) = group.operators
    (own,) = {
        op.traffic_bytes
        for _, op in models.load("mamba-codestral-7b").graph(decode(4.0, 0.0))
        if op.kind is Kind.RECURRENCE
    }
    assert operator.traffic_bytes == pytest.approx(own)
    assert operator.traffic_bytes > 4 * 2 * 128 * 64 * 128 * 2
    assert "/".join(fit_key(group)) == "streaming/recurrence/torch-compile"


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
    (operator,) = group_of(KernelCase(table="elementwise", kernel="serving", columns=columns)).operators
    assert operator.traffic_bytes == pytest.approx(5 * 64 * (2 + cache.element_size()))


@pytest.mark.parametrize("op", [*launch.LAUNCHES])
def test_launches_run_on_any_device(buffers: Buffers, op: str) -> None:
    work = KERNELS["launch"]({"op": op, "graph": True, "dtype": "float32"}, buffers)
    assert work.graph
    made: Any = work.run(0)
    assert (made if isinstance(made, torch.Tensor) else made[0]).isfinite().all()


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

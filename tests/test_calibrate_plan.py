"""The measurement plan: shapes of real models, rows of known tables, and blocks that llmviewer can model."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="measuring needs torch")
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from llmviewer.calibrate import plan, record, shapes, sizes
from llmviewer.calibrate.buffers import Buffers
from llmviewer.calibrate.kernels import KERNELS
from llmviewer.calibrate.kernels.attention import BACKENDS
from llmviewer.calibrate.kernels.elementwise import OPERATIONS
from llmviewer.calibrate.kernels.llama import LlamaConfig
from llmviewer.calibrate.rows import routing as routing_rows
from llmviewer.calibrate.shapes import EncoderHeads, ExpertLayer, Heads, LinearShape
from llmviewer.core.workload import decode, prefill
from llmviewer.models.load import parse

ALL = [pytest.param(size, id=" ".join(name)) for name, size in sizes.SIZES.items()]
#: Columns of the measured tables.
COLUMNS = {
    "gemm": "dtype kernel m n k",
    "attention_prefill": "dtype kv_dtype kernel batch seq heads kv_heads head_dim window prefix",
    "attention_decode": "dtype kv_dtype kernel batch context heads kv_heads head_dim window",
    "attention_encoder": "dtype kernel batch seq heads head_dim",
    "moe": "dtype kernel tokens hidden inter topk experts tp ep routing",
    "allreduce": "op dtype impl gpus bytes",
    "elementwise": "op dtype tokens width",
    "block": "dtype config batch stage graph",
    "model": "dtype config batch stage graph",
    "serving": "op kernel dtype tokens width",
    "host": "op pinned bytes moved_bytes",
}


def test_linear_layers_are_those_of_the_model() -> None:
    """Llama-3.1-8B: q and o 4096 x 4096, k and v to 8 heads of 128, gate and up, down, the vocabulary."""
    expected = {(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)}
    assert {(s.n, s.k) for s in shapes.linears(("llama-3.1-8b",))} == expected


def test_attention_and_experts_are_those_of_the_model() -> None:
    assert shapes.heads(("llama-3.1-8b",)) == [Heads(32, 8, 128, 128)]
    assert shapes.latent_heads(("deepseek-v3",)) == ([Heads(128, 128, 192, 128)], [Heads(128, 1, 576, 512)])
    assert shapes.experts(("mixtral-8x7b",)) == [LinearShape(4096, 14336, 8), LinearShape(14336, 4096, 8)]
    assert shapes.expert_layers(("mixtral-8x7b",)) == [ExpertLayer(4096, 14336, 2, 8)]


def test_encoder_heads_are_those_of_the_vision_tower() -> None:
    """Gemma 3: 1152 elements in 16 heads; Llama 4: 1408 in 16."""
    assert shapes.encoder_heads(("gemma-3-4b", "llama-4-scout")) == [EncoderHeads(16, 72), EncoderHeads(16, 88)]


@pytest.mark.parametrize("size", ALL)
def test_every_gemm_of_a_plan_is_a_layer_of_a_model(size: sizes.RunSize) -> None:
    known = {(s.n, s.k) for s in (*shapes.linears(size.models), *shapes.experts(size.expert_models))}
    known |= {pair for rank in size.adapter_ranks for pair in plan.adapters(size.models[:1], rank)}
    planned = {(c.columns["n"], c.columns["k"]) for c in plan.cases(size) if c.table == "gemm"}
    assert planned
    assert planned <= known


@pytest.mark.parametrize("size", ALL)
def test_every_case_is_a_row_of_a_table_made_by_a_kernel(size: sizes.RunSize) -> None:
    cases = plan.cases(size, gpus=8)
    assert {case.table for case in cases} <= set(record.TABLES) <= set(plan.SHARES)
    assert {case.kernel for case in cases} <= set(KERNELS)
    for case in cases:
        assert set(COLUMNS.get(case.table, "").split()) <= set(case.columns)
        assert not set(case.columns) & set(record.RESULT_FIELDS)
    assert len({record.row_key({"table": c.table, **c.columns}) for c in cases}) == len(cases)


def test_quick_plans_take_a_minute_on_a_cpu_and_five_on_a_gpu() -> None:
    assert sizes.size_named("cpu", "quick").budget_s < 60.0
    assert sizes.size_named("cuda", "quick").budget_s < 300.0


@pytest.mark.parametrize("size", ALL)
def test_every_kind_gets_the_rows_of_a_fit_before_the_next_one(size: sizes.RunSize) -> None:
    """A run that ends early has whole kinds: 8 GEMMs in the first dtype, then 8 in the second."""
    kinds = [case.columns["dtype"] for case in plan.cases(size) if case.table == "gemm" and case.kernel != "experts"]
    counts = [kinds.count(dtype) for dtype in size.dtypes]
    assert min(counts) >= 8
    first = [case.columns["dtype"] for case in plan.cases(size) if case.table == "gemm"][: 8 * len(size.dtypes)]
    assert first == [dtype for dtype in size.dtypes for _ in range(8)]


@pytest.mark.parametrize("size", ALL)
def test_attention_kernels_of_a_shape_are_measured_one_after_another(size: sizes.RunSize) -> None:
    """Wherever a run ends, the fastest kernel is known at all shapes but the last of each table."""
    cases = [case for case in plan.cases(size) if case.table.startswith("attention")]
    shapes_in_order = [(case.table, case.kernel, *sorted({**case.columns, "kernel": ""}.items())) for case in cases]
    pairs = zip(shapes_in_order, [None, *shapes_in_order], strict=False)
    starts = [shape for shape, before in pairs if shape != before]
    assert len(starts) == len(set(starts))
    assert len(starts) < len(cases) or len(size.backends) == 1


def test_half_of_a_plan_contains_half_of_the_rows_of_each_length() -> None:
    """The time limit is spread over all shapes, not spent on the small ones first."""
    cases = [c for c in plan.cases(sizes.size_named("cuda", "default")) if c.table == "gemm" and c.kernel == "linear"]
    half = [c.columns["m"] for c in cases[: len(cases) // 2]]
    for m in {c.columns["m"] for c in cases}:
        of_all = sum(c.columns["m"] == m for c in cases)
        assert half.count(m) == pytest.approx(of_all / 2, rel=0.25)


def test_operations_and_backends_of_the_plan_exist() -> None:
    assert set(plan.ELEMENTWISE_KERNELS) == set(OPERATIONS)
    assert {backend for size in sizes.SIZES.values() for backend in size.backends} <= set(BACKENDS)


SMALL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 160,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 96,
    "tie_word_embeddings": False, "torch_dtype": "float32", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
}  # fmt: skip


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_the_measured_model_has_the_matmul_flops_of_our_graph(stage: str) -> None:
    """PyTorch's FLOP counter over the timed model, against the graph built from the row's config."""
    columns = {"config": SMALL, "dtype": "float32", "batch": 3, "stage": stage, "graph": False}
    columns |= {"seq": 8} if stage == "prefill" else {"context": 9}
    work = KERNELS["model"](columns, Buffers("cpu", 1024))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.inference_mode():
        logits = work.run(0)
    step = prefill(3.0, 8.0) if stage == "prefill" else decode(3.0, 8.0)
    graph = parse(SMALL, "small", "fp32").graph(step)
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (3, 96)
    assert logits.isfinite().all()
    assert counter.get_total_flops() == sum(operator.matmul_flops * block.repeats for block, operator in graph)


def test_a_rows_config_builds_the_measured_model() -> None:
    config = plan.llama_config("tinyllama-1.1b", 3, "bfloat16")
    built = LlamaConfig.from_json(config)
    weights = sum(a * (b[0] if b else 1) for a, *b in built.layer_shapes()) * 3
    tables = 2 * built.vocabulary * built.hidden + built.hidden
    assert parse(config, "x").parameters == weights + tables


def test_the_measured_layer_of_experts_has_the_matmul_flops_of_our_graph() -> None:
    """Two of four experts of 24 channels for each of 3 x 8 tokens, against the graph built from the row's config."""
    config = SMALL | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "intermediate_size": 24}
    config |= {"num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1}
    columns = {"config": config, "dtype": "float32", "batch": 3, "stage": "prefill", "graph": False, "seq": 8}
    work = KERNELS["block"](columns, Buffers("cpu", 1024))

    def grouped(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        parts = zip([0, *offs.tolist()], offs.tolist(), weights, strict=False)
        return torch.cat([x[start:end] @ weight for start, end, weight in parts])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "_grouped_mm", grouped, raising=False)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.inference_mode():
            output = work.run(0)
    graph = parse(config, "small", "fp32").graph(prefill(3.0, 8.0))
    expected = sum(op.matmul_flops for block, op in graph if block.is_layer)
    combined = 2 * 24 * 2 * 64  # the weighted sum of two rows is a product here, and elementwise work in the graph
    assert isinstance(output, torch.Tensor)
    assert output.isfinite().all()
    assert counter.get_total_flops() == expected + combined


def test_decoding_token_by_token_equals_prefill() -> None:
    """The measured layer has a correct cache, rotation and mask."""
    from llmviewer.calibrate.kernels import llama

    made = LlamaConfig.from_json(SMALL)
    torch.manual_seed(0)
    weights = tuple(torch.randn(shape) * 0.1 for shape in made.layer_shapes())
    x = torch.randn(2, 5, 64)

    def run(new: int, cached: int, cache: tuple[torch.Tensor, ...]) -> torch.Tensor:
        now = llama.ForwardPass(2, new, cached)
        keys, values = (part[:, :, : now.length] for part in cache)
        turn = llama.rope_tables(made, now, torch.float32, "cpu")
        return llama.layer(x[:, cached : now.length], (*weights, keys, values), made, now, turn)

    whole = run(5, 0, tuple(torch.zeros(shape) for shape in made.cache_shapes(2, 5)))
    cache = tuple(torch.zeros(shape) for shape in made.cache_shapes(2, 5))
    steps = torch.cat([run(1, position, cache) for position in range(5)], dim=1)
    torch.testing.assert_close(steps, whole, rtol=1e-4, atol=1e-5)


def test_more_than_one_device_adds_the_all_reduce() -> None:
    tiny = replace(sizes.RunSize(), allreduce_bytes=(4096,), models=(), dtypes=("float32",))
    assert {c.columns["gpus"] for c in plan.cases(tiny, gpus=4) if c.table == "allreduce"} == {2, 4}
    assert not [c for c in plan.cases(tiny, gpus=1) if c.table == "allreduce"]


def test_a_draft_token_attends_to_the_cache_and_earlier_tokens() -> None:
    """Four queries after a prefix of 100 equal the last four of a prompt of 104."""
    heads = {"dtype": "float32", "heads": 4, "kv_heads": 2, "head_dim": 16, "v_head_dim": 16}
    case = plan.prefill("sdpa_math", heads, 2, 4, 100)
    assert case.flops == 2.0 * 2 * 4 * (4 * 104) * 32
    buffers = Buffers("cpu", 1024)
    work = KERNELS["attention"](case.columns, buffers)
    seen: list[torch.Tensor] = []

    def remember(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
        seen.append(options["attn_mask"])  # type: ignore[arg-type]
        return q

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmviewer.calibrate.kernels.attention.F.scaled_dot_product_attention", remember)
        work.run(0)
    assert seen[0].sum(-1).tolist() == [101, 102, 103, 104]


def test_power_limited_work_is_warmed_up_on_a_gpu() -> None:
    assert all(sizes.size_named("cuda", name).settle_s > 0.2 for name in ("quick", "default", "full"))


def test_experts_compute_the_weighted_sum_of_the_chosen_ones() -> None:
    """The timed layer against a loop over pairs, where one expert has no row and one token has one expert less."""
    from llmviewer.calibrate.kernels import moe

    torch.manual_seed(0)
    made = moe.choice((3, 0, 4, 4), 4, torch.float32, Buffers("cpu", 1024))
    assert made.experts.tolist() == [[0, 2, 3], [0, 2, 3], [0, 2, 3], [2, 3, 4]]
    x, into, out = torch.randn(4, 16), torch.randn(4, 48, 16), torch.randn(4, 16, 24)
    expected = torch.zeros(4, 16)
    for token, slot in ((t, s) for t in range(4) for s in range(3) if made.experts[t, s] < 4):
        expert = made.experts[token, slot]
        gate, up = (into[expert] @ x[token]).chunk(2)
        expected[token] += made.scores[token, 0, slot] * (out[expert] @ (torch.nn.functional.silu(gate) * up))
    torch.testing.assert_close(moe.layer(x, made, (into, out), torch.arange(12)), expected)


@pytest.mark.parametrize("routing", ["balanced", "power_law_1.2"])
def test_measured_experts_have_the_matmul_flops_of_the_plan(routing: str) -> None:
    """64 tokens x 4 of 16 experts on 4 devices: 64 rows in balance, more on the busiest device of a power law."""
    case = plan.expert_layer(ExpertLayer(32, 16, 4, 16), 64, 2, 4, routing)
    rows = sum(routing_rows.busiest_loads(64, 16, 4, 4, routing))
    assert rows == 64 if routing == "balanced" else rows > 64
    assert case.flops == pytest.approx(6.0 * rows * 32 * 8, rel=0.1)
    work = KERNELS["moe"](case.columns, Buffers("cpu", 1024))
    output = work.run(0)
    assert isinstance(output, torch.Tensor)
    assert output.shape == (64, 32)
    assert output.isfinite().all()


@pytest.mark.parametrize(("tokens", "devices"), [(1, 4), (7, 1), (100, 2)])
def test_balanced_rows_are_dealt_evenly_to_the_active_experts(tokens: int, devices: int) -> None:
    """A token with 2 of 8 experts on 4 devices is half a row for each, of which the busiest has one."""
    loads = routing_rows.busiest_loads(tokens, 8, 2, devices, "balanced")
    rows, active = routing_rows.busiest_device(tokens, 8, 2, devices, "balanced")
    assert (len(loads), sum(loads), sum(load > 0 for load in loads)) == (8 // devices, rows, active)
    assert max(loads) - min(load for load in loads if load) <= 1


def test_an_encoder_attends_without_a_mask() -> None:
    """The first token sees the last one: its output is the mean of all values weighted by its scores."""
    columns = {"dtype": "float32", "kernel": "sdpa_math", "batch": 2, "seq": 5, "heads": 3, "head_dim": 8}
    seen: list[tuple[torch.Tensor, ...]] = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def remember(*tensors: torch.Tensor, **options: object) -> torch.Tensor:
        assert not options
        seen.append(tensors)
        return attend(*tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("llmviewer.calibrate.kernels.encoder.F.scaled_dot_product_attention", remember)
        output = KERNELS["encoder"](columns, Buffers("cpu", 1024)).run(0)
    ((q, k, v),) = seen
    expected = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, dim=-1) @ v
    assert isinstance(output, torch.Tensor)
    assert output.shape == (2, 3, 5, 8)
    torch.testing.assert_close(output, expected)

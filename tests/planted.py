"""Recordings of served passes made from our own predictions, with a fault planted and the truth of every kernel.

Names of kernels are those of engines, per operator; every kernel lasts its predicted time with a spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llmviewer.analysis.evaluation import Evaluation, TimedOperator, evaluate
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.calibrate.diagnosis.pricing import OWN_KERNELS
from llmviewer.calibrate.diagnosis.recording import Kernel, Mark, Recording
from llmviewer.core.ir import Operator
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import Step, decode, prefill

#: Spread of a kernel's time, standard deviation of its logarithm.
SPREAD = 0.03
#: Time between two kernels of a graph [s].
BETWEEN_KERNELS = 0.3e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A served model whose passes are recorded.  names: prefix of the engine's names in NAMES."""

    model: str
    hardware: str
    engine: str
    names: str
    requests: float = 32.0
    tokens: float = 2000.0
    tensor: int = 1
    stage: str = "decode"
    passes: int = 4
    eager: bool = False

    @property
    def configuration(self) -> Configuration:
        """The configuration whose predictions are recorded."""
        return configuration(self.model, self.hardware, engine=self.engine, tensor_parallel_size=self.tensor)

    @property
    def step(self) -> Step:
        """One of its passes."""
        if self.stage == "prefill":
            return prefill(self.requests, self.tokens)
        return decode(self.requests, self.tokens)

    @property
    def mark(self) -> str:
        """The engine's mark of a pass."""
        prompts = self.stage == "prefill"
        new = self.tokens if prompts else 1.0
        keys = new if prompts else self.tokens + 1.0
        sums = [self.requests * value for value in (new, keys, new * new, new * keys)]
        if self.names == "sglang":
            letter, kind = ("c", "EXTEND") if prompts else ("g", "DECODE")
            fields = " ".join(
                f"{letter}_{name}={value:.0f}" for name, value in zip(("sq", "sk", "sqsq", "sqsk"), sums, strict=True)
            )
            return f"step[{kind} bs={self.requests:.0f} {fields}]"
        own = "sq{:.0f}sk{:.0f}sqsq{:.0f}sqsk{:.0f}".format(*sums)
        none = "sq0sk0sqsq0sqsk0"
        context, generation = (own, none) if prompts else (none, own)
        counts = (self.requests, 0.0) if prompts else (0.0, self.requests)
        return f"execute_{sums[0]:.0f}_context_{counts[0]:.0f}({context})_generation_{counts[1]:.0f}({generation})"


CASES = {
    "dense vLLM on Hopper": Case(model="llama-3.1-8b", hardware="h100-sxm", engine="vllm", names="vllm"),
    "prompts, eager": Case(
        model="llama-3.1-8b",
        hardware="h100-sxm",
        engine="vllm",
        names="vllm",
        stage="prefill",
        requests=4.0,
        eager=True,
    ),
    "sharded": Case(model="llama-3.1-70b", hardware="h100-sxm", engine="vllm", names="vllm", tensor=4),
    "norms of queries, SGLang": Case(model="qwen3-8b", hardware="h200", engine="sglang", names="sglang"),
    "experts": Case(model="qwen3-30b-a3b", hardware="h200", engine="vllm", names="vllm"),
    "experts of SGLang": Case(model="gpt-oss-20b", hardware="h100-sxm", engine="sglang", names="sglang"),
    "fp8": Case(model="qwen3-32b-fp8", hardware="h200", engine="vllm", names="vllm"),
    "latent attention": Case(model="deepseek-v3", hardware="h200", engine="vllm", names="vllm", tensor=8),
    "AMD": Case(model="qwen3-8b", hardware="mi300x", engine="sglang", names="amd"),
}

FLASH3 = "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloop"
#: Engine -> class of operator -> names of the kernels that run it, in order.
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm": {
        "matmul": ("nvjet_tst_128x64_64x8_2x1_v_bz_TNT",),
        "matmul8": ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 5120u, 5120u, 1u, 64u>",),
        "matmul16": ("nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN",),
        "router": ("void tinygemm_kernel<__nv_bfloat16>",),
        "attention": (FLASH3, "void flash::FlashAttnFwdCombine<cute::tuple"),
        "portable attention": ("kernel_unified_attention_3d", "reduce_segments"),
        "norm": ("void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>",),
        "qk_norm": ("void vllm::rms_norm_kernel<c10::BFloat16>",),
        "rope": ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>",),
        "kv_write": ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>",),
        "activation": ("void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>",),
        "quantize": ("void per_token_group_quant_8bit_kernel<c10::BFloat16, c10::Float8_e4m3fn>",),
        "route": ("void vllm::moe::topkGatingSoftmax<8, 128, 4, 16, int>", "moe_align_block_size_kernel<int>",
                  "count_and_sort_expert_tokens_kernel<int>"),
        "experts": ("fused_moe_kernel",),
        "combine": ("void vllm::moe::moe_sum_kernel<c10::BFloat16, 8>",),
        "all_reduce": ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>",),
        "all_gather": ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",),
        "embedding": ("void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>",),
        "residual": ("triton_poi_fused_add_3",),
        "sampling": ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps<float>",),
    },
}  # fmt: skip
NAMES["sglang"] = NAMES["vllm"] | {
    "attention": ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>",
                  "void flashinfer::PersistentVariableLengthMergeStatesKernel<8u>"),
    "portable attention": ("_fwd_grouped_kernel_stage1", "_fwd_kernel_stage2"),
    "norm": ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>",),
    "qk_norm": ("void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>",),
    "rope": ("void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128u>",),
    "kv_write": ("void (anonymous namespace)::store_kvcache<2048l, 4, false, long>",),
    "activation": ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>",),
    "route": ("_topk_forward", "_sum_bitmatrix_rows", "_combined_routing_compute"),
    "experts": ("_matmul_ogs_NNT_bf16xbf16xmxfp4_32x256x128x1",),
    "combine": ("_finalize_matmul_scatter_bf16",),
}  # fmt: skip
NAMES["amd"] = NAMES["sglang"] | {
    "matmul": ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x32x256_MI16x16x1",),
    "attention": ("_ZN5aiter30paged_attention_ll4mi_QKV_mfma16_kernelI", "paged_attention_ll4mi_reduce_kernel"),
    "portable attention": ("kernel_unified_attention_2d",),
    "norm": ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1E",),
    "qk_norm": ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0E",),
    "rope": ("void rotary_embedding_kernel<c10::BFloat16, true>",),
    "activation": ("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16",),
}


def class_of(operator: Operator, dtype: str) -> str:
    """The class of an operator in NAMES.  dtype: in which its matrix units compute."""
    role = {
        OperatorRole.ROUTER: "router",
        OperatorRole.ROPE: "rope",
        OperatorRole.ACTIVATION: "activation",
        OperatorRole.QUANTIZE: "quantize",
        OperatorRole.QK_NORM: "qk_norm",
        OperatorRole.RESIDUAL: "residual",
        OperatorRole.EXPERT_COMBINE: "combine",
    }.get(operator.role)
    if role:
        return role
    if operator.kind is Kind.COLLECTIVE:
        return "all_gather" if "all_gather" in operator.name else "all_reduce"
    if operator.kind is Kind.GEMM:
        return "experts" if operator.name.startswith("expert_") else "matmul8" if dtype == "fp8" else "matmul"
    kinds = {
        Kind.ATTENTION: "attention",
        Kind.NORM: "norm",
        Kind.SOFTMAX: "route",
        Kind.EMBEDDING: "embedding",
        Kind.ELEMENTWISE: "kv_write",
    }
    return kinds[operator.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One kernel before it has a time: its name, seconds, the idle time before it, and its true operator."""

    name: str
    seconds: float
    operator: str
    wait_s: float = BETWEEN_KERNELS


Change = Callable[[list[list[Run]], Case, np.random.Generator], str]


def runs_of(case: Case, rng: np.random.Generator) -> list[list[Run]]:
    """The kernels of every pass, as the engine would run them."""
    evaluation = evaluate(case.configuration.model, case.configuration.system, case.step)
    engine = sum(float(np.max(seconds)) for name, seconds in evaluation.served if name not in OWN_KERNELS)
    passes = []
    for _ in range(case.passes):
        runs = [*_unrolled(case, evaluation, rng)]
        runs.append(Run(name=NAMES[case.names]["sampling"][0], seconds=10e-6, operator="sampling"))
        runs[0] = replace(runs[0], wait_s=max(engine, 1e-6))
        passes.append(runs)
    return passes


def _unrolled(case: Case, evaluation: Evaluation, rng: np.random.Generator) -> Iterator[Run]:
    """Kernels in the order in which the device runs them; the norm of the embedding comes before the first layer."""
    blocks = dict.fromkeys(row.block for row in evaluation.rows)
    layers = [(n, block) for block in blocks if block.is_layer for n in block.numbers or range(block.repeats)]
    layers.sort(key=lambda item: item[0])
    rows = {block: [row for row in evaluation.rows if row.block is block] for block in blocks}
    outer = [block for block in blocks if not block.is_layer]
    order = [*rows[outer[0]], *(row for _, block in layers for row in rows[block]), *rows[outer[-1]]]
    if "+attn_norm" in rows[layers[-1][1]][-1].operator.name:
        position = len(rows[outer[0]])
        last = len(order) - len(rows[outer[-1]]) - 1
        order.insert(position, order.pop(last))
    if any(row.operator.role is OperatorRole.LATENT_EXPANSION for row in order):
        order = _absorbed(order)
    chip, engine = case.configuration.system.chip, case.configuration.system.engine
    longer = engine.factors.get("prompt", 1.0) if case.stage == "prefill" else 1.0
    for row in order:
        dtype = chip.compute_dtype(row.operator.compute) if np.max(row.operator.matmul_flops) > 0 else ""
        names = NAMES[case.names][class_of(row.operator, dtype)]
        seconds = longer * float(np.max(row.timing.time_s)) * float(rng.lognormal(0.0, SPREAD))
        for number, name in enumerate(names):
            share = 1.0 if len(names) == 1 else 0.9 if number == 0 else 0.1 / (len(names) - 1)
            yield Run(name=name, seconds=seconds * share, operator=row.operator.name)


def _absorbed(order: list[TimedOperator]) -> list[TimedOperator]:
    """The order of vLLM for DeepSeek: both norms together, products around attention, shared experts first."""
    found: list[TimedOperator] = []
    for row in order:
        name = row.operator.name
        if name == "kv_a_norm":
            found.insert(len(found) - 1, row)
        elif name.startswith("shared_") and name != "shared_add":
            first = max(at for at, one in enumerate(found) if one.operator.name == "router_softmax")
            found.insert(first + 1 + sum(one.operator.name.startswith("shared_") for one in found[first:]), row)
        else:
            found.append(row)
        if row.operator.kind is Kind.ATTENTION:
            at = max(at for at, one in enumerate(found) if one.operator.role is OperatorRole.LATENT_EXPANSION)
            rope = max(at for at, one in enumerate(found) if one.operator.role is OperatorRole.ROPE)
            expansion = found.pop(at)
            found.insert(rope, expansion)
            found.append(expansion)
    return found


def recorded(case: Case, passes: list[list[Run]]) -> tuple[Recording, list[str]]:
    """The recording of passes, and the true operator of every kernel."""
    kernels: list[Kernel] = []
    marks: list[Mark] = []
    truth: list[str] = []
    now = 1.0
    for runs in passes:
        begin = now
        for run in runs:
            now += run.wait_s
            launch = now - 50e-6 if case.eager else begin
            kernels.append(Kernel(name=run.name, start_s=now, seconds=run.seconds, stream=7, launch_s=launch))
            truth.append(run.operator)
            now += run.seconds
        marks.append(Mark(name=case.mark, start_s=begin - 60e-6, end_s=(launch or begin) + 1e-6))
    return Recording(program="torch.profiler", kernels=tuple(kernels), marks=tuple(marks)), truth


def as_trace(recording: Recording) -> dict[str, Any]:
    """The recording as a trace of torch.profiler: launches linked by correlation, times in microseconds."""
    events: list[dict[str, Any]] = []
    for number, kernel in enumerate(recording.kernels):
        links = {"device": 0, "stream": kernel.stream, "correlation": number}
        events.append(_event("kernel", kernel.name, kernel.start_s, kernel.seconds, links))
        if kernel.launch_s is not None:
            events.append(_event("cuda_runtime", "cudaLaunchKernel", kernel.launch_s, 1e-6, {"correlation": number}))
    for mark in recording.marks:
        events.append(_event("user_annotation", mark.name, mark.start_s, mark.end_s - mark.start_s, {}))
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "planted"}], "traceEvents": events}


def _event(category: str, name: str, start_s: float, seconds: float, args: dict[str, int]) -> dict[str, Any]:
    times = {"ts": round(start_s * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 0, **times, "args": args}


def slow_operator(passes: list[list[Run]], case: Case, rng: np.random.Generator) -> str:
    """One operator takes 2.5 times as long; returns its name."""
    totals: dict[str, float] = {}
    for run in passes[0]:
        totals[run.operator] = totals.get(run.operator, 0.0) + run.seconds
    whole = sum(totals.values())
    name = str(rng.choice([name for name, seconds in totals.items() if seconds > 0.04 * whole]))
    for runs in passes:
        runs[:] = [replace(run, seconds=run.seconds * 2.5) if run.operator == name else run for run in runs]
    return name


def stalled_host(passes: list[list[Run]], case: Case, rng: np.random.Generator) -> str:
    """The host is late by 0.3 of a pass before every pass; returns the name of the part."""
    for runs in passes:
        late = 0.3 * sum(run.seconds for run in runs)
        runs[0] = replace(runs[0], wait_s=runs[0].wait_s + late)
    return "gaps between passes"


def launch_gaps(passes: list[list[Run]], case: Case, rng: np.random.Generator) -> str:
    """The device waits before every kernel, 0.4 of a pass in total; returns the name of the part."""
    for runs in passes:
        wait = 0.4 * sum(run.seconds for run in runs) / len(runs)
        runs[1:] = [replace(run, wait_s=run.wait_s + wait) for run in runs[1:]]
    return "gaps within passes"


def extra_copies(passes: list[list[Run]], case: Case, rng: np.random.Generator) -> str:
    """A copy runs before every attention, 0.2 of a pass in total; returns the name of the part."""
    name = ("Memcpy DtoD (Device -> Device)", "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>")[
        int(rng.integers(2))
    ]
    for runs in passes:
        places = [at for at, run in enumerate(runs) if run.name == NAMES[case.names]["attention"][0]]
        seconds = 0.2 * sum(run.seconds for run in runs) / len(places)
        for at in reversed(places):
            runs.insert(at, Run(name=name, seconds=seconds, operator=""))
    return "kernels nobody predicted"


def other_attention(passes: list[list[Run]], case: Case, rng: np.random.Generator) -> str:
    """Attention runs on a portable kernel, 4 times as slow; returns the operator."""
    names = dict(zip(NAMES[case.names]["attention"], NAMES[case.names]["portable attention"], strict=False))
    for runs in passes:
        runs[:] = [
            replace(run, name=names.get(run.name, run.name), seconds=run.seconds * 4.0)
            if run.operator == "attention"
            else run
            for run in runs
        ]
    return "attention"


FAULTS: dict[str, Change] = {
    "slow operator": slow_operator,
    "stalled host": stalled_host,
    "launch gaps": launch_gaps,
    "extra copies": extra_copies,
    "other attention": other_attention,
}

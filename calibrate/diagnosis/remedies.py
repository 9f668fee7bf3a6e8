"""Remedies for an operator with slow kernels, or a device that waits, by names of kernels and the engine."""

from __future__ import annotations

import re

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.diagnosis.parts import longest_wait
from llmviewer.calibrate.diagnosis.patterns import kind_of
from llmviewer.calibrate.diagnosis.slots import PREPARE
from llmviewer.calibrate.diagnosis.times import Comparison, OperatorTimes
from llmviewer.calibrate.diagnosis.variants import of_unfused_attention

#: Kernels of 16-bit matrix products, and of 8-bit ones, by their names.
HALF = re.compile(r"_BBS_|_HHS_|_HHH_|bf16bf16|f16f16|bf16_bf16|_tst_|hgemm|__nv_bfloat16|bf16xbf16(?!x)|bfloat16")
EIGHT_BIT = re.compile(r"(?i)fp8|e4m3|f8f8|_qqtst|w8a8|i8i8|int8|_F8|a8w8")
#: Attention that runs anywhere, and slower than kernels written for one generation of chips.
PORTABLE = re.compile(
    r"unified_attention|_fwd_grouped_kernel|\b_fwd_kernel|paged_attention_v[12]|flash_fwd_splitkv_kernel"
)
#: Formats of matrix products below 16 bit.
NARROW = ("fp8", "int8", "fp4", "fp6", "int4")
#: Kernels that run an operator over those that are predicted, and its time over the predicted one, from which on the
#: number of kernels is to blame.
MANY, SLOW = 3.0, 2.0
#: Share of kernels linked to a launch of their own above which the host launches them one by one.
SINGLY = 0.5
UNFUSED = "attention on an unfused backend, which runs scores, softmax and values as kernels of their own"
FUSED_BACKEND = "an attention backend of one kernel (FlashAttention, FlashInfer; attn_implementation in transformers)"
FASTER_HOST = "a faster CPU core, less work of the framework between operators, or more tokens in a pass"


def too_many(one: OperatorTimes, passes: int) -> str:
    """Number of kernels of an operator in words if far more run than are predicted, else empty."""
    runs = sum(one.kernels.values()) / passes
    many = one.runs and runs >= MANY * one.runs and one.measured_s >= SLOW * one.predicted_s
    return f"{runs:,.0f} kernels where {one.runs:,.0f} are predicted" if many else ""


def is_unfused(one: OperatorTimes) -> bool:
    """Whether kernels of an unfused backend run attention that is predicted as one kernel."""
    return one.kind == "attention" and of_unfused_attention(one.kernels)


def of_operator(found: Comparison, one: OperatorTimes) -> str:
    """The first remedy that names of the kernels of an operator suggest."""
    if one.kind == "collective":
        return "check the link (nvidia-smi topo -m, nvidia-smi nvlink -s) and whether the engine's own all-reduce is on"
    if _falls_back(one):
        return f"{one.dtype} was expected and 16-bit kernels ran: look for the fallback in the engine's log"
    if backend := _other_backend(one):
        return backend
    if found.phases and too_many(one, found.passes):
        return "one kernel that does the work of all (a newer build, fused operators of the engine, torch.compile)"
    return _measuring(found, one)


def _other_backend(one: OperatorTimes) -> str:
    """Another attention backend, for an unfused one or one that runs on every chip; empty for other kernels."""
    if is_unfused(one):
        return FUSED_BACKEND
    if one.kind == "attention" and PORTABLE.search(" ".join(one.kernels)):
        return f"another attention backend of the engine: {next(iter(one.longest))[:40]} runs on every chip"
    return ""


def _measuring(found: Comparison, one: OperatorTimes) -> str:
    """The remedy for kernels whose names suggest none: measurements on this chip, or what to do with them."""
    if not found.phases:
        return "look at the clock and power of its samples, then llmviewer calibrate fit, which learns from them"
    if one.borrowed:
        return f"llmviewer calibrate run on this chip: the prediction has constants of {one.borrowed} and may be wrong"
    return "measure this kernel here (llmviewer calibrate run), or run another version of the engine"


def _falls_back(one: OperatorTimes) -> bool:
    """Whether 16-bit kernels run an operator of which 8-bit or 4-bit ones are predicted."""
    kernels = " ".join(name for name in one.kernels if kind_of(name) in ("matmul", "experts"))
    return one.dtype in NARROW and bool(HALF.search(kernels)) and not EIGHT_BIT.search(kernels)


def of_waiting(found: Comparison, chosen: Configuration, *, on_host: bool) -> tuple[str, str]:
    """Why the device is idle within passes, and what to try.  on_host: operators on the processor were recorded."""
    longest = longest_wait(found)
    if on_host:
        return "the framework takes time between operators on the processor", f"torch.compile, or {FASTER_HOST}"
    if longest is not None and longest.name == PREPARE:
        return "the device waits for the host before a pass", "look at what the host does: scheduling, copies of inputs"
    if found.linked <= SINGLY:
        return "the device is idle between kernels of a pass", "look at what runs on the host meanwhile"
    text = "the host launches kernels one by one and the device waits for it"
    return text, _of_launches(chosen, found.seen.tokens)


def _of_launches(chosen: Configuration, tokens: float) -> str:
    """Remedy to try for launches one by one.  tokens: of a pass."""
    if chosen.options.enforce_eager:
        return f"{FASTER_HOST}; CUDA graphs, which --enforce-eager turns off, have no such launches"
    if chosen.system.engine.graph_tokens == 0.0:
        return f"torch.compile with CUDA graphs, an engine that captures them, or {FASTER_HOST}"
    if tokens > chosen.system.engine.graph_tokens:
        return f"piecewise CUDA graphs or torch.compile for passes of prompts, or {FASTER_HOST}"
    return "CUDA graphs: remove --enforce-eager, or raise the largest captured batch size"

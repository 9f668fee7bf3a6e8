"""Rates of a host's CPU by the instructions of its kernels."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.errors import UserError
from llmviewer.hardware.chip import Chip, Host
from llmviewer.timing.host_copies import has_amx


def without_amx(host: Host) -> Chip:
    """The CPU of a host without its matrix units: products take the rate of its vector units in fp32.

    Raises UserError where the CPU is unknown or has no matrix units.  Source: KTransformers 0.2 computes experts
    without AMX, 0.3 with it: https://github.com/kvcache-ai/ktransformers, doc/en/DeepseekR1_V3_tutorial.md
    """
    cpu = host.cpu
    if cpu is None or not has_amx(cpu):
        why = "its CPU rates are unknown" if cpu is None else "its rates are those of vector instructions already"
        raise UserError(f"--offload instructions: avx512 needs a host with AMX; {host.name} has none: {why}")
    figures = {**cpu.figures, "matrix_flops_per_s.fp32": cpu.figures["vector_flops_per_s.fp32"]}
    return replace(cpu, matrix_flops_per_s={"fp32": cpu.vector_flops_per_s["fp32"]}, figures=figures)

"""Orderings that hold between the kernels of all shipped profiles, whichever rows they were fitted to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from llmviewer import models
from llmviewer.calibrate.fit import predicted_seconds, with_constants
from llmviewer.calibrate.tables import RowGroup, row_groups, with_default_columns
from llmviewer.core import data
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.ops.gemm import is_routed
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize
from llmviewer.timing import profile as profiles
from llmviewer.timing import roofline
from llmviewer.timing.calibrated import calibrated
from llmviewer.timing.kernels.experts import FAMILY
from llmviewer.timing.lending import OWN_USE_ONLY, UNLENT_SUFFIXES
from llmviewer.timing.profile import Fit, Profile
from llmviewer.timing.roofline import ideal

PROFILES = [profiles.load(path) for path in sorted(data.folder(profiles.FOLDER).glob("*.yaml"))]
IDS = [Path(profile.path).stem for profile in PROFILES]
#: Layers of experts: hidden size, intermediate size, choice, experts, devices.
LAYERS = (
    (4096, 14336, 2, 8, 1),
    (2048, 768, 8, 128, 1),
    (7168, 2048, 8, 256, 8),
    (5120, 8192, 1, 16, 2),
    (2880, 2880, 4, 128, 1),
)
#: Tokens with which reading the weights takes most of the time.
FEW_TOKENS = (16, 64, 256)
#: Variant of a fit -> format in a table.
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "w4a16": "int4_wo"} | {
    variant: name for name, variant in (("fp8", "fp8"), ("fp8_block", "fp8-block"), ("nvfp4", "fp4"),
                                        ("w4a16_mxfp4", "w4a16-mxfp4"), ("w4a8_mxfp4_mxfp8", "w4a8-mxfp4"))
}  # fmt: skip


def layer(chip: Chip, variant: str, sizes: tuple[int, ...]) -> RowGroup:
    """Rows of one layer of experts with few tokens."""
    hidden, inter, chosen, experts, devices = sizes
    frame = pd.DataFrame(
        [{"device": chip.name, "engine": "none", "dtype": DTYPES[variant], "tokens": tokens, "hidden": hidden,
          "inter": inter, "topk": chosen, "experts": experts, "tp": devices, "latency_us": 1.0}
         for tokens in FEW_TOKENS]
    )  # fmt: skip
    (found,) = row_groups(with_default_columns(frame), chip)
    assert isinstance(found, RowGroup)
    return found


def is_covered(fit: Fit, rows: RowGroup) -> bool:
    """Whether the fit has rows as wide and as deep as these."""
    known = FAMILY.quantities(rows.operators[-1], rows.chip)
    ends = ((fit.range[name], np.asarray(known[name])) for name in ("n", "k"))
    return all(bool(np.all((low <= value) & (value <= high))) for (low, high), value in ends)


@pytest.mark.parametrize("profile", PROFILES, ids=IDS)
def test_no_kernel_of_experts_that_serves_others_reads_weights_at_half_the_rate_of_another(profile: Profile) -> None:
    """Kernels timed untuned, or with weights in another format, must not serve an engine as if they were its own."""
    chip = specs.load(profile.chip)
    served = [
        (v, e)
        for v, e in profile.fits_of(FAMILY.name)
        if v in DTYPES and not e.endswith(UNLENT_SUFFIXES) and "-" not in e
    ]
    for variant in dict.fromkeys(variant for variant, _ in served):
        fits = [profile.fit(f"{FAMILY.name}/{v}/{e}") for v, e in served if v == variant]
        for rows in (layer(chip, variant, sizes) for sizes in LAYERS):
            times = {
                fit.engine: predicted_seconds(rows, with_constants(fit.family, fit.constants, ideal))[0]
                for fit in fits
                if is_covered(fit, rows)
            }
            best = np.min(list(times.values()), axis=0) if times else np.inf
            slow = {engine: time / best for engine, time in times.items() if np.any(time > 2.0 * best)}
            assert not slow, f"{variant} of {profile.chip}"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("profile", PROFILES, ids=IDS)
def test_experts_of_fewer_bits_take_no_longer_to_read(profile: Profile, engine: str) -> None:
    """16 tokens choose 10 or more of 16 experts of Scout, which are read in full."""
    chip = specs.load(profile.chip)
    efficiency = calibrated(chip, engine)
    graph = models.load("llama-4-scout").graph(decode(16.0, 1024.0))

    def seconds(scheme: str) -> float:
        converted = quantize(parse_scheme(scheme))(graph) if scheme else graph
        operators = [op for _, op in converted if is_routed(op)]
        return sum(
            float(np.sum(roofline.time_operator(op, chip, efficiency, op.traffic_bytes).time_s)) for op in operators
        )

    plain = seconds("")
    assert seconds("w4a16") < plain
    if "fp8" in chip.matrix_flops_per_s:
        assert all(seconds(scheme) < plain for scheme in ("fp8", "fp8-block"))


#: Variant -> largest ratio between the products of engines on one chip: all run one library in 16 bit; in 8 and 4 bit
#: SGLang on an RTX PRO 6000 and TensorRT-LLM with few rows are twice as slow as vLLM, as their rows are.
SPREAD = {"bf16": 1.35, "fp8": 2.2, "fp4": 2.2}


@pytest.mark.parametrize("variant", SPREAD)
@pytest.mark.parametrize("profile", PROFILES, ids=IDS)
def test_engines_multiply_alike_on_one_chip(profile: Profile, variant: str) -> None:
    chip, sizes = specs.load(profile.chip), ((4096, 4096), (28672, 8192), (8192, 28672))
    frame = pd.DataFrame(
        [{"device": chip.name, "engine": "none", "dtype": DTYPES[variant], "m": m, "n": n, "k": k, "latency_us": 1.0}
         for m in (1, 16, 256, 4096) for n, k in sizes]
    )  # fmt: skip
    times = []
    for own, engine in profile.fits_of("gemm"):
        if own == variant and "-" not in engine and engine != OWN_USE_ONLY:
            (rows,) = row_groups(with_default_columns(frame), chip)
            assert isinstance(rows, RowGroup)
            constants = profile.fit(f"gemm/{variant}/{engine}").constants
            product = replace(rows, operators=rows.operators[-1:])
            times.append(predicted_seconds(product, with_constants("gemm", constants, ideal))[0])
    assert not times or bool(np.all(np.max(times, axis=0) <= SPREAD[variant] * np.min(times, axis=0)))

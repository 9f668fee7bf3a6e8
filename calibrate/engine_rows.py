"""Rows of published figures on which engine presets are fitted, and those that say nothing about an engine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from llmviewer.calibrate.e2e_rows import INFERENCEX, RequestCase, case_of, is_burst
from llmviewer.core.errors import UserError

#: Parts of the names of models that InferenceX runs with and without multi-token prediction.
DRAFTING = ("deepseek", "glm-5", "qwen3.5")


def cases_of(frame: Any) -> dict[int, RequestCase]:
    """Cases of the rows that can be parsed."""
    found = {}
    for at, row in enumerate(frame.to_dict("records")):
        with suppress(UserError):  # `calibrate validate` reports the others with the reason
            found[at] = case_of(row)
    return found


def is_known_broken(row: Mapping[str, Any]) -> bool:
    """Whether a row is known to be broken: llama.cpp's 16-bit prefill on an A100 SXM."""
    prompts = row["output_len"] == 0 and row.get("weight_dtype") == "fp16"
    return bool(prompts and row["device"] == "a100_sxm" and str(row["engine"]).startswith("llama.cpp"))


def has_uncertain_kernels(case: RequestCase) -> bool:
    """Whether a case's kernels are further off than an engine's constants: the 4-bit experts of gpt-oss.

    Their fits rest on a few dozen rows, with errors of 17 to 22 %; llama.cpp and MLX have kernels of their own.
    Constants are not fitted to them, nor to first tokens of runs of which other tokens may be drafted; the errors and
    intervals of a preset include the former.
    """
    return ("gpt-oss" in case.model and case.engine not in ("llama.cpp", "mlx-lm")) or is_of_drafting(case)


def is_of_drafting(case: RequestCase) -> bool:
    """Whether a row is a first token of runs of which other tokens may be drafted: they say what a request takes."""
    return case.metric == "ttft_ms" and case.per_user < np.inf and any(name in case.model for name in DRAFTING)


def may_draft(row: Mapping[str, Any]) -> bool:
    """Whether tokens of a row may be drafted: InferenceX mixes runs with and without multi-token prediction.

    First tokens are alike with and without.
    """
    model, note = str(row["model"]).lower(), str(row.get("note"))
    return INFERENCEX in note and any(name in model for name in DRAFTING) and row["metric"] != "ttft_ms"


def has_unknown_load(row: Mapping[str, Any]) -> bool:
    """Whether a row is a first token under a load that nothing states: with or without a common start, in whose steps
    prompts meet or not, behind a front end or not (aiconfigurator's own runs wait 90 ms more than InferenceX's)."""
    note = str(row.get("note"))
    known = INFERENCEX in note or is_burst(row, note)
    return row["metric"] == "ttft_ms" and "continuous batching" in note and not known


#: Tests for rows that say nothing about an engine.
UNUSED_ROWS = (is_known_broken, may_draft, has_unknown_load)

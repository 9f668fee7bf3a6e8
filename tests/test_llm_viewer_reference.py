"""Every number LLM-Viewer prints for a 16-bit model against ours: they differ only where it is known to be wrong.

../shared/llm_viewer_reference has its printed numbers (no code); test_faults_of_others.py has a test for each fault.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .answers import analyze

FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "llm_viewer_reference"
REFERENCES = sorted(FOLDER.glob("*.json"))
pytestmark = pytest.mark.skipif(not REFERENCES, reason="the numbers of LLM-Viewer are not here")
#: LLM-Viewer's columns -> ours.
COLUMNS = {
    "OPs": "flops",
    "load_weight": "weight_read_bytes",
    "load_act": "activation_read_bytes",
    "store_act": "activation_write_bytes",
    "load_kv_cache": "kv_read_bytes",
    "store_kv_cache": "kv_write_bytes",
}
NAMES = {"out_proj": "o_proj", "fused_attention": "attention"}
#: (operator, column) that it counts wrong -> its number over ours (None: depends on the lengths), and the reason.
FAULTS: dict[tuple[str, str], tuple[float | None, str]] = {
    ("lm_head", "OPs"): (0.5, "one operation per multiply-add"),
    ("lm_head", "load_act"): (None, "one sequence, whatever the batch"),
    ("lm_head", "store_act"): (None, "one sequence, whatever the batch"),
    ("mlp_act", "OPs"): (None, "hidden elements, not intermediate ones; 2 operations for SiLU and product"),
    ("mlp_act", "load_act"): (None, "hidden elements, not intermediate ones"),
    ("mlp_act", "store_act"): (None, "hidden elements, not intermediate ones"),
    ("attn_add", "load_act"): (0.5, "one operand of two"),
    ("mlp_add", "load_act"): (0.5, "one operand of two"),
    ("attn_norm", "load_weight"): (0.0, "weights of norms are never read"),
    ("mlp_norm", "load_weight"): (0.0, "weights of norms are never read"),
    ("k_proj", "store_act"): (0.0, "no rope: k_proj writes the cache itself"),
    ("k_proj", "store_kv_cache"): (None, "no rope: k_proj writes the cache itself"),
    ("fused_attention", "OPs"): (None, "no causal mask: the full square"),
    ("fused_attention", "load_kv_cache"): (None, "every row block reads device memory"),
    ("fused_attention", "store_act"): (None, "the output is sized by the length, not by head_dim"),
}
#: Operators that it does not have.
ABSENT = {"embedding", "rope", "final_norm"}


def cases(path: Path) -> list[dict[str, Any]]:
    records = json.loads(path.read_text())["records"]
    return [case for case in records if (case["w_bit"], case["a_bit"], case["kv_bit"]) == (16, 16, 16)]


@pytest.mark.parametrize("path", REFERENCES, ids=lambda path: path.stem)
def test_differences_from_llm_viewer_are_its_known_faults(path: Path) -> None:
    reference, seen = json.loads(path.read_text()), set()
    for case in cases(path):
        requested = {"batch_size": case["batchsize"], "input_len": case["seqlen"]}
        kind = "flash" if case["use_flashattention"] else "eager"
        found = analyze(reference["model"], "a6000", **requested, attention=kind)
        for stage in ("prefill", "decode"):
            ours = {row["name"]: row for row in found.stage(stage)["operators"]}
            assert set(ours) - {NAMES.get(name, name) for name in case[stage]} == ABSENT
            for name, numbers in case[stage].items():
                theirs = dict(zip(reference["columns"], numbers, strict=True))
                for column, field in COLUMNS.items():
                    right = ours[NAMES.get(name, name)][field]
                    if theirs[column] == right:
                        continue
                    ratio, _ = FAULTS[name, column]  # a KeyError here is an unexplained difference
                    assert ratio is None or theirs[column] == pytest.approx(ratio * right)
                    seen.add((name, column))
    assert seen == set(FAULTS)

"""Configs of draft heads, embedders and classifiers are read as what they are, not as causal language models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode
from llmviewer.models.load import parse

LLAMA = dict(data.read_yaml(data.folder("model_configs") / "llama-2-7b.yaml")["config"])
#: Parameters of Llama-2-7b without its lm_head of 32,000 x 4,096.
BODY = 6738415616 - 32000 * 4096


def named(architecture: str, **fields: Any) -> dict[str, Any]:
    return {**LLAMA, "architectures": [architecture], **fields}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        (named("LlamaForCausalLMEagle3", draft_vocab_size=32000), "EAGLE-3"),
        (named("LlamaForCausalLM", draft_vocab_size=32000), "EAGLE-3"),
        (named("EagleLlamaForCausalLM"), "EAGLE"),
        (named("DFlashDraftModel", dflash_config={"target_layer_ids": [1]}), "DFlash"),
        (named("QwenDFlareDraftModel"), "DFlash"),
        (named("DSparkDraftModel"), "DSpark"),
        (named("DominoDraftModel"), "Domino"),
        (named("DeepSeekMTPModel", model_type="deepseek_mtp"), "MTP"),
        (named("MedusaModel", medusa_num_heads=4), "Medusa"),
    ],
)
def test_a_draft_head_is_named_in_one_line(fields: dict[str, Any], kind: str) -> None:
    with pytest.raises(UserError, match=rf"is a draft head \({kind}\), not a language model of its own"):
        parse(fields, "mine")


@pytest.mark.parametrize(
    ("fields", "head"),
    [
        (named("LlamaModel"), 0),
        (named("LlamaForSequenceClassification", num_labels=5), 5 * 4096),
        (named("LlamaForSequenceClassification", id2label={"0": "no", "1": "yes", "2": "maybe"}), 3 * 4096),
        (named("LlamaForTokenClassification", num_labels=2), 2 * 4096 + 2),
        (named("LlamaForRewardModel"), 4096),
        (named("LlamaForCausalLM"), 32000 * 4096),
    ],
)
def test_a_model_has_the_head_of_its_class(fields: dict[str, Any], head: int) -> None:
    """An embedder ends at the final norm; a classifier has hidden x labels; a causal model hidden x vocabulary."""
    model = parse(fields, "mine")
    assert model.parameters == BODY + head
    names = [op.name for op in model.graph(decode(1.0, 8.0)).blocks[-1].operators]
    assert names == (["final_norm", "lm_head"] if head else ["final_norm"])


def head_file(folder: Path, **fields: Any) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(named("LlamaForCausalLMEagle3", num_hidden_layers=1, draft_vocab_size=16000, **fields)))
    return str(path)


def test_a_head_of_a_file_is_priced_with_its_own_sizes(tmp_path: Path) -> None:
    """EAGLE-3 for Llama-2-7b, h 4,096, f 8,192, 8 of 32 KV heads: fc 3 h h; q from 2 h, k and v from 2 h to a quarter;
    o h h; MLP 3 h f; norms 4 h; its own head over 16,000 tokens."""
    h, f, kv = 4096, 8192, 1024
    head = 3 * h * h + 2 * h * (h + 2 * kv) + h * h + 3 * h * f + 4 * h + 16000 * h
    path = head_file(tmp_path, intermediate_size=f, num_key_value_heads=8)
    found = lv.analyze("llama-2-7b", "a100-sxm-80gb", speculative=f"draft={path},tokens=3,acceptance=0.7")
    plain = lv.analyze("llama-2-7b", "a100-sxm-80gb")
    added = found.memory["weights_bytes"] - plain.memory["weights_bytes"]
    assert added == pytest.approx(2 * head, rel=1e-6)


def test_a_head_for_another_width_is_one_line(tmp_path: Path) -> None:
    path = head_file(tmp_path)
    with pytest.raises(UserError, match="the head has 4096 hidden elements, llama-2-13b 5120"):
        lv.analyze("llama-2-13b", "a100-sxm-80gb", speculative=f"draft={path},tokens=3,acceptance=0.7")

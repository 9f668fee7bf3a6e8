"""Configs of draft heads other than EAGLE's, priced on their target: rounds, weights, caches and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError

#: A drafter of blocks for Llama-2-7b: 3 layers of h 4,096, f 8,192, 8 of 32 KV heads of 128; states of 5 layers.
DFLASH: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 8192,
    "num_hidden_layers": 3,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "block_size": 8,
    "num_target_layers": 32,
    "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 8, 15, 22, 29]},
}
H, F, KV, V = 4096, 8192, 1024, 32000
#: fc 5 h h and its norm; a layer: q, o h h, k, v h kv, QK-norm 2 x 128, MLP 3 h f, norms 2 h; the final norm.
WEIGHTS = 5 * H * H + H + 3 * (2 * H * H + 2 * H * KV + 256 + 3 * H * F + 2 * H) + H


def changed(**section: Any) -> dict[str, Any]:
    return {**DFLASH, "dflash_config": {**DFLASH["dflash_config"], **section}}


def analyzed(folder: Path, fields: dict[str, Any], options: str, target: str = "llama-2-7b") -> lv.Result:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return lv.analyze(target, "a100-sxm-80gb", speculative=f"draft={path},{options}")


def added_weights(found: lv.Result) -> float:
    plain = lv.analyze("llama-2-7b", "a100-sxm-80gb")
    return float(found.memory["weights_bytes"] - plain.memory["weights_bytes"]) / 2.0


def test_a_block_drafter_has_its_own_layers_and_the_tables_of_its_target(tmp_path: Path) -> None:
    """Keys and values of the block and of the target's states have the same weights, stored once."""
    assert added_weights(analyzed(tmp_path, DFLASH, "acceptance=0.5")) == pytest.approx(WEIGHTS, rel=1e-9)


def test_a_block_drafter_runs_one_pass_a_round(tmp_path: Path) -> None:
    """A block of 8 holds the known token and 7 drafts: E = 1 + 0.5 + ... + 0.5^7; one pass whatever the number."""
    found = analyzed(tmp_path, DFLASH, "acceptance=0.5")
    (states, block) = found.to_dict()["generation"]["drafts"]
    assert (states["passes"], block["passes"]) == (1, 1)
    assert block["new_tokens"] == 8
    assert states["new_tokens"] == pytest.approx(2 - 0.5**7)


def test_a_markov_head_runs_once_for_every_token(tmp_path: Path) -> None:
    """DSpark predicts at the known token too: 8 drafts of a block of 8; r 256: 2 V r, and h + r + 1 for confidence."""
    fields = {**changed(markov_rank=256, enable_confidence_head=True), "architectures": ["DSparkDraftModel"]}
    found = analyzed(tmp_path, fields, "acceptance=0.5")
    assert found.to_dict()["generation"]["drafts"][2]["passes"] == 8
    assert added_weights(found) == pytest.approx(WEIGHTS + 2 * V * 256 + H + 256 + 1, rel=1e-9)


def test_a_recurrent_head_runs_once_for_every_token_after_the_prefix(tmp_path: Path) -> None:
    """Domino: 7 drafts, of which the first is plain; a GRU of 512 has 3 x 512 (h + 512), then h + 512 -> 64 -> V."""
    fields = {
        **changed(emb_dim=64, gru_hidden_dim=512, pure_draft_prefix_len=1),
        "architectures": ["DominoDraftModel"],
    }
    found = analyzed(tmp_path, fields, "acceptance=0.5")
    assert found.to_dict()["generation"]["drafts"][2]["passes"] == 6
    head = 3 * 512 * (H + 512) + (H + 512) * 64 + 64 * V
    assert added_weights(found) == pytest.approx(WEIGHTS + head, rel=1e-9)


def test_medusa_heads_of_a_file_are_those_of_the_option(tmp_path: Path) -> None:
    found = analyzed(
        tmp_path, {"architectures": ["MedusaModel"], "medusa_num_heads": 3, "medusa_num_layers": 2}, "nodes=9"
    )
    same = lv.analyze("llama-2-7b", "a100-sxm-80gb", speculative="medusa,heads=3,layers=2,nodes=9")
    assert found.tpot_s == same.tpot_s
    assert added_weights(found) == pytest.approx(3 * (2 * (H * H + H) + V * H), rel=1e-9)


def test_a_speculator_of_a_file_is_that_of_the_option(tmp_path: Path) -> None:
    fields = {"architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": H, "inner_dim": 3072, "n_predict": 4}
    found = analyzed(tmp_path, fields, "acceptance=0.5")
    same = lv.analyze("llama-2-7b", "a100-sxm-80gb", speculative="speculator,heads=4,inner=3072,acceptance=0.5")
    assert found.tpot_s == same.tpot_s


def test_the_module_of_a_file_is_that_of_its_target(tmp_path: Path) -> None:
    fields = {"architectures": ["DeepSeekMTPModel"], "hidden_size": H, "num_nextn_predict_layers": 1}
    found = analyzed(tmp_path, fields, "tokens=1")
    assert found.tpot_s == lv.analyze("llama-2-7b", "a100-sxm-80gb", speculative="mtp,tokens=1").tpot_s


@pytest.mark.parametrize(
    ("fields", "options", "line"),
    [
        ({**DFLASH, "hidden_size": 5120}, "acceptance=0.5", "the head has 5120 hidden elements, llama-2-7b 4096"),
        ({**DFLASH, "num_target_layers": 36}, "acceptance=0.5", "for a target of 36 layers, llama-2-7b has 32"),
        (DFLASH, "tokens=8,acceptance=0.5", "tokens is 8; a block of .* has 7"),
        (DFLASH, "tokens=2", "acceptance is missing"),
        (DFLASH, "topk=2,acceptance=0.5", "unknown parameter of .* 'topk'; allowed: acceptance, tokens"),
        (changed(attention_mode="mla"), "acceptance=0.5", "attention_mode is 'mla'; priced: gqa"),
        (changed(conv_kernel_size=4), "acceptance=0.5", "field 'conv_kernel_size' may add weights"),
        ({"architectures": ["MedusaModel"]}, "nodes=9", "missing field 'medusa_num_heads'"),
        ({"medusa_num_heads": 4, "hidden_size": 5120}, "nodes=9", "the head has 5120 hidden elements"),
    ],
)
def test_a_head_that_does_not_fit_is_one_line(tmp_path: Path, fields: dict[str, Any], options: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        analyzed(tmp_path, fields, options)

"""Multimodal configs: the language model and, for known towers, the whole checkpoint equal the library's own class."""

from __future__ import annotations

import json
from typing import Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.models.load import from_fields

#: Wrappers whose towers are counted exactly.
EXACT = (
    "gemma3 internvl llava llava_next llava_onevision mistral3 qianfan_ocr qwen2_5_vl qwen2_vl qwen3_5 qwen3_vl "
    "qwen3_vl_moe"
).split()
#: A language model of 2 layers: 2 (4 8^2 + 3 8 16 + 2 8) + 8 + 2 32 8 = 1832 parameters.
TEXT = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
PARAMETERS = 2 * (4 * 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8 + 2 * 32 * 8


@pytest.mark.parametrize("model_type", EXACT)
def test_default_config_has_the_parameters_of_the_library(model_type: str) -> None:
    """Language model and tower together are all parameters of the library's class, on the meta device."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES

    config = transformers.AutoConfig.for_model(model_type)
    with torch.device("meta"):
        library = getattr(transformers, NAMES[model_type])(config)
    ours = from_fields(json.loads(config.to_json_string(use_diff=False)))
    assert ours.parameters + ours.vision_parameters == sum(p.numel() for p in library.parameters())


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "llava", "text_config": TEXT},
        {"model_type": "internvl_chat", "llm_config": TEXT, "ps_version": "v2"},
        {"model_type": "deepseek_vl_v2", "language_config": TEXT},
        {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": TEXT, "audio_config": {}}},
        {"model_type": "made_last_month", "text_config": TEXT, "adapter": {"layers": 3}},
        {**TEXT, "model_type": "llava_llama", "mm_hidden_size": 4, "mm_projector_type": "mlp2x_gelu"},
        {**TEXT, "model_type": "minicpmv", "version": 2.5, "query_num": 96},
    ],
)
def test_the_language_model_is_found_in_any_section(fields: dict[str, Any]) -> None:
    """In `text_config`, `llm_config`, `language_config`, a thinker, or beside the wrapper's own fields."""
    model = from_fields(fields)
    assert model.parameters == PARAMETERS
    assert any("only the language model is counted" in note for note in model.notes)


def test_a_section_leaves_out_what_its_class_has() -> None:
    """LLaVA-1.5-7b states only the vocabulary of its Llama: 32,064 rows, 64 more than Llama-2-7b has, twice."""
    model = from_fields({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert model.parameters == 6738415616 + 2 * 64 * 4096
    assert any("hidden_size 4096" in note for note in model.notes)


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(True, None, True), (False, None, False), (None, True, True), (True, False, True), (False, True, True)],
)
def test_the_head_is_tied_where_the_wrapper_or_the_section_says_so(outer: object, inner: object, tied: object) -> None:
    stated = {"tie_word_embeddings": inner} if inner is not None else {}
    text = {name: value for name, value in TEXT.items() if name != "tie_word_embeddings"}
    wrapper = {"tie_word_embeddings": outer} if outer is not None else {}
    model = from_fields({"model_type": "llava", "text_config": {**text, **stated}, **wrapper})
    assert model.head.tied is tied


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"model_type": "llava", "text_config": {**TEXT, "model_type": "new"}}, "has the model_type 'new'"),
        ({"model_type": "llava", "text_config": {**TEXT, "magic": 1}}, "field 'magic' is not supported"),
        ({"model_type": "mistral3", "num_layers": 1}, "missing field 'hidden_size'"),
        ({**TEXT, "model_type": "minicpmv", "version": 9}, "supported: 2.5, 2.6"),
    ],
)
def test_an_unknown_language_model_is_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        from_fields(fields)

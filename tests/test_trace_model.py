"""--trace-model reads transformers' own class: equal to the parser where there is one, a refusal where it is unsure."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer import models
from llmviewer.api.configuration import configuration
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode, prefill
from llmviewer.models.load import parse

pytest.importorskip("torch")
pytest.importorskip("transformers")
from llmviewer.core.dtypes import get_dtype
from llmviewer.tracing.load import load_traced
from llmviewer.tracing.traced import traced

from .certificate.library_defaults import default_config

DENSE = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt2", "gpt_neox", "olmo2", "starcoder2")
EXPERTS = ("mixtral", "qwen3_moe")


def cut(model_type: str) -> dict[str, Any]:
    """The library's default config with 8 layers, which hold every kind."""
    fields = default_config(model_type)
    name = "n_layer" if "n_layer" in fields else "num_hidden_layers"
    kinds = {"layer_types": fields["layer_types"][:8]} if fields.get("layer_types") else {}
    return {**fields, name: min(fields[name], 8), **kinds}


@pytest.mark.parametrize("model_type", [*DENSE, "phi3", *EXPERTS])
def test_a_known_family_is_traced_as_it_is_parsed(model_type: str) -> None:
    fields = cut(model_type)
    ours = parse(fields, model_type)
    found = traced(fields, model_type, ours.dtype)
    assert found.parameters == ours.parameters
    assert found.active_parameters == ours.active_parameters
    for step in (prefill(2.0, 64.0), decode(2.0, 5000.0)):  # 5000 tokens are beyond every window
        assert _work(found, step) == _work(ours, step)
        assert _cache(found, step) == _cache(ours, step)


def _work(model: models.Model, step: Any) -> list[tuple[Any, ...]]:
    """Every operator in order: its name, FLOPs and bytes by the layers that repeat it."""
    return [
        (block.repeats, op.name, op.matmul_flops, op.vector_flops, op.special_ops, op.traffic_bytes)
        for block, op in model.graph(step)
    ]


def _cache(model: models.Model, step: Any) -> list[tuple[int, str, float, float]]:
    return [
        (block.repeats, state.name, state.per_token, state.window)
        for block in model.graph(step).blocks
        for state in block.states
    ]


@pytest.mark.parametrize(
    ("model_type", "line"),
    [
        ("mamba", "no KV cache"),
        ("bloom", "BloomForCausalLM never calls the library's attention function"),
    ],
)
def test_an_architecture_that_is_not_understood_is_refused_with_its_module(model_type: str, line: str) -> None:
    with pytest.raises(UserError, match=line):
        traced(cut(model_type), model_type, get_dtype("fp16"))


def test_a_type_that_the_library_does_not_know_is_refused() -> None:
    with pytest.raises(UserError, match="unknown model_type 'llamma'"):
        load_traced({**cut("llama"), "model_type": "llamma"}, "auto")


def test_the_option_reads_the_class_and_says_so() -> None:
    notes = configuration(cut("qwen3"), "h100", trace_model=True).model.notes
    assert any("Qwen3ForCausalLM by --trace-model: attention from Qwen3Attention" in note for note in notes)
    assert any("'qwen3' has a parser, which --trace-model leaves unused" in note for note in notes)


def test_the_refusal_of_an_unknown_type_names_the_option_if_the_library_knows_it() -> None:
    """`reformer` is a folder of transformers and has no parser."""
    with pytest.raises(UserError, match="transformers knows it: try trace_model"):
        models.from_fields({"model_type": "reformer"})


def test_a_part_that_reads_too_little_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the claim of norms their weights belong to no part: the check of parameters names the module."""
    from llmviewer.tracing import parts

    monkeypatch.setattr(parts.Trace, "claim", lambda *_: None)
    with pytest.raises(UserError, match="parameters that no part reads"):
        traced(cut("llama"), "llama", get_dtype("fp16"))

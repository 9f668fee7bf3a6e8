"""Encoders: one bidirectional pass over the input, without a KV cache, a decode step or (embedders) a vocabulary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmviewer import cli
from llmviewer.core.errors import UserError
from llmviewer.core.workload import prefill
from llmviewer.models.load import from_fields, load
from llmviewer.models.model import Model

SMALL = {
    "model_type": "bert", "vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2,
}  # fmt: skip
#: Q, K, V, O: 4 (8 x 8 + 8); two norms: 2 x 16; MLP: 8 x 32 + 32 + 32 x 8 + 8.
LAYER = 4 * 72 + 32 + 552
#: Words, positions, segments, and their norm.
TABLES = (100 + 16 + 2) * 8 + 16


def _model(head: str, **fields: object) -> Model:
    return from_fields({**SMALL, "architectures": [f"Bert{head}"], **fields})


def _flops(model: Model, batch: float, tokens: float) -> tuple[float, float]:
    """Matmul FLOPs of one pass, and those of them that a mask hides."""
    graph = model.graph(prefill(batch, tokens))
    found = [(float(op.matmul_flops) * b.repeats, float(op.masked_flops) * b.repeats) for b, op in graph]
    return sum(f for f, _ in found), sum(m for _, m in found)


@pytest.mark.parametrize(
    ("head", "stored"),
    [
        ("Model", 8 * 8 + 8),  # the pooler, no vocabulary
        ("ForSequenceClassification", 8 * 8 + 8 + 8 * 2 + 2),  # pooler, two labels
        ("ForMaskedLM", 8 * 8 + 8 + 16 + 100),  # dense, norm, bias of the tied table
    ],
)
def test_the_head_is_what_architectures_names(head: str, stored: int) -> None:
    assert _model(head).parameters == TABLES + 2 * LAYER + stored


def test_an_unknown_head_is_refused() -> None:
    with pytest.raises(UserError, match="ForMaskedLM"):
        _model("ForPreTraining")


def test_every_token_sees_every_token_and_nothing_is_cached() -> None:
    """Two sequences of 5 tokens: linear 2 x 10 x (4 x 64 + 2 x 256) per layer; attention 2 x 2 x 25 x (8 + 8)."""
    model = _model("Model")
    layers = 2 * (2 * 10 * (4 * 64 + 2 * 256) + 2 * 2 * 25 * (8 + 8))
    pooler = 2 * 2 * 8 * 8  # the first token of each sequence
    assert _flops(model, 2.0, 5.0) == (layers + pooler, 0.0)
    assert all(not block.states for block in model.graph(prefill(2.0, 5.0)).blocks)


def test_a_masked_lm_head_works_on_every_token() -> None:
    """10 tokens through 8 x 8 and 8 x 100, instead of 2 through the pooler."""
    masked, pooled = _flops(_model("ForMaskedLM"), 2.0, 5.0)[0], _flops(_model("Model"), 2.0, 5.0)[0]
    assert masked - pooled == 2 * 10 * (64 + 800) - 2 * 2 * 64


#: Sizes of a small config under the names of BERT's class, and under those of DistilBERT's.
SIZES = {
    "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
DISTILLED = {"vocab_size": 1000, "dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128}


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert"])
@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_parameters_and_flops_equal_those_of_the_library(kind: str, head: str) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    config = getattr(transformers, f"{kind}Config")(**(DISTILLED if kind == "DistilBert" else SIZES))
    library = getattr(transformers, kind + head)(config)
    ids = torch.full((2, 48), 5)
    with counter, torch.no_grad():
        library(input_ids=ids)
    ours = from_fields({**config.to_dict(), "architectures": [kind + head]})
    assert ours.parameters == sum(p.numel() for p in library.parameters())
    assert _flops(ours, 2.0, 48.0)[0] == counter.get_total_flops()


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
def test_a_distilbert_without_sizes_has_those_of_its_class(head: str) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    with torch.device("meta"):
        library = getattr(transformers, f"DistilBert{head}")(transformers.DistilBertConfig())
    ours = from_fields({"model_type": "distilbert", "architectures": [f"DistilBert{head}"]})
    assert ours.parameters == sum(p.numel() for p in library.parameters())


def test_distilbert_is_bert_with_half_of_the_layers() -> None:
    """The catalogue's two models differ by six layers and by two segments of 768, counted by hand."""
    layer = 4 * (768 * 768 + 768) + 2 * 768 * 3072 + 3072 + 768 + 4 * 768
    assert load("bert-base").parameters - load("distilbert-base").parameters == 6 * layer + 2 * 768


def test_a_plain_distilbert_ends_at_its_last_layer(tmp_path: Path) -> None:
    """No pooler and no vocabulary: there is no block of a head, and a report is written."""
    fields = {**DISTILLED, "model_type": "distilbert", "max_position_embeddings": 16, "torch_dtype": "float16"}
    config, page = tmp_path / "config.json", tmp_path / "page.html"
    config.write_text(json.dumps({**fields, "architectures": ["DistilBertModel"]}))
    blocks = from_fields(json.loads(config.read_text())).graph(prefill(1.0, 8.0)).blocks
    assert [block.name for block in blocks] == ["embedding", "layer"]
    with pytest.raises(SystemExit, match="0"):
        cli.run(["report", str(config), "--hardware", "a100", "--input-len", "8", "--output-len", "1", "-o", str(page)])
    assert "mlp_norm" in page.read_text(encoding="utf-8")


def test_an_encoder_decodes_nothing() -> None:
    from llmviewer import analyze

    with pytest.raises(UserError, match="output_len 1"):
        analyze(_model("Model"), "h100-sxm", input_len=8, output_len=2)


def test_the_decode_stage_of_an_encoder_is_empty() -> None:
    from llmviewer import analyze

    decode = analyze(_model("Model"), "h100-sxm", input_len=8, output_len=1).to_dict()["stages"]["decode"]
    assert (decode["operators"], decode["flops"], decode["time_s"]) == ([], 0, 0)


def test_positions_of_roberta_begin_at_row_two() -> None:
    """A table of 514 rows takes inputs of up to 512 tokens."""
    assert from_fields({**SMALL, "model_type": "roberta", "max_position_embeddings": 514}).max_context == 512


@pytest.mark.parametrize(
    "words", ["report -o {}.html", "plot operators -o {}.png", "plot length -o {}.png", "trace -o {}.json"]
)
def test_pages_and_plots_show_the_single_pass(words: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**SMALL, "architectures": ["BertModel"], "torch_dtype": "float16"}))
    command, _, file = words.format(tmp_path / "page").partition(" -o ")
    asked = f"{command} {config} --hardware a100 --input-len 8 --output-len 1 -o {file}"
    with pytest.raises(SystemExit, match="0"):
        cli.run(asked.split())
    assert Path(file).stat().st_size > 1000

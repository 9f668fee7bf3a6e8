"""Default configs of the library's encoder-decoders: read, with the parameters and matmul FLOPs of its own code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.core.kinds import Kind
from llmviewer.core.running import ran
from llmviewer.core.workload import Step, after_input, decode, first_step
from llmviewer.models.load import from_fields
from llmviewer.models.model import Model

INPUT, BATCH = 40, 2
READ = (
    "bart blenderbot blenderbot-small m2m_100 marian mbart mt5 mvp pegasus plbart switch_transformers t5 umt5 "
    "whisper".split()
)  # fmt: skip
#: Named after `num_layers` and `num_decoder_layers`; the others after `encoder_layers` and `decoder_layers`.
LIKE_T5 = ("mt5", "switch_transformers", "t5", "umt5")
#: Encoder-decoders of text that are refused -> why.
REFUSED: dict[str, str] = {
    "bigbird_pegasus": "its encoder attends to blocks chosen at random",
    "fsmt": "two vocabularies",
    "led": "windows and global tokens in the encoder, with projections of their own",
    "longt5": "windows or summaries of blocks in the encoder",
    "nllb-moe": "experts in every fourth layer, which its class runs on every token for every other expert",
    "pegasus_x": "windows and global tokens in the encoder",
    "prophetnet": "predicts several tokens at once",
}


def _default(model_type: str) -> dict[str, Any]:
    library = pytest.importorskip("transformers")
    return dict(json.loads(library.AutoConfig.for_model(model_type).to_json_string(use_diff=False)))


def _device(model_type: str) -> str:
    """The device that a class runs on: which experts it calls depends on data, which the meta device does not have."""
    return "cpu" if model_type == "switch_transformers" else "meta"


def _library(config: Mapping[str, Any], device: str = "meta") -> Any:
    """The library's class with eager attention, on the meta device unless told otherwise."""
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    name = "AutoModelForSpeechSeq2Seq" if config["model_type"] == "whisper" else "AutoModelForSeq2SeqLM"
    fields = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device(device):
        own = transformers.AutoConfig.for_model(config["model_type"], **fields)
        return getattr(transformers, name).from_config(own, attn_implementation="eager").eval()


def _shallow(model_type: str) -> dict[str, Any]:
    """Two layers of the encoder and three of the decoder, at real widths."""
    config, t5 = _default(model_type), model_type in LIKE_T5
    depths = ("num_layers", "num_decoder_layers") if t5 else ("encoder_layers", "decoder_layers")
    small = {**config, **dict(zip(depths, (2, 3), strict=True))}
    return {**small, "max_source_positions": INPUT} if model_type == "whisper" else small


def _flops(model: Model, step: Step, *left_out: str) -> float:
    graph = ran(model.graph(step))
    kinds = (Kind.GEMM, Kind.ATTENTION)
    rows = [(block, op) for block, op in graph if op.kind in kinds and not block.name.startswith(left_out)]
    return sum(float(op.matmul_flops) * block.repeats for block, op in rows)


def _counted(run: Any) -> tuple[Any, int]:
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    torch = pytest.importorskip("torch")
    with counter, torch.no_grad():
        output = run()
    return output, counter.get_total_flops()


@pytest.mark.parametrize("model_type", READ)
def test_parameters_equal_those_of_the_library(model_type: str) -> None:
    """From the full default config, and from one that leaves every default to the class."""
    config = _default(model_type)
    theirs = sum(parameter.numel() for parameter in _library(config).parameters())
    assert from_fields(config).parameters == from_fields({"model_type": model_type}).parameters == theirs


@pytest.mark.parametrize("model_type", READ)
def test_matmul_flops_equal_those_of_the_library(model_type: str) -> None:
    """The encoder alone, the first pass of both halves, and a decode step with both caches."""
    torch = pytest.importorskip("torch")
    config = _shallow(model_type)
    device = _device(model_type)
    library, ours = _library(config, device), from_fields(config)
    token = torch.zeros(BATCH, 1, dtype=torch.long, device=device)
    given = {"input_ids": torch.zeros(BATCH, INPUT, dtype=torch.long, device=device)}
    if model_type == "whisper":  # two frames for each position
        given = {"input_features": torch.empty(BATCH, config["num_mel_bins"], 2 * INPUT, device=device)}
    encoded, encoder = _counted(lambda: library.get_encoder()(**given))
    first, prefill = _counted(lambda: library(**given, decoder_input_ids=token))
    cached = {"encoder_outputs": encoded, "past_key_values": first.past_key_values}
    _, step = _counted(lambda: library(**cached, decoder_input_ids=token))
    start = first_step(float(BATCH), float(INPUT))
    decoder = ("cross_keys", "decoder_", "head")
    assert _flops(ours, start, *decoder) == encoder
    assert _flops(ours, start) == prefill
    assert _flops(ours, after_input(decode(float(BATCH), 1.0), float(INPUT))) == step


@pytest.mark.parametrize("model_type", REFUSED)
def test_refused_encoder_decoders_are_refused(model_type: str) -> None:
    """Nothing stands in the list that is read by now."""
    with pytest.raises(UserError):
        from_fields(_default(model_type))

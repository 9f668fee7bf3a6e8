"""A checkpoint's folder: the headers of its safetensors files confirm the parameters that its config.json describes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmviewer import models
from llmviewer.analysis.memory import weights_bytes
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode
from llmviewer.result.describe import cache_growth
from tests.answers import refusal

#: Llama with h = 64, 4 query and 2 key-value heads of 16, 128 in the MLP, 2 layers, 100 tokens.
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "torch_dtype": "bfloat16",
    "hidden_size": 64,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
}
LINEAR = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
}
#: A layer: 2 x 64 x 64 + 2 x 32 x 64 + 3 x 128 x 64 and two norms; a table, a head, a norm.
PARAMETERS = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64 + 2 * 64) + 2 * 100 * 64 + 64

Tensors = dict[str, tuple[str, tuple[int, ...]]]


def outside() -> Tensors:
    """Names, dtypes and shapes of all tensors but the linear layers."""
    norms = {
        f"model.layers.{at}.{name}": (64,) for at in (0, 1) for name in ("input_layernorm", "post_attention_layernorm")
    }
    shapes = {**norms, "model.norm": (64,), "model.embed_tokens": (100, 64), "lm_head": (100, 64)}
    return {f"{name}.weight": ("BF16", shape) for name, shape in shapes.items()}


def linear(**parts: Any) -> Tensors:
    """All tensors, linear layers as `parts`: suffix -> function of (out, in) that returns dtype and shape."""
    return outside() | {
        f"model.layers.{at}.{name}.{suffix}": part(*shape)
        for at in (0, 1)
        for name, shape in LINEAR.items()
        for suffix, part in parts.items()
    }


PLAIN = linear(weight=lambda o, i: ("BF16", (o, i)))


def header(tensors: Tensors) -> bytes:
    entries = {name: {"dtype": kind, "shape": shape, "data_offsets": [0, 0]} for name, (kind, shape) in tensors.items()}
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return len(text).to_bytes(8, "little") + text


def folder(path: Path, tensors: Tensors, config: Mapping[str, Any] = CONFIG) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(header(tensors))
    return str(path)


def test_equal_numbers_need_no_note(tmp_path: Path) -> None:
    loaded = models.load(folder(tmp_path, PLAIN))
    assert (loaded.parameters, loaded.notes) == (PARAMETERS, ())


def test_a_folder_is_analyzed_by_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path / "tuned", PLAIN)
    assert main(["analyze", path, "--hardware", "rtx-4090", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"]["name"], found["model"]["parameters"], found["warnings"]) == ("tuned", PARAMETERS, [])


def test_a_mismatch_is_a_warning_with_both_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight new tokens in the table and in the head: 2 x 8 x 64 more parameters than config.json describes."""
    wider = {**PLAIN, **{f"{name}.weight": ("BF16", (108, 64)) for name in ("model.embed_tokens", "lm_head")}}
    note = f"the safetensors headers hold {PARAMETERS + 1024:,} parameters, config.json describes {PARAMETERS:,}"
    assert models.load(folder(tmp_path, wider)).notes == (f"{note}; the config is used",)
    assert main(["analyze", str(tmp_path), "--hardware", "rtx-4090"]) == 0
    assert f"{PARAMETERS + 1024:,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "tied"),
    [
        ({"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", (8,))}, False),
        ({"model.layers.2.self_attn.q_proj.weight": ("BF16", (64, 64))}, False),  # multi-token prediction
        ({"vision_tower.patch.weight": ("BF16", (64, 64)), "model.visual.x.weight": ("BF16", (9,))}, False),
        ({}, True),  # a tied head that is stored nevertheless
    ],
)
def test_buffers_and_other_parts_are_not_counted(extra: Tensors, tied: bool, tmp_path: Path) -> None:  # noqa: FBT001
    loaded = models.load(folder(tmp_path, {**PLAIN, **extra}, {**CONFIG, "tie_word_embeddings": tied}))
    assert (loaded.parameters, loaded.notes) == (PARAMETERS - 6400 * tied, ())


def compressed(kind: str, bits: int, group: int) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": kind, "strategy": "group", "group_size": group}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["lm_head"]}


#: Method -> (quantization_config, tensors of a linear layer); 8 numbers of 4 bit in an I32, 2 in a U8.
QUANTIZED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32},
        {
            "qweight": lambda o, i: ("I32", (i // 8, o)),
            "qzeros": lambda o, i: ("I32", (i // 32, o // 8)),
            "scales": lambda o, i: ("F16", (i // 32, o)),
            "g_idx": lambda _, i: ("I32", (i,)),
        },
    ),
    "gptq in 8 bit": (
        {"quant_method": "gptq", "bits": 8, "group_size": 32},
        {"qweight": lambda o, i: ("I32", (i // 4, o)), "scales": lambda o, i: ("F16", (i // 32, o))},
    ),
    "compressed-tensors": (
        compressed("int", 4, 32),
        {
            "weight_packed": lambda o, i: ("I32", (o, i // 8)),
            "weight_scale": lambda o, i: ("BF16", (o, i // 32)),
            "weight_shape": lambda *_: ("I64", (2,)),
        },
    ),
    "nvfp4": (
        compressed("float", 4, 16),
        {
            "weight": lambda o, i: ("U8", (o, i // 2)),
            "weight_scale": lambda o, i: ("F8_E4M3", (o, i // 16)),
            "weight_scale_2": lambda *_: ("F32", ()),
            "input_scale": lambda *_: ("F32", ()),
        },
    ),
    "fp8": (
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        {"weight": lambda o, i: ("F8_E4M3", (o, i)), "weight_scale_inv": lambda *_: ("F32", (1, 1))},
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        {
            "weight": lambda o, i: ("U8", (o * i // 2, 1)),
            "weight.absmax": lambda o, i: ("F32", (o * i // 64,)),
            "weight.quant_map": lambda *_: ("F32", (16,)),
            "weight.quant_state.bitsandbytes__nf4": lambda *_: ("U8", (80,)),
        },
    ),
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_packed_weights_count_as_the_parameters_they_hold(method: str, tmp_path: Path) -> None:
    stated, parts = QUANTIZED[method]
    loaded = models.load(folder(tmp_path, linear(**parts), {**CONFIG, "quantization_config": stated}))
    assert (loaded.parameters, loaded.notes) == (PARAMETERS, ())


def split(path: Path, *present: int) -> str:
    """A folder with an index of two files, of which some are present."""
    name = folder(path, {})
    (path / "model.safetensors").unlink()
    files = {tensor: f"model-{at % 2 + 1:05}-of-00002.safetensors" for at, tensor in enumerate(PLAIN)}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    for part in present:
        file = f"model-{part:05}-of-00002.safetensors"
        (path / file).write_bytes(header({tensor: PLAIN[tensor] for tensor in PLAIN if files[tensor] == file}))
    return name


def test_the_files_of_an_index_are_counted_together(tmp_path: Path) -> None:
    assert models.load(split(tmp_path, 1, 2)).notes == ()


def test_a_file_of_weights_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = Path(folder(tmp_path, PLAIN)) / "model.safetensors"
    before = weights.read_bytes()
    message = refusal(["analyze", str(tmp_path), "--hardware", "h100-sxm", "-o", str(weights)], capsys)
    assert "refusing to overwrite the input file" in message
    assert weights.read_bytes() == before


def test_missing_files_of_an_index_are_said(tmp_path: Path) -> None:
    (note,) = models.load(split(tmp_path, 2)).notes
    assert note.startswith("1 of 2 safetensors files listed in model.safetensors.index.json are missing")


def test_an_index_without_any_of_its_files_says_nothing(tmp_path: Path) -> None:
    assert models.load(split(tmp_path)).notes == ()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "has no safetensors header"),
        (b"\x00" * 8, "has no safetensors header"),
        ((2**63).to_bytes(8, "little") + b"{}", "has no safetensors header"),
        ((10**7).to_bytes(8, "little") + b"{}", "has no safetensors header"),
        ((2).to_bytes(8, "little") + b"[]", "holds a list; expected a mapping of fields"),
        ((3).to_bytes(8, "little") + b"{x}", "cannot be read as JSON"),
        (header({"x": ("F32", (-1,))}), "tensor 'x' has no shape"),
        (header({"x": ("F32", (10**30,))}), "tensor 'x' has no shape"),
        (header({"x": ("F32", (2**47,) * 30)}), "headers or their index are broken"),
        (header({f"layers.{'9' * 5000}.w": ("F32", (1,))}), "headers or their index are broken"),
    ],
)
def test_a_damaged_header_is_a_warning_and_the_config_is_used(content: bytes, reason: str, tmp_path: Path) -> None:
    path = folder(tmp_path, PLAIN)
    (tmp_path / "model.safetensors").write_bytes(content)
    loaded = models.load(path)
    assert loaded.parameters == PARAMETERS
    assert loaded.notes[0].startswith("the parameter count is not confirmed: ") and reason in loaded.notes[0]


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    path = folder(tmp_path, PLAIN)
    (tmp_path / "model.safetensors").unlink()
    os.mkfifo(tmp_path / "model.safetensors")
    assert "is not a file" in models.load(path).notes[0]


def test_an_adapter_beside_the_weights_is_not_counted_and_alone_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, PLAIN)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    (tmp_path / "adapter_model.safetensors").write_bytes(header({"x.lora_A.weight": ("F32", (8, 64))}))
    assert models.load(path).notes == ()
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"holds an adapter without a config.json; give the folder of its base model"):
        models.load(path)


@pytest.mark.parametrize("given", ["", "config.json"])
def test_formats_beside_a_config_are_read(given: str, tmp_path: Path) -> None:
    """ModelOpt's hf_quant_config.json states FP8 for weights and cache; the config's own formats come first.

    8-bit layers: a layer has 2 x 64 x 64 + 2 x 32 x 64 + 3 x 128 x 64 weights; 2 layers of 2 KV heads of 16.
    """
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    plain = models.load(str(tmp_path / given))
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    found = models.load(str(tmp_path / given))
    sizes = [weights_bytes(model.graph(decode(1.0, 0.0))) for model in (plain, found)]
    assert sizes[0] - sizes[1] == 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 128 * 64)
    growth = [cache_growth(model.graph(decode(1.0, 0.0)))["kv_cache_bytes_per_token"] for model in (plain, found)]
    assert growth == [2 * 2 * 2 * 16 * 2, 2 * 2 * 2 * 16]
    own = {"quant_method": "awq", "bits": 4, "group_size": 64}
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": own}))
    assert weights_bytes(models.load(str(tmp_path / given)).graph(decode(1.0, 0.0))) < sizes[1]


def test_modelslims_description_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    kinds = {f"model.layers.{n}.mlp.down_proj.weight": "W8A8_DYNAMIC" for n in range(2)}
    (tmp_path / "quant_model_description.json").write_text(json.dumps({"model_quant_type": "W8A8_DYNAMIC", **kinds}))
    found = models.load(str(tmp_path))
    assert weights_bytes(found.graph(decode(1.0, 0.0))) == 2 * PARAMETERS - 2 * 128 * 64

"""GGUF files: fields of the header -> config, tensor types -> stored bits; damaged and hostile files are refused."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path

import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.core.workload import decode, prefill
from llmviewer.models.gguf_config import ARCHITECTURES, FAMILIES
from tests.answers import refusal
from tests.gguf_files import LAYERS, LLAMA, MATRICES, NORMS, OUTSIDE, tensors, written

pytest.importorskip("gguf")

PLAIN = tensors({**MATRICES, **NORMS}, OUTSIDE)
#: Parameters of the small Llama: a layer has 2 x 512 x 512 + 2 x 512 x 128 + 3 x 512 x 1024 and two norms of 512.
LAYER = 2 * 512 * 512 + 2 * 512 * 128 + 3 * 512 * 1024
PARAMETERS = LAYERS * (LAYER + 2 * 512) + 2 * 512 * 1000 + 512


def mixed(name: str) -> str:
    """Formats as in Q4_K_M: some matrices of some layers and lm_head in six bits, norms in 32."""
    if "norm" in name:
        return "F32"
    return "Q6_K" if name.startswith(("output", "blk.0.attn_v", "blk.1.ffn_down")) else "Q4_K"


def one(kind: str) -> object:
    return lambda name: "F32" if "norm" in name else kind


def test_weights_are_the_bytes_of_the_files_tensors(tmp_path: Path) -> None:
    """Q4_K: 144 bytes per 256; Q6_K: 210 per 256."""
    result = lv.analyze(str(written(tmp_path / "small.gguf", PLAIN, mixed)), "rtx-4090")
    six = 512 * 1000 + 512 * 128 + 1024 * 512
    four = LAYERS * LAYER + 512 * 1000 - (six - 512 * 1000)
    norms = LAYERS * 2 * 512 + 512
    assert six + four + norms == PARAMETERS == result.analysis.model.parameters
    assert float(result.analysis.memory.weights_bytes) == six * 210 / 256 + four * 144 / 256 + norms * 4
    assert result.warnings == ()


@pytest.mark.parametrize(
    ("kind", "block", "size"),
    [("Q8_0", 32, 34), ("Q4_0", 32, 18), ("IQ2_XXS", 256, 66), ("MXFP4", 32, 17), ("F16", 1, 2), ("F32", 1, 4)],
)
def test_every_kind_of_tensor_has_the_bits_of_its_blocks(kind: str, block: int, size: int, tmp_path: Path) -> None:
    loaded = models.load(str(written(tmp_path / "one.gguf", PLAIN, one(kind))))
    stored = sum(t.elements * t.dtype.bytes * n for t, n in loaded.graph(decode(1.0, 0.0)).stored_weights())
    norms = LAYERS * 2 * 512 + 512
    assert stored == (PARAMETERS - norms) * size / block + norms * 4


def test_inputs_of_quantized_matrices_are_8_bit_and_others_are_not(tmp_path: Path) -> None:
    def inputs(kind: str) -> set[float]:
        graph = models.load(str(written(tmp_path / f"{kind}.gguf", PLAIN, one(kind)))).graph(prefill(1.0, 32.0))
        return {op.reads[0].tensor.dtype.bits for _, op in graph if op.name in ("q_proj", "down_proj", "lm_head")}

    assert inputs("Q4_K") == {9.0}  # q8_1: 8 bits, a 16-bit scale and a 16-bit sum per 32
    assert inputs("F16") == {16.0}


def test_shapes_come_from_the_fields(tmp_path: Path) -> None:
    loaded = models.load(str(written(tmp_path / "small.gguf", PLAIN, mixed)))
    attention = loaded.layers[0].mixer
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (8, 2, 64)  # type: ignore[union-attr]
    assert (loaded.max_context, loaded.hidden, loaded.head.tied) == (4096, 512, False)


def test_a_file_without_an_output_matrix_has_a_tied_head(tmp_path: Path) -> None:
    outside = {name: shape for name, shape in OUTSIDE.items() if name != "output.weight"}
    loaded = models.load(str(written(tmp_path / "t.gguf", tensors({**MATRICES, **NORMS}, outside), one("Q8_0"))))
    assert loaded.head.tied and loaded.parameters == PARAMETERS - 512 * 1000 and loaded.notes == ()
    stored = sum(t.elements * t.dtype.bytes * n for t, n in loaded.graph(decode(1.0, 0.0)).stored_weights())
    norms = LAYERS * 2 * 512 + 512
    assert stored == (loaded.parameters - norms) * 34 / 32 + norms * 4


QK = {"attn_q_norm": (64,), "attn_k_norm": (64,)}
POST = {"post_attention_norm": (512,), "post_ffw_norm": (512,)}
HEAD = {"attention.key_length": 64, "attention.value_length": 64}
ATTENTION = {name: shape for name, shape in MATRICES.items() if name.startswith("attn")}
EXPERTS = {
    "ffn_gate_inp": (512, 8),
    "ffn_gate_exps": (512, 256, 8),
    "ffn_up_exps": (512, 256, 8),
    "ffn_down_exps": (256, 512, 8),
}
SHARED = {
    "ffn_gate_inp_shexp": (512,),
    "ffn_gate_shexp": (512, 768),
    "ffn_up_shexp": (512, 768),
    "ffn_down_shexp": (768, 512),
}
WIDTHS = {"q": 512, "k": 128, "v": 128}
BIASES = {f"blk.{at}.attn_{part}.bias": (width,) for at in range(LAYERS) for part, width in WIDTHS.items()}
ROUTED = {"expert_count": 8, "expert_used_count": 2}
TIED = {name: shape for name, shape in OUTSIDE.items() if name != "output.weight"}
FUSED = {"attn_qkv": (512, 768), "attn_output": (512, 512), "ffn_up": (512, 2048), "ffn_down": (1024, 512)}
#: architecture -> (tensors of a layer, tensors outside, fields beside LLAMA's, model_type)
OTHERS = {
    "gemma": (MATRICES, TIED, HEAD, "gemma"),
    "gemma2": ({**MATRICES, **POST}, TIED, {**HEAD, "attention.sliding_window": 1024}, "gemma2"),
    "gemma3": ({**MATRICES, **POST, **QK}, TIED, {**HEAD, "attention.sliding_window": 512}, "gemma3_text"),
    "mistral3": (MATRICES, OUTSIDE, {}, "mistral"),
    "phi3": (FUSED, OUTSIDE, {"rope.dimension_count": 64, "attention.sliding_window": 2047}, "phi3"),
    "qwen2": (MATRICES, {**OUTSIDE, **BIASES}, {}, "qwen2"),
    "qwen3": ({**MATRICES, **QK}, OUTSIDE, HEAD, "qwen3"),
    "llama": ({**ATTENTION, **EXPERTS}, OUTSIDE, {**ROUTED, "feed_forward_length": 256}, "mixtral"),
    "qwen2moe": ({**ATTENTION, **EXPERTS, **SHARED}, {**OUTSIDE, **BIASES}, ROUTED, "qwen2_moe"),
    "qwen3moe": (
        {**ATTENTION, **EXPERTS, **QK},
        OUTSIDE,
        {**ROUTED, **HEAD, "expert_feed_forward_length": 256},
        "qwen3_moe",
    ),
}


def test_every_architecture_has_a_header_here() -> None:
    assert set(OTHERS) | set(FAMILIES) == set(ARCHITECTURES)  # plain Llama is above, families in test_gguf_families.py


@pytest.mark.parametrize("architecture", OTHERS)
def test_every_architecture_has_the_parameters_and_bytes_of_its_tensors(architecture: str, tmp_path: Path) -> None:
    """No note: with_stored_formats compares both numbers with the sums over the tensors of the file."""
    in_layer, outside, fields, model_type = OTHERS[architecture]
    shapes = tensors({**in_layer, **NORMS}, outside)

    def formats(name: str) -> str:
        small = "norm" in name or "bias" in name or "inp" in name
        return "F32" if small else "Q4_0" if "attn" in name else "Q8_0"

    path = written(tmp_path / "x.gguf", shapes, formats, {**LLAMA, **fields}, architecture)
    loaded = models.load(str(path))
    assert models.read(str(path)).config["model_type"] == model_type
    assert loaded.notes == ()
    assert loaded.parameters == sum(math.prod(shape) for shape in shapes.values())
    assert "q4_0" in {t.dtype.name for t, _ in loaded.graph(decode(1.0, 0.0)).stored_weights()}


def test_a_tensor_that_the_fields_do_not_describe_is_a_note_with_both_numbers(tmp_path: Path) -> None:
    shapes = {**PLAIN, "blk.0.extra_norm.weight": (256,), "rope_freqs_norm.weight": (32,)}  # the latter: no parameters
    loaded = models.load(str(written(tmp_path / "x.gguf", shapes, mixed)))
    assert f"the file holds {PARAMETERS + 256:,} parameters" in loaded.notes[0]
    assert f"its fields describe {PARAMETERS:,}" in loaded.notes[0]


def test_the_parts_of_a_split_file_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    half = len(PLAIN) // 2
    for part, names in ((1, list(PLAIN)[:half]), (2, list(PLAIN)[half:])):
        path = tmp_path / f"small-{part:05}-of-00002.gguf"
        written(path, {name: PLAIN[name] for name in names}, mixed, {**LLAMA, "!split.count": 2})
    for name in ("small-00001-of-00002.gguf", ""):  # the first part, or the folder
        assert models.load(str(tmp_path / name)).parameters == PARAMETERS
    words = ["analyze", "small-00001-of-00002.gguf", "--hardware", "h100-sxm", "-o", "small-00002-of-00002.gguf"]
    assert "refusing to overwrite the input file" in refusal(words, capsys)
    (tmp_path / "small-00002-of-00002.gguf").unlink()
    with pytest.raises(UserError, match=r"cannot read 'small-00002-of-00002.gguf'"):
        models.load("small-00001-of-00002.gguf")


def test_a_file_is_recognised_without_its_suffix_and_in_a_folder(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", PLAIN, mixed)
    assert models.load(str(tmp_path)).parameters == PARAMETERS
    blob = path.rename(tmp_path / "sha256-1234")
    assert models.load(str(blob)).parameters == PARAMETERS
    for name in "bc":
        written(tmp_path / f"{name}.gguf", PLAIN, mixed)
    with pytest.raises(UserError, match=r"has 2 GGUF files \(b.gguf, c.gguf\); give the path of one"):
        models.load(str(tmp_path))


def test_long_lists_of_the_tokenizer_are_skipped(tmp_path: Path) -> None:
    from llmviewer.models import gguf_header

    header = gguf_header.read(written(tmp_path / "a.gguf", PLAIN, mixed))
    assert "tokenizer.ggml.tokens" not in header.fields and header.fields["llama.block_count"] == LAYERS


def header(fields: bytes, tensor_count: int = 0, field_count: int = 1) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, field_count) + fields


KEY = struct.pack("<Q", 1) + b"k"
HOSTILE = {
    "empty": b"",
    "text": b"version https://git-lfs.github.com/spec/v1",
    "only magic": b"GGUF",
    "version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    "many fields": header(b"", field_count=2**60),
    "many tensors": header(b"", tensor_count=2**60, field_count=0),
    "long key": header(struct.pack("<Q", 2**60)),
    "long list of bytes": header(KEY + struct.pack("<IIQ", 9, 0, 2**60)),
    "long list of strings": header(KEY + struct.pack("<IIQ", 9, 8, 2**60) + bytes(8 * 2000)),
    "list of lists": header(KEY + struct.pack("<IIQ", 9, 9, 2**60)),
    "unknown type": header(KEY + struct.pack("<I", 77)),
    "many dimensions": header(KEY + struct.pack("<I", 2**31), tensor_count=1, field_count=0),
    "not text": header(struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 1)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_file_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(HOSTILE[name])
    assert main(["analyze", str(path), "--hardware", "a6000"]) == 2
    found = capsys.readouterr().err
    assert "cannot be read as GGUF" in found and found.count("\n") == 1 and len(found) < 400


@pytest.mark.parametrize(
    ("fields", "architecture", "message"),
    [
        (LLAMA, "rwkv9", "unknown GGUF architecture 'rwkv9'"),
        ({**LLAMA, "embedding_length": 0}, "llama", "field 'hidden_size' is 0"),
        ({}, "llama", "missing field 'hidden_size'"),
        (
            {**LLAMA, "attention.head_count_kv": [2, 2, 1, 2]},
            "llama",
            "'attention.head_count_kv' differs between layers",
        ),
        ({**LLAMA, "attention.key_length": 64, "attention.value_length": 32}, "llama", "supported: equal"),
    ],
)
def test_fields_that_are_not_supported_are_one_line(
    fields: dict[str, object], architecture: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        models.load(str(written(tmp_path / "x.gguf", PLAIN, mixed, fields, architecture)))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_a_folder_and_the_missing_package_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"cannot read 'none.gguf': No such file"):
        models.load("none.gguf")
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(UserError, match="is a directory, a device or a pipe"):
        models.load(str(tmp_path / "folder.gguf"))
    path = written(tmp_path / "x.gguf", PLAIN, mixed)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"needs the package gguf: pip install gguf"):
        models.load(str(path))

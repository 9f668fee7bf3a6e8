"""Quantization methods of many tools: stored bits per weight by hand, from the fields that their configs state."""

from __future__ import annotations

from typing import Any

import pytest

import llmviewer as lv
from llmviewer import models
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Role
from llmviewer.core.workload import decode
from llmviewer.models.load import parse
from llmviewer.models.model import Model
from llmviewer.ops.gemm import is_routed

STEP = decode(1.0, 100.0)
LLAMA = dict(data.read_yaml(data.folder("model_configs") / "llama-2-7b.yaml")["config"])
HQQ = {"weight_quant_params": {"nbits": 4, "group_size": 64, "axis": 1}}
HQQ_8_BIT_SCALES = {**HQQ, "scale_quant_params": {"nbits": 8}, "zero_quant_params": {"nbits": 8}}
QUARK_FP8 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False}
QUARK_FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
QUARK_STAGES = [QUARK_FP8, {"dtype": "int4", "qscheme": "per_channel", "ch_axis": 0}]
ASCEND = {f"model.layers.{n}.mlp.down_proj.weight": "W8A8_DYNAMIC" for n in range(31)}
VPTQ = {"vector_lens": [-1, 8], "num_centroids": [-1, 65536], "num_res_centroids": [-1, 256], "group_num": 1}
SPQR = {"bits": 3, "beta1": 16, "beta2": 16, "shapes": {}}


def stored(**fields: Any) -> Model:
    return parse({**LLAMA, **fields}, "mine")


def bits(model: Model, operator: str = "down_proj", block: int = 1) -> float:
    """Stored bits per weight of an operator."""
    graph = model.graph(STEP)
    found = next(op for op in graph.blocks[block].operators if op.name == operator)
    return next(a.tensor.dtype.bits for a in found.reads if a.tensor.role is Role.WEIGHT)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        # 1 code of 16 bits per 8 weights; 2 codes of 8 bits per 8 weights
        ({"quant_method": "aqlm", "in_group_size": 8, "num_codebooks": 1, "nbits_per_codebook": 16}, 2.0),
        ({"quant_method": "aqlm", "in_group_size": 8, "num_codebooks": 2, "nbits_per_codebook": 8}, 2.0),
        # 4 bits, and a 16-bit scale and a packed zero point per 128
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True}, 4 + (16 + 4) / 128),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mx_fp", "group_size": 32}, 4 + 8 / 32),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "mxfp4", "act_bits": 4}, 4 + 8 / 32),
        ({"quant_method": "auto-round", "bits": 4, "data_type": "nv_fp", "act_bits": 4}, 4 + 8 / 16),
        ({"quant_method": "auto-round", "bits": 8, "data_type": "mx_fp", "act_bits": 8}, 8 + 8 / 32),
        ({"quant_method": "auto-round", "bits": 8, "data_type": "fp", "act_bits": 8, "group_size": -1}, 8.0),
        ({"quant_method": "auto-round", "bits": 4, "group_size": 128, "model_free": True}, 4 + (16 + 4) / 128),
        # ModelSlim: one type for all, or one per weight; a 16-bit scale per group
        ({"quant_method": "ascend", "model_quant_type": "W8A8_DYNAMIC"}, 8.0),
        ({"quant_method": "ascend", "model_quant_type": "W4A8_DYNAMIC", "group_size": 256}, 4 + 16 / 256),
        ({"quant_method": "ascend", "model.layers.31.mlp.down_proj.weight": "W8A16", **ASCEND}, 8.0),
        # 2 bits and a 16-bit scale per 128; 4 bits, a scale of 8 bits and a zero point of 4 per 32
        ({"quant_method": "humming", "b_dtype": "uint2", "weight_scale_group_size": 128, "ignore": []}, 2 + 16 / 128),
        (
            {
                "quant_method": "humming",
                "dtype": "int4",
                "group_size": 32,
                "has_zero_point": True,
                "scale_dtype": "float8e8m0",
            },
            4 + (8 + 4) / 32,
        ),
        ({"quant_method": "humming", "dtype": "float8e4m3"}, 8.0),
        # two stages of Quark: 8-bit floats, stored as 4-bit integers with a scale per channel
        (
            {"quant_method": "quark", "global_quant_config": {"weight": QUARK_STAGES, "input_tensors": QUARK_FP8}},
            4.0,
        ),
        # four ternary weights in a byte
        ({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}, 2.0),
        ({"quant_method": "eetq", "weights": "int8"}, 8.0),
        ({"quant_method": "exl2", "bits": 4.25, "head_bits": 6, "version": "0.1.6"}, 4.25),
        ({"quant_method": "fp_quant", "forward_dtype": "mxfp4"}, 4 + 8 / 32),
        ({"quant_method": "fouroversix"}, 4 + 8 / 16),
        ({"quant_method": "higgs", "bits": 4, "group_size": 256}, 4 + 16 / 256),
        # scale and zero point of 16 bits per 64; both of 8 bits if they are quantized
        ({"quant_method": "hqq", "quant_config": HQQ, "skip_modules": ["lm_head"]}, 4 + 32 / 64),
        (
            {
                "quant_method": "hqq",
                "quant_config": {**HQQ, "scale_quant_params": {"a": 1}, "zero_quant_params": {"a": 1}},
            },
            4 + 16 / 64,
        ),
        ({"quant_method": "marlin", "bits": 4, "group_size": 128}, 4 + 16 / 128),
        ({"quant_method": "metal", "bits": 4, "group_size": 64}, 4 + 32 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}, 4 + 8 / 16),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ", "group_size": 64}, 4 + 16 / 64),
        ({"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 8.0),
        (
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
            8.0,
        ),
        ({"quant_method": "mxfp8"}, 8 + 8 / 32),
        ({"quant_method": "quanto", "weights": "int4"}, 4 + 32 / 128),
        ({"quant_method": "quark", "global_quant_config": {"weight": QUARK_FP8, "input_tensors": QUARK_FP8}}, 8.0),
        ({"quant_method": "quark", "global_quant_config": {"weight": QUARK_FP4}, "exclude": ["lm_head"]}, 4 + 8 / 32),
        # 3 bits, two 3-bit statistics per 16, four 16-bit statistics per 256
        ({"quant_method": "spqr", **SPQR}, 3 + 6 / 16 + 64 / 256),
        ({"quant_method": "torchao", "quant_type": "int4_weight_only", "quant_type_kwargs": {"group_size": 32}}, 4 + 1),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig", "_data": {}}}},
            8.0,
        ),
        # 16 bits per 8 weights, and 8 bits per 8 for residuals
        ({"quant_method": "vptq", "config_for_layers": {"re:.*down_proj": VPTQ}}, 16 / 8 + 8 / 8),
        ({"quant_method": "w8a8_int8"}, 8.0),
    ],
)
def test_stored_bits_of_a_weight(fields: dict[str, Any], expected: float) -> None:
    assert bits(stored(quantization_config=fields)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["quantization", "quantization_config"])
def test_mlx_states_no_method(name: str) -> None:
    """Scale and bias of 16 bits per 64 weights; a module may have bits of its own, and lm_head is quantized too."""
    own = {"model.layers.0.mlp.down_proj": {"bits": 8, "group_size": 64}}
    model = stored(**{name: {"bits": 4, "group_size": 64, "mode": "affine", **own}})
    assert bits(model, "up_proj") == 4.5
    assert bits(model, "lm_head", block=-1) == 4.5
    assert sorted(block.repeats for block in model.graph(STEP).blocks[1:-1]) == [1, 31]
    assert bits(model, "embedding", block=0) == 4.5
    assert model.notes == ()


def test_mlx_stores_tables_in_few_bits_where_it_does() -> None:
    """Llama-2-7B: all but the norms at 4.5 bits; a table with bits of its own, and a table left in 16."""
    norms = 65 * 4096
    whole, own, left = (
        stored(quantization={"bits": 4, "group_size": 64, **module})
        for module in ({}, {"model.embed_tokens": {"bits": 8}}, {"model.embed_tokens": False})
    )
    sizes = [sum(t.elements * t.dtype.bytes * n for t, n in m.graph(STEP).stored_weights()) for m in (whole, own, left)]
    assert sizes[0] == (whole.parameters - norms) * 4.5 / 8 + norms * 2
    assert [size - sizes[0] for size in sizes[1:]] == [32000 * 4096 * (8.5 - 4.5) / 8, 32000 * 4096 * (16 - 4.5) / 8]


def test_exl2_has_other_bits_in_the_head() -> None:
    model = stored(quantization_config={"quant_method": "exl2", "bits": 3.0, "head_bits": 8})
    assert bits(model, "lm_head", block=-1) == 8.0


def test_a_layer_with_16_bits_of_its_own_is_not_quantized() -> None:
    fields = {"quant_method": "auto-round", "bits": 4, "extra_config": {"model.layers.3.mlp.down_proj": {"bits": 16}}}
    blocks = stored(quantization_config=fields).graph(STEP).blocks[1:-1]
    assert sorted(block.repeats for block in blocks) == [1, 31]


@pytest.mark.parametrize("name", [".*up_proj.*", "up_proj$", r"layers\.\d+\.mlp\.up_proj"])
def test_auto_round_names_modules_by_expressions(name: str) -> None:
    """An expression is searched for in the names of modules; 4 + 20 / 128 bits elsewhere."""
    model = stored(quantization_config={"quant_method": "auto-round", "bits": 4, "extra_config": {name: {"bits": 16}}})
    assert (bits(model, "up_proj"), bits(model, "down_proj")) == (16.0, 4 + 20 / 128)
    assert not any("no linear layer" in note for note in model.notes)


@pytest.mark.parametrize("other", ["load_in_4bit", "load_in_8bit"])
def test_bitsandbytes_states_both_widths(other: str) -> None:
    """Every file of bitsandbytes has both flags, of which one is false."""
    flags = {"load_in_4bit": True, "load_in_8bit": True, other: False}
    model = stored(quantization_config={"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4", **flags})
    assert bits(model) == (8.0 if other == "load_in_4bit" else 4 + 32 / 64)


def test_mlx_leaves_a_module_without_a_dot_in_16_bit() -> None:
    fields = {"bits": 4, "group_size": 64}
    model = stored(quantization={**fields, "lm_head": False})
    assert (bits(model), bits(model, "lm_head", block=-1)) == (4.5, 16.0)
    six = stored(quantization={**fields, "lm_head": {"bits": 6, "group_size": 64}})
    assert bits(six, "lm_head", block=-1) == 6.5


@pytest.mark.parametrize("scheme", [{"num_bits": 8, "type": "float", "dynamic": False}, "FP8"])
@pytest.mark.parametrize("algorithm", ["FP8", "MIXED_PRECISION"])
def test_modelopt_states_the_cache_in_either_form(scheme: Any, algorithm: str) -> None:
    layers = {f"model.layers.{n}.mlp.down_proj": {"quant_algo": "FP8"} for n in range(32)}
    fields = {"quant_algo": algorithm, "kv_cache_scheme": scheme, "quantized_layers": layers}
    model = stored(quantization_config={"quant_method": "modelopt", **fields})
    assert (bits(model), model.checkpoint.cache.bits) == (8.0, 8.0)


def test_experts_of_an_fp8_checkpoint_in_nvfp4() -> None:
    """ModelOpt's DeepSeek checkpoints: quant_method fp8, `moe_quant_algo` NVFP4 with an 8-bit scale per 16."""
    config = dict(data.read_yaml(data.folder("model_configs") / "deepseek-v3.yaml")["config"])
    fields = {"quant_method": "fp8", "activation_scheme": "dynamic", "moe_quant_algo": "NVFP4", "quantized_layers": {}}
    model = parse({**config, "quantization_config": fields}, "mine")
    blocks = model.graph(STEP).blocks
    block = next(at for at, block in enumerate(blocks) if any(map(is_routed, block.operators)))
    routed = [op.name for op in blocks[block].operators if is_routed(op) and op.name.endswith("_proj")]
    assert {bits(model, name, block) for name in routed} == {4.5}
    assert bits(model, "o_proj", block) == 8.0


def test_routed_experts_of_deepseek_v4_are_stored_in_fp4() -> None:
    """`expert_dtype` stands beside the formats: 4 bits and an 8-bit scale per 32, the shared expert as all others."""
    config = dict(data.read_yaml(data.folder("model_configs") / "deepseek-v4-flash.yaml")["config"])
    wide = 8 + 32 / 128**2
    for stated, expected in (("fp4", 4.25), ("fp8", wide)):
        model = parse({**config, "expert_dtype": stated}, "mine")
        assert (bits(model, "expert_up_proj", 1), bits(model, "shared_up_proj", 1)) == (expected, wide)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"quant_method": "torchao", "quant_type": "int5"}, "unknown quant_type 'int5'"),
        ({"quant_method": "modelopt", "quant_algo": "W1A1"}, "unknown quant_algo 'W1A1'"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "x"}}}, "field 'dtype' is 'x'"),
        ({"quant_method": "vptq", "config_for_layers": {}}, "must give the codes of every layer"),
        ({"quant_method": "auto-round", "bits": 4, "extra_config": {"a": {"bits": "x"}}}, "field 'bits' is 'x'"),
        ({"quant_method": "new_method"}, "unknown quant_method 'new_method'"),
        ({"bits": 4, "group_size": 64, "mode": "fourier"}, "field 'mode' is 'fourier'"),
    ],
)
def test_an_unknown_form_is_one_line(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        stored(quantization_config=fields)


def test_the_catalogue_has_no_method_without_a_reader() -> None:
    assert models.load("llama-2-7b").parameters == stored().parameters


def test_what_times_of_a_method_leave_out_is_said() -> None:
    """bitsandbytes launches some ten kernels for a product; the same formats by another name run as one."""
    named, plain = (lv.analyze("llama-2-7b", "a100", quantization=name) for name in ("llm-int8", "w8a8"))
    said = [text for text in named.to_dict()["provenance"]["assumed"] if text.startswith("LLM.int8()")]
    assert len(said) == 1 and "164 ms" in said[0]
    assert not any("LLM.int8()" in text for text in plain.to_dict()["provenance"]["assumed"])
    by_operator = lv.analyze("llama-2-7b", "a100", quantization="w4a16+llm-int8@down_proj")
    assert any("LLM.int8()" in text for text in by_operator.to_dict()["provenance"]["assumed"])


@pytest.mark.parametrize(
    "fields",
    [
        {"quant_method": "auto-round", "bits": 4, "data_type": "mxfp4", "act_bits": 4, "act_data_type": "mxfp4"},
        {"quant_method": "quark", "global_quant_config": {"weight": QUARK_STAGES, "input_tensors": QUARK_FP8}},
        {"quant_method": "ascend", "model_quant_type": "W4A8_DYNAMIC"},
        {"quant_method": "humming", "b_dtype": "uint4", "a_dtype": "int8", "group_size": 128},
    ],
)
def test_inputs_of_these_forms_are_quantized(fields: dict[str, Any]) -> None:
    """Products in fp4, fp8 and int8: the inputs' format, in which 4-bit weights are converted."""
    graph = stored(quantization_config=fields).graph(STEP)
    down = next(op for op in graph.blocks[1].operators if op.name == "down_proj")
    expected = {"auto-round": "fp4", "quark": "fp8"}.get(fields["quant_method"], "int8")
    assert down.compute == expected


def test_gptq_has_other_bits_in_modules_of_their_own() -> None:
    """4-bit weights with 16 + 4 bits per 128, o_proj in 8 bits with 16 + 8 per 64, down_proj not quantized."""
    own = {"-:.*down_proj.*": {}, "+:.*o_proj.*": {"bits": 8, "group_size": 64}, r"model\.layers\.0\.mlp": {"bits": 3}}
    model = stored(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": own})
    assert [bits(model, name) for name in ("q_proj", "o_proj", "down_proj", "up_proj")] == [
        4 + 20 / 128,
        8 + 24 / 64,
        16.0,
        4 + 20 / 128,
    ]
    assert bits(model, "up_proj", block=2) == 3 + 19 / 128  # of layer 0, which is a block of its own


def test_modelslim_lists_every_weight_and_leaves_float_ones() -> None:
    """Llama-2-7B: 32 x 4096 x 11008 weights of one matrix in 8 bits, all others in 16."""
    kinds = {
        f"model.layers.{n}.mlp.{name}_proj.weight": kind
        for n in range(32)
        for name, kind in (("down", "W8A8_DYNAMIC"), ("up", "FLOAT"))
    }
    model = stored(
        quantization_config={"quant_method": "ascend", "fa_quant_type": "C8", **kinds, "lm_head.weight": "W8A8"}
    )
    stored_bytes = sum(t.elements * t.dtype.bytes * n for t, n in model.graph(STEP).stored_weights())
    assert 2 * model.parameters - stored_bytes == 32 * 4096 * 11008 + 32000 * 4096
    assert model.checkpoint.cache.bits == 8


def test_a_list_of_all_experts_is_a_list_of_the_experts() -> None:
    """ModelOpt lists the experts one by one; a single one among 128 is not the format of all."""
    config = dict(data.read_yaml(data.folder("model_configs") / "qwen3-30b-a3b.yaml")["config"])

    def expert_bits(experts: range) -> float:
        names = [
            f"model.layers.{n}.mlp.experts.{e}.{p}_proj"
            for n in range(48)
            for e in experts
            for p in ("up", "gate", "down")
        ]
        layers = {name: {"quant_algo": "NVFP4", "group_size": 16} for name in names}
        fields = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        model = parse({**config, "quantization_config": fields}, "mine")
        assert any("no weight of this model falls under it" in note for note in model.notes) == (len(experts) == 1)
        return bits(model, "expert_down_proj")

    assert (expert_bits(range(128)), expert_bits(range(1))) == (4.5, 16.0)


@pytest.mark.parametrize("entries", [["model.layers.*"], ["re:.*"]])
def test_a_quantization_without_weights_is_a_warning(entries: list[str]) -> None:
    fields = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": entries}
    model = stored(quantization_config=fields)
    assert "quantization_config names fp8, but no weight of this model falls under it" in model.notes


def test_patterns_name_the_checkpoints_own_modules() -> None:
    """Gemma 4 has a dense `mlp` in every layer, and its experts beside it: 30 x 128 x 3 x 2816 x 704."""
    config = dict(data.read_yaml(data.folder("model_configs") / "gemma-4-26b-a4b.yaml")["config"])
    entries = [f"model.language_model.layers.{n}.{name}*" for n in range(30) for name in ("mlp", "router", "self_attn")]
    fields = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head", *entries]}
    plain, model = parse(config, "plain"), parse({**config, "quantization_config": fields}, "mine")
    sizes = [sum(t.elements * t.dtype.bytes * n for t, n in m.graph(STEP).stored_weights()) for m in (plain, model)]
    assert sizes[0] - sizes[1] == 30 * 128 * 3 * 2816 * 704 * (16 - 4.5) / 8

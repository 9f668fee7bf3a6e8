"""Quantized checkpoints: `quantization_config` sets the formats of weights and inputs of linear layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llmviewer import models
from llmviewer.analysis.memory import weights_bytes
from llmviewer.analysis.pipeline import stages_of
from llmviewer.api.configuration import configuration
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Block, Graph, Operator, Role, check
from llmviewer.core.workload import decode, prefill
from llmviewer.models.config import QUANTIZATION_FIELD
from llmviewer.models.load import parse
from llmviewer.models.model import Model
from llmviewer.models.module_names import module_list
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.quantization.quantize import quantize

STEP = decode(1.0, 100.0)
QUANTIZED = [
    name
    for name in models.names()
    if QUANTIZATION_FIELD in str(data.read_yaml(data.folder("model_configs") / f"{name}.yaml"))
]


def published(name: str) -> dict[str, Any]:
    return dict(data.read_yaml(data.folder("model_configs") / f"{name}.yaml")["config"])


def stored_as(name: str, **quantization: Any) -> Model:
    """The published model `name` with this quantization_config."""
    return parse({**published(name), QUANTIZATION_FIELD: quantization}, name)


def stored_bytes(model: Model) -> float:
    return float(sum(t.elements * t.dtype.bytes * n for t, n in model.graph(STEP).stored_weights()))


def operator(graph: Graph | Block, name: str) -> Operator:
    found = graph.operators if isinstance(graph, Block) else tuple(op for _, op in graph)
    return next(op for op in found if op.name == name)


def bits(model: Model | Block, name: str) -> float:
    """Stored bits of an operator's weights."""
    op = operator(model.graph(STEP) if isinstance(model, Model) else model, name)
    return next(a.tensor.dtype.bits for a in op.reads if a.tensor.name.endswith(".weight"))


def layers(model: Model) -> tuple[Block, ...]:
    return model.graph(STEP).blocks[1:-1]


def _without_formats(config: dict[str, Any]) -> dict[str, Any]:
    """The config without its formats, which may stand in the section of its language model."""
    kept = {name: value for name, value in config.items() if name != QUANTIZATION_FIELD}
    return {name: _without_formats(value) if name == "text_config" else value for name, value in kept.items()}


@pytest.mark.parametrize("name", QUANTIZED)
def test_every_quantized_model_config_is_read_without_a_warning(name: str) -> None:
    loaded, plain = models.load(name), parse(_without_formats(published(name)), name)
    check(loaded.graph(prefill(2.0, 30.0)))
    assert loaded.parameters == plain.parameters and loaded.active_parameters == plain.active_parameters
    assert stored_bytes(loaded) < stored_bytes(plain)
    assert not any(QUANTIZATION_FIELD in note for note in loaded.notes)
    flops = [sum(op.matmul_flops * b.repeats for b, op in m.graph(STEP)) for m in (loaded, plain)]
    assert flops[0] == flops[1]


@pytest.mark.parametrize(("name", "size"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)])
def test_gpt_oss_is_stored_in_the_bytes_of_its_published_files(name: str, size: int) -> None:
    """`total_size` of model.safetensors.index.json at https://huggingface.co/openai/gpt-oss-20b and -120b: experts'
    matrices at 4.25 bits, their biases and everything else at 16."""
    assert stored_bytes(models.load(name)) == size


def test_gpt_oss_multiplies_4_bit_experts_in_16_bit() -> None:
    loaded = models.load("gpt-oss-20b")
    block = layers(loaded)[0]
    assert bits(block, "expert_gate_up_proj") == bits(block, "expert_down_proj") == 4.25
    assert bits(block, "q_proj") == bits(block, "o_proj") == bits(block, "router") == 16
    up = operator(block, "expert_gate_up_proj")
    assert up.compute == loaded.dtype.compute and up.inputs == ("mlp_norm",)


def test_deepseek_v3_runs_on_the_fp8_units_with_a_scale_per_block() -> None:
    """Weights: 8 + 32/(128 x 128) bits; inputs: 8 + 32/128.  Router, lm_head, embedding and the cache: 16 bit."""
    loaded = models.load("deepseek-v3")
    for name in ("q_a_proj", "kv_b_proj", "o_proj", "expert_down_proj", "shared_up_proj"):
        assert bits(loaded, name) == 8 + 32 / 16384, name
        assert operator(loaded.graph(STEP), name).compute == "fp8", name
    assert bits(loaded, "router") == bits(loaded, "lm_head") == bits(loaded, "embedding") == 16
    made = operator(loaded.graph(STEP), "attn_norm_quantize")
    assert made.output.dtype.bits == 8.25 and made.vector_flops == 3 * 7168
    assert [s.dtype.bits for s in layers(loaded)[0].states] == [16]


def test_gptq_and_awq_store_a_scale_and_a_zero_point_per_group() -> None:
    """Llama-2-7B: 6,476,005,376 weights in layers at 4 + 20/128 bits = 3.364 GB; norms, embedding and head at 16 bit:
    2 x (65 x 4096 + 2 x 32000 x 4096) = 524.8 MB.  Products in 16 bit, no quantize operator."""
    layer_weights, rest = 32 * (4 * 4096**2 + 3 * 4096 * 11008), 2 * (65 * 4096 + 2 * 32000 * 4096)
    gptq = stored_as("llama-2-7b", quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=True)
    awq = stored_as("llama-2-7b", quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm")
    for found in (gptq, awq):
        assert stored_bytes(found) == layer_weights * 4.15625 / 8 + rest
        assert operator(found.graph(STEP), "q_proj").compute == "fp16"
        assert operator(found.graph(STEP), "q_proj").inputs == ("attn_norm",)
    assert bits(stored_as("llama-2-7b", quant_method="gptq", bits=8, group_size=32), "q_proj") == 8 + (16 + 8) / 32
    assert bits(stored_as("llama-2-7b", quant_method="gptq", bits=4, group_size=-1), "q_proj") == 4
    assert (
        bits(stored_as("llama-2-7b", quant_method="awq", w_bit=4, q_group_size=64, zero_point=False), "q_proj") == 4.25
    )


def test_gptq_may_quantize_the_head_or_some_matrices_only() -> None:
    head = stored_as("llama-2-7b", quant_method="gptq", bits=4, group_size=128, lm_head=True)
    assert bits(head, "lm_head") == 4.15625 and bits(head, "embedding") == 16
    tied = stored_as("qwen2.5-0.5b", quant_method="gptq", bits=4, group_size=128, lm_head=True)
    assert bits(tied, "lm_head") == 16
    inside = [["self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj"], ["mlp.up_proj"]]
    some = stored_as("llama-2-7b", quant_method="gptq", bits=4, group_size=128, modules_in_block_to_quantize=inside)
    assert [bits(some, name) for name in ("q_proj", "up_proj", "o_proj", "down_proj")] == [4.15625, 4.15625, 16, 16]
    dynamic = stored_as(
        "qwen3-30b-a3b", quant_method="gptq", bits=4, group_size=128, dynamic={r"-:.*self_attn\.o_proj": {}}
    )
    assert [bits(dynamic, name) for name in ("q_proj", "o_proj", "expert_up_proj")] == [4.15625, 16, 4.15625]


@pytest.mark.parametrize(
    ("fields", "stored"),
    [
        ({"load_in_8bit": True}, 8),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, 4 + 32 / 64),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4 + 8 / 64 + 32 / (64 * 256)),
    ],
)
def test_bitsandbytes_stores_a_scale_per_64_and_may_quantize_scales_again(
    fields: dict[str, Any], stored: float
) -> None:
    for named in ({"quant_method": "bitsandbytes"}, {}):  # the first checkpoints lack the type
        found = stored_as("llama-2-7b", **named, **fields, llm_int8_skip_modules=["o_proj"])
        assert [bits(found, name) for name in ("q_proj", "o_proj", "lm_head")] == [stored, 16, 16]
        assert operator(found.graph(STEP), "q_proj").compute == ("int8" if stored == 8 else "fp16")


def group(targets: list[str], weights: dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"targets": targets, "weights": weights, "input_activations": inputs, "output_activations": None}


CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
GROUP = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


@pytest.mark.parametrize(
    ("weights", "inputs", "stored", "compute"),
    [
        (CHANNEL, TOKEN, 8, "fp8"),
        (CHANNEL, None, 8, "bf16"),
        ({**CHANNEL, "type": "int"}, {**TOKEN, "type": "int"}, 8, "int8"),
        (GROUP, None, 4 + 16 / 128, "bf16"),
        ({**GROUP, "symmetric": False}, None, 4 + 20 / 128, "bf16"),
        ({**GROUP, "group_size": 32}, None, 4.5, "bf16"),
        (GROUP, TOKEN, 4.125, "fp8"),
        (NVFP4, NVFP4, 4.5, "fp4"),
        ({**CHANNEL, "strategy": "block", "block_structure": [128, 128]}, TOKEN, 8 + 16 / 128**2, "fp8"),
    ],
)
def test_compressed_tensors_give_formats_of_weights_and_inputs(
    weights: dict[str, Any], inputs: dict[str, Any] | None, stored: float, compute: str
) -> None:
    groups = {"group_0": group(["Linear"], weights, inputs)}
    found = stored_as("llama-3.1-8b", quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"])
    assert bits(found, "q_proj") == bits(found, "down_proj") == stored
    assert operator(found.graph(STEP), "q_proj").compute == compute
    assert bits(found, "lm_head") == 16


def test_compressed_tensors_quantize_the_head_unless_ignored() -> None:
    groups = {"group_0": group(["Linear"], GROUP)}
    assert bits(stored_as("llama-3.1-8b", quant_method="compressed-tensors", config_groups=groups), "lm_head") == 4.125
    assert bits(stored_as("llama-3.2-1b", quant_method="compressed-tensors", config_groups=groups), "lm_head") == 16


def test_groups_of_compressed_tensors_may_give_one_input_in_two_formats() -> None:
    """mlp_norm feeds gate_proj as fp8 and up_proj as int8: two quantize operators, each named after its format."""
    groups = {"a": group(["re:.*up_proj"], {**CHANNEL, "type": "int"}, {**TOKEN, "type": "int"}),
              "b": group(["Linear"], CHANNEL, TOKEN)}  # fmt: skip
    found = stored_as("llama-3.1-8b", quant_method="compressed-tensors", config_groups=groups).graph(STEP)
    check(found)
    assert operator(found, "gate_proj").compute == "fp8" and operator(found, "up_proj").compute == "int8"
    assert operator(found, "gate_proj").inputs == ("mlp_norm_quantize",)
    assert operator(found, "up_proj").inputs == ("mlp_norm_int8_quantize",)


def test_only_experts_of_kimi_k2_thinking_are_4_bit() -> None:
    """Its `ignore` lists attention, shared experts, and the dense layer, which differs from experts by the path."""
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    groups = {"group_0": group(["Linear"], {**GROUP, "group_size": 32})}
    found = stored_as("kimi-k2", quant_method="compressed-tensors", config_groups=groups, ignore=ignore)
    dense, moe = layers(found)
    assert {bits(moe, f"expert_{part}_proj") for part in ("gate", "up", "down")} == {4.5}
    assert {bits(moe, name) for name in ("q_a_proj", "o_proj", "shared_up_proj", "router")} == {16}
    assert {bits(dense, name) for name in ("q_a_proj", "gate_proj", "down_proj")} == {16}


def test_a_list_of_some_layers_splits_their_block() -> None:
    """Llama 3.1 405B FP8 keeps all attention and the first and last layer in 16 bit: 124 of 126 layers have 8-bit
    feed-forward parts.  3 x 16384 x 53248 weights at one byte each: 2.617 GB saved per layer, 324.5 GB in all."""
    kept = [f"model.layers.{n}.self_attn.{p}_proj" for n in range(126) for p in "qkvo"]
    kept += [f"model.layers.{n}.mlp.{p}_proj" for n in (0, 125) for p in ("gate", "up", "down")]
    plain = models.load("llama-3.1-405b")
    found = stored_as(
        "llama-3.1-405b", quant_method="fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=kept
    )
    common, rare = layers(found)
    assert (common.name, common.repeats, rare.name, rare.repeats) == ("layer", 124, "layer_2", 2)
    assert bits(common, "up_proj") == 8 and operator(common, "up_proj").compute == "fp8"
    assert bits(rare, "up_proj") == bits(common, "q_proj") == bits(rare, "q_proj") == 16
    assert not any(op.name.endswith("_quantize") for op in rare.operators)
    assert stored_bytes(plain) - stored_bytes(found) == 124 * 3 * 16384 * 53248
    assert found.parameters == plain.parameters and not found.notes


def test_a_cache_may_be_quantized_by_the_checkpoint() -> None:
    groups = {"group_0": group(["Linear"], CHANNEL, TOKEN)}
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    found = stored_as("llama-3.1-8b", quant_method="compressed-tensors", config_groups=groups, kv_cache_scheme=scheme)
    assert {s.dtype.bits for s in layers(found)[0].states} == {8}
    assert operator(found.graph(STEP), "qk_matmul").compute == "bf16"


@pytest.mark.parametrize(
    ("entry", "left_out"),
    [
        ("self_attn", ["q_proj", "o_proj"]),
        ("model.layers.*.self_attn", ["q_proj", "o_proj"]),
        ("re:.*self_attn.*", ["q_proj", "o_proj"]),
        ("re:.*q_proj$", ["q_proj"]),
        ("o_proj", ["o_proj"]),
        ("mlp.gate", []),
        ("re:.*mlp.gate$", []),
        ("gate", []),
        ("mlp", ["gate_proj", "up_proj", "down_proj"]),
        ("*.mlp.up_proj", ["up_proj"]),
        ("language_model.model.layers.*.mlp.up_proj", ["up_proj"]),
        ("vision_tower.layers.*.self_attn", []),
        ("model.embed_tokens", []),
    ],
)
def test_an_entry_matches_whole_components_of_a_path(entry: str, left_out: list[str]) -> None:
    found = stored_as("llama-2-7b", quant_method="awq", bits=4, group_size=128, modules_to_not_convert=[entry])
    names = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert [name for name in names if bits(found, name) == 16] == left_out


def test_a_name_with_a_layer_index_matches_only_that_layer() -> None:
    found = module_list(["model.layers.1.", "model.layers.12.mlp", "transformer.h.3.attn"], "here")
    assert (
        found.distinguishes_layers
        and found.contains(("self_attn.q_proj",), 1)
        and not found.contains(("self_attn.q_proj",), 11)
    )
    assert found.contains(("mlp.up_proj",), 12) and not found.contains(("mlp.up_proj",), 2)
    assert found.contains(("attn.c_attn",), 3) and not found.has_head()


def test_an_entry_that_matches_nothing_is_a_warning() -> None:
    """Layers beyond the last (MTP heads), norms and other towers are listed legitimately and give no warning."""
    entries = ["model.layers.61.mlp", "model.layers.0.input_layernorm", "visual", "mlp.gate", "no_such_proj"]
    found = stored_as("deepseek-v3", quant_method="fp8", activation_scheme="dynamic", modules_to_not_convert=entries)
    assert len(found.notes) == 1 and "no_such_proj" in found.notes[0] and "layernorm" not in found.notes[0]
    single = stored_as(
        "deepseek-v3", quant_method="fp8", modules_to_not_convert=["model.layers.5.mlp.experts.17.up_proj"]
    )
    assert "experts.17" in single.notes[0] and bits(single, "expert_up_proj") == 8


@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b"])
@pytest.mark.parametrize("scheme", ["w8a8", "w4a16", "awq", "w4a8kv4", "w16a16"])
def test_the_users_scheme_wins_over_the_checkpoint(name: str, scheme: str) -> None:
    """Quantizing the checkpoint's graph gives what quantizing the plain model gives."""
    step = prefill(np.array([1.0, 2.0]), np.array([64.0, 500.0]))
    plain = parse({k: v for k, v in published(name).items() if k != QUANTIZATION_FIELD}, name)
    wanted = quantize(parse_scheme(scheme))(plain.graph(step))
    found = quantize(parse_scheme(scheme))(models.load(name).graph(step))
    for (_, a), (_, b) in zip(wanted, found, strict=True):
        assert (a.name, a.compute, a.inputs) == (b.name, b.compute, b.inputs)
        assert np.array_equal(a.traffic_bytes, b.traffic_bytes), a.name
        assert np.allclose(a.flops, b.flops, rtol=1e-13), a.name


def test_without_a_scheme_the_checkpoint_is_unchanged() -> None:
    graph = models.load("deepseek-v3").graph(STEP)
    assert quantize(parse_scheme("none"))(graph).blocks[1].operators == graph.blocks[1].operators


def test_nested_quantization_configs_are_found() -> None:
    fields = published("gemma-3-12b")
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 128}
    inner = fields.get("text_config")
    nested = (
        {**fields, "text_config": {**inner, QUANTIZATION_FIELD: quantization}}
        if inner
        else {**fields, QUANTIZATION_FIELD: quantization}
    )
    for config in (nested, {**fields, QUANTIZATION_FIELD: quantization}):
        assert bits(parse(config, "gemma"), "q_proj") == 4.15625


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"quant_method": "gguf"},
            r"llama-2-7b: quantization_config: unknown quant_method 'gguf'.*ignore_fields quantization_config",
        ),
        ({"quant_method": "gptqq"}, r"did you mean 'gptq'\?"),
        ({}, r"missing field 'quant_method'"),
        ({"quant_method": "gptq"}, r"missing field 'bits'"),
        ({"quant_method": "gptq", "bits": 99}, r"field 'bits' is 99, expected 1 to 16"),
        ({"quant_method": "gptq", "bits": 4, "novelty": 1}, r"'novelty' is not supported"),
        (
            {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {"bits": 99}}},
            r"field 'bits' is 99, expected 1 to 16",
        ),
        ({"quant_method": "gptq", "bits": 4, "dynamic": ["-:.*"]}, r"field 'dynamic' must be a mapping"),
        ({"quant_method": "awq", "bits": 4, "modules_to_not_convert": "lm_head"}, r"must list names of modules"),
        (
            {"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["re:("]},
            r"'re:\(' is not a regular expression",
        ),
        ({"quant_method": "fp8", "activation_scheme": "none"}, r"supported: dynamic, static"),
        ({"quant_method": "fp8", "weight_block_size": 128}, r"rows and columns of a block"),
        ({"quant_method": "bitsandbytes"}, r"neither 'load_in_8bit' nor 'load_in_4bit'"),
        ({"quant_method": "compressed-tensors"}, r"'config_groups' must be a mapping"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"a": group(["Linear"], {**GROUP, "type": "odd"})}},
            r"field 'type' is 'odd'; supported: int, float",
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": group(["Linear"], GROUP)},
                "sparsity_config": {"format": "sparse-24-bitmask"},
            },
            r"field 'format' is 'sparse-24-bitmask'; supported: dense",
        ),
    ],
)
def test_an_unsupported_field_is_a_one_line_error_that_names_it(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        stored_as("llama-2-7b", **fields)
    assert "\n" not in str(caught.value)


def test_a_quantization_config_can_be_ignored_by_name() -> None:
    fields = {**published("llama-2-7b"), QUANTIZATION_FIELD: {"quant_method": "gguf"}}
    assert bits(parse(fields, "mine", ignored=(QUANTIZATION_FIELD,)), "q_proj") == 16


def test_a_weight_only_checkpoint_changes_only_weight_bytes() -> None:
    step = prefill(1.0, 256.0)
    plain, low = models.load("llama-2-7b"), stored_as("llama-2-7b", quant_method="gptq", bits=4, group_size=128)
    for (_, a), (_, b) in zip(plain.graph(step), low.graph(step), strict=True):
        for role in (Role.ACTIVATION, Role.CACHE):
            assert a.read_bytes(role) == b.read_bytes(role) and a.write_bytes(role) == b.write_bytes(role), a.name


@pytest.mark.parametrize("kept", [r"re:.*layers\.[0-3]\..*", r"re:.*layers\.(7|31)\..*"])
def test_pipeline_stages_store_the_layers_of_their_numbers(kept: str) -> None:
    """Layers that stay in 16 bit are counted in the stage that has them: both stages store one device's weights."""
    groups = {"group_0": group(["Linear"], GROUP)}
    found = stored_as("llama-2-7b", quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head", kept])
    blocks = [block for block in layers(found) if block.is_layer]
    assert sorted(number for block in blocks for number in block.numbers) == list(range(32))
    plain, odd = sorted(blocks, key=lambda block: -block.repeats)
    assert set(odd.numbers) == ({0, 1, 2, 3} if "0-3" in kept else {7, 31})
    assert (bits(plain, "q_proj"), bits(odd, "q_proj")) == (4.125, 16)
    system = configuration(found, "a100", pipeline_parallel_size=2).system
    stages = stages_of(found.graph(STEP), system)
    assert sum(weights_bytes(stage) for stage in stages) == stored_bytes(found)
    in_16_bit = [sum(block.repeats for block in stage.blocks if block.name == odd.name) for stage in stages]
    assert in_16_bit == ([4, 0] if "0-3" in kept else [1, 1])

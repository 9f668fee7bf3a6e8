"""Readers of `quantization_config`, one per `quant_method`; also of formats of one engine (ModelSlim, Humming)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from llmviewer.core.dtypes import DTYPES, Dtype, grouped_int, plain_int, scaled
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.formats.linear import Format
from llmviewer.models.config import Config

#: 8-bit floats with an 8-bit scale per 32 (OCP Microscaling v1.0).
MXFP8 = scaled("fp8", 8, group=32, scale_bits=8, name="mxfp8")
FP8, INT8, MXFP4 = DTYPES["fp8"], DTYPES["int8"], DTYPES["mxfp4"]
#: Type of a weight in ModelSlim's description -> weights and inputs; FLOAT keeps the model's dtype.
#: Source: https://github.com/vllm-project/vllm-ascend, vllm_ascend/quantization/methods.
ASCEND: dict[str, Format] = {
    "FLOAT": Format(),
    "W8A8": Format(weights=INT8, activations=INT8),
    "W8A8_DYNAMIC": Format(weights=INT8, activations=INT8),
    "W8A8_MIX": Format(weights=INT8, activations=INT8),
    "W8A16": Format(weights=INT8),
    "W8A8_MXFP8": Format(weights=MXFP8, activations=MXFP8),
    "W8A8FP8_DYNAMIC": Format(weights=FP8, activations=FP8),
    "W4A16": Format(weights=plain_int(4)),
    "W4A8_DYNAMIC": Format(weights=plain_int(4), activations=INT8),
    "W4A4_DYNAMIC": Format(weights=plain_int(4), activations=plain_int(4)),
    "W4A4_FLATQUANT_DYNAMIC": Format(weights=plain_int(4), activations=plain_int(4)),
    "W4A8_MXFP": Format(weights=MXFP4, activations=MXFP8),
    "W4A16_MXFP4": Format(weights=MXFP4),
    "W4A4_MXFP4": Format(weights=MXFP4, activations=MXFP4),
    "W4A4_MXFP4_FLATQUANT": Format(weights=MXFP4, activations=MXFP4),
}
#: Name of a weight in that description; other tensors (scales, offsets) have entries too.
_WEIGHT = re.compile(r"\.weight(_packed)?$")
#: Number format of Humming, as in uint4, int8, float4e2m1.
_HUMMING = re.compile(r"(u?int|float)(\d{1,2})(?:e\d+m\d+)?")


def ascend(config: Config) -> QuantizedFormats:
    """ModelSlim (Huawei): the type of every weight by its name, or one `model_quant_type` for all but lm_head.

    Integers of 4 bits have a scale per `group_size` weights; 0 is one per channel.  An int8 cache is type C8.
    """
    config.ignore(*config.fields)
    kinds = {name: kind for name, kind in config.fields.items() if _WEIGHT.search(name) and isinstance(kind, str)}
    cache = (
        INT8
        if "C8" in (config.get("fa_quant_type"), config.get("kv_quant_type"), config.get("kv_cache_type"))
        else None
    )
    group = config.count("group_size", 0, minimum=-1)
    if not kinds:
        named = config.text(config.first_present("model_quant_type", "quant_type", "default_quant_type"))
        return QuantizedFormats(rules=(LayerFormat(format=_ascend_format(config, named, group)),), cache=cache)
    named_by: dict[str, list[str]] = {}
    for name, kind in kinds.items():
        named_by.setdefault(kind, []).append(_WEIGHT.sub("", name))
    rules = {kind: _ascend_format(config, kind, group) for kind in named_by}
    head = rules.get(kinds.get("lm_head.weight", ""), Format())
    return QuantizedFormats(
        rules=tuple(LayerFormat(format=rules[kind], targets=tuple(names)) for kind, names in named_by.items()),
        head=head != Format(),
        cache=cache,
    )


def _ascend_format(config: Config, kind: str, group: int) -> Format:
    form = ASCEND.get(kind.upper())
    if form is None:
        raise unknown("type of a weight", kind, ASCEND, where=config.where)
    if group > 0 and form.weights == plain_int(4):
        return Format(weights=grouped_int(4, group=group), activations=form.activations)
    return form


def humming(config: Config) -> QuantizedFormats:
    """Humming: a format of weights with a scale per group (0: per channel) and zero points where stated.

    Its fields have several names; lm_head is never quantized.  Source: https://github.com/inclusionAI/humming
    (humming/schema/humming.py) and vllm/model_executor/layers/quantization/humming.py of vLLM.
    """
    config.ignore("weight_scale_type", "scale_type", "weight_scale_2_type", "scale_2_type", "hadamard_block_size")
    config.ignore("input_scale_group_size", "input_quant_mode", "has_global_scale", "quant_mode")
    names = "weight_scale_dtype scale_dtype bs_dtype has_zero_point is_fp_zero_point b_dtype weight_dtype dtype".split()
    names += "weight_scale_group_size group_size weight_scale_group_size_n group_size_n".split()
    stated = {name: config.get(name) for name in names if config.has(name)}

    def weights(own: Mapping[str, Any]) -> Dtype:
        return _humming_weights(Config({**stated, **own}, config.where))

    inputs = config.first_present("a_dtype", "input_dtype")
    activations = _humming_plain(config, config.text(inputs)) if config.has(inputs) else None
    own, excluded = dynamic_rules(config, weights)
    default = LayerFormat(format=Format(weights=weights({}), activations=activations))
    unquantized = (*excluded, *module_entries(config, "ignored_layers", "ignore", "modules_to_not_convert"))
    return QuantizedFormats(rules=(*own, default), unquantized=unquantized)


def _humming_weights(fields: Config) -> Dtype:
    """The format of one set of fields: bits of a weight, its share of the scale and of the zero point."""
    plain = _humming_plain(fields, fields.text(fields.first_present("b_dtype", "weight_dtype", "dtype")))
    group = fields.count(fields.first_present("weight_scale_group_size", "group_size"), 0, minimum=0)
    rows = fields.count(fields.first_present("weight_scale_group_size_n", "group_size_n"), 1, minimum=0)
    if not group:
        return plain
    scale = fields.text(fields.first_present("bs_dtype", "weight_scale_dtype", "scale_dtype"), "bfloat16")
    scale_bits = 32.0 if rows > 1 else 8.0 if "float8" in scale else 32.0 if "32" in scale else 16.0
    if fields.flag("has_zero_point", default=False):
        scale_bits += 16.0 if fields.flag("is_fp_zero_point", default=False) else plain.bits
    return scaled(plain.compute, plain.bits, group=group * max(rows, 1), scale_bits=scale_bits)


def _humming_plain(fields: Config, name: str) -> Dtype:
    """The number format called `name`, without scales."""
    match = _HUMMING.fullmatch(name.lower())
    if match is None or not 1 <= int(match[2]) <= 16:
        raise UserError(
            f"{fields.where}: number format {quoted(name)} is not known; expected uint4, int8, float4e2m1 ..."
        )
    kind, bits = ("fp" if match[1] == "float" else "int"), int(match[2])
    return DTYPES.get(f"{kind}{bits}") or Dtype(name=f"{kind}{bits}", bits=bits, compute=f"{kind}{bits}")


#: Weights per fp32 scale of bitsandbytes' 4-bit formats (QLoRA, arXiv 2305.14314).
BITSANDBYTES_GROUP = 64
#: With "double quantization" a scale has 8 bits, and this many scales share one fp32 scale.
BITSANDBYTES_SCALES = 256


@frozen
class LayerFormat:
    """The format of the linear layers in `targets`; without targets, of all linear layers."""

    format: Format
    targets: tuple[str, ...] = ()


@frozen
class QuantizedFormats:
    """The formats of a quantized checkpoint: the first matching rule applies, except to `unquantized` modules.

    head: rules also apply to lm_head if it is not tied; head_format: its own format.  cache: format of the KV cache,
    None: the model's dtype.  note: what is not counted.  embedding: format of the token tables, None: the model's
    dtype.
    """

    rules: tuple[LayerFormat, ...]
    unquantized: tuple[str, ...] = ()
    head: bool = False
    cache: Dtype | None = None
    head_format: Format | None = None
    note: str = ""
    embedding: Dtype | None = None


def gptq(config: Config) -> QuantizedFormats:
    """Integers with a 16-bit scale and a packed zero point per group (GPTQ, arXiv 2210.17323)."""
    bits = bit_width(config, "bits")
    config.ignore("sym", "desc_act", "act_group_aware", "damp_percent", "true_sequential", "static_groups", "dataset")
    config.ignore("tokenizer", "checkpoint_format", "format", "meta", "is_marlin_format", "backend", "exllama_config")
    config.ignore("use_exllama", "disable_exllama", "max_input_length", "model_seqlen", "use_cuda_fp16", "batch_size")
    config.ignore("cache_block_outputs", "block_name_to_quantize", "module_name_preceding_first_block", "pack_dtype")
    config.ignore("model_name_or_path", "model_file_base_name", "quantizer", "hyb_act")
    targets = _block_modules(config)
    stated = {"bits": bits, "group_size": config.count("group_size", 128, minimum=-1)}

    def weights(own: Mapping[str, Any]) -> Dtype:
        fields = Config({**stated, **own}, f"{config.where}: dynamic")
        width = bit_width(fields, "bits")
        return _integers(width, fields.count("group_size", minimum=-1), zero_point_bits=width)

    own, excluded = dynamic_rules(config, weights)
    rule = LayerFormat(format=Format(weights=weights({})), targets=targets)
    return QuantizedFormats(rules=(*own, rule), unquantized=excluded, head=config.flag("lm_head", default=False))


def _block_modules(config: Config) -> tuple[str, ...]:
    """Module names in `modules_in_block_to_quantize`: a list, or a list of lists (modules quantized together)."""
    groups = config.get("modules_in_block_to_quantize", [])
    lists = [group if isinstance(group, list) else [group] for group in (groups if isinstance(groups, list) else [0])]
    names = [name for group in lists for name in group]
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{config.where}: field 'modules_in_block_to_quantize' must list names of modules")
    return tuple(map(str, names))


def dynamic_rules(
    config: Config, weights: Callable[[Mapping[str, Any]], Dtype]
) -> tuple[tuple[LayerFormat, ...], tuple[str, ...]]:
    """Rules of modules with formats of their own in GPTQModel's `dynamic`, and the modules that it leaves in 16 bit.

    `+:expression` (the sign may be missing) has fields of its own, `-:expression` is not quantized; the first that
    matches applies.  weights: own fields -> format.  Source: https://github.com/ModelCloud/GPTQModel, README.
    """
    stated = config.get("dynamic") or {}
    if not isinstance(stated, Mapping) or not all(isinstance(own or {}, Mapping) for own in stated.values()):
        raise UserError(
            f"{config.where}: field 'dynamic' must be a mapping of '+:expression' or '-:expression' to fields"
        )
    own = tuple(
        LayerFormat(format=Format(weights=weights(fields or {})), targets=(f"re:{name.removeprefix('+:')}",))
        for name, fields in stated.items()
        if not name.startswith("-:")
    )
    return own, tuple(f"re:{name[2:]}" for name in stated if name.startswith("-:"))


def awq(config: Config) -> QuantizedFormats:
    """Integers with a 16-bit scale and a packed zero point per group (AWQ, arXiv 2306.00978)."""
    bits = bit_width(config, config.first_present("bits", "w_bit"))
    config.ignore("version", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config")
    group = config.count(config.first_present("group_size", "q_group_size"), 128, minimum=-1)
    zero_point_bits = bits if config.flag("zero_point", default=True) else 0
    weights = _integers(bits, group, zero_point_bits=zero_point_bits)
    return QuantizedFormats(
        rules=(LayerFormat(format=Format(weights=weights)),),
        unquantized=module_entries(config, "modules_to_not_convert"),
    )


def fp8(config: Config) -> QuantizedFormats:
    """8-bit float weights and inputs, with a scale per tensor or per block.

    Per block: an fp32 scale per block of weights and per row of a block of inputs (DeepSeek-V3, arXiv 2412.19437,
    section 3.3).
    """
    config.expect("activation_scheme", "dynamic", "static")
    config.expect("fmt", "e4m3", "float8_e4m3fn", "e5m2")
    config.expect("dequantize", False)
    config.expect("expert_dtype", "fp8", "fp4")
    config.ignore("scale_fmt")
    weights = inputs = DTYPES["fp8"]
    if config.has("weight_block_size"):
        rows, columns = block_size(config, "weight_block_size")
        weights = scaled("fp8", 8, group=rows * columns, scale_bits=32, name=f"fp8-{rows}x{columns}")
        inputs = scaled("fp8", 8, group=columns, scale_bits=32, name=f"fp8-1x{columns}")
    unquantized = module_entries(config, "modules_to_not_convert", "ignored_layers")
    cache = DTYPES["fp8"] if config.has("kv_cache_scheme") else None
    return QuantizedFormats(
        rules=(LayerFormat(format=Format(weights=weights, activations=inputs)),), unquantized=unquantized, cache=cache
    )


def fbgemm_fp8(config: Config) -> QuantizedFormats:
    """8-bit floats with a scale per output channel; inputs with a scale per token (Llama 3.1 405B)."""
    config.ignore("activation_scale_ub")
    rule = LayerFormat(format=Format(weights=DTYPES["fp8"], activations=DTYPES["fp8"]))
    return QuantizedFormats(rules=(rule,), unquantized=module_entries(config, "modules_to_not_convert"))


def mxfp4(config: Config) -> QuantizedFormats:
    """4-bit floats with an 8-bit scale per 32, only in the experts; products in 16 bit (GPT-OSS)."""
    config.expect("dequantize", False)
    rule = LayerFormat(format=Format(weights=DTYPES["mxfp4"]), targets=("experts",))
    return QuantizedFormats(rules=(rule,), unquantized=module_entries(config, "modules_to_not_convert"))


def bitsandbytes(config: Config) -> QuantizedFormats:
    """LLM.int8() with int8 inputs (arXiv 2208.07339), or 4-bit weights that are converted to 16 bit (QLoRA)."""
    config.ignore("llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight")
    config.ignore("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "_load_in_4bit", "_load_in_8bit")
    double = config.flag("bnb_4bit_use_double_quant", default=False)
    kind = config.text("bnb_4bit_quant_type", "fp4")
    unquantized = module_entries(config, "llm_int8_skip_modules")
    four = config.flag("load_in_4bit", default=False)
    if config.flag("load_in_8bit", default=False):
        return QuantizedFormats(
            rules=(LayerFormat(format=Format(weights=DTYPES["int8"], activations=DTYPES["int8"])),),
            unquantized=unquantized,
        )
    if not four:
        raise UserError(f"{config.where}: neither 'load_in_8bit' nor 'load_in_4bit' is true")
    scale_bits = 8 + 32 / BITSANDBYTES_SCALES if double else 32
    weights = scaled(kind, 4, group=BITSANDBYTES_GROUP, scale_bits=scale_bits, name=kind)
    return QuantizedFormats(rules=(LayerFormat(format=Format(weights=weights)),), unquantized=unquantized)


def bit_width(config: Config, name: str) -> int:
    """The bit width in the field `name`, from 1 to 16."""
    bits = config.count(name)
    if bits > 16:
        raise UserError(f"{config.where}: field '{name}' is {bits}, expected 1 to 16")
    return bits


def _integers(bits: int, group: int, *, zero_point_bits: int) -> Dtype:
    """Integer weights with a scale per group; group -1 is one scale per channel, too few to count."""
    return grouped_int(bits, group=group, zero_point_bits=zero_point_bits) if group > 0 else plain_int(bits)


def block_size(config: Config, name: str) -> tuple[int, int]:
    """Rows and columns of a block, from the list in the field `name`."""
    value = config.get(name)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(n, int) and n > 0 for n in value):
        raise UserError(f"{config.where}: field '{name}' must list the rows and columns of a block")
    return value[0], value[1]


def module_entries(config: Config, *names: str) -> tuple[str, ...]:
    """Module names from one or more list fields; null is an empty list."""
    found: list[str] = []
    for name in names:
        value = config.get(name, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise UserError(f"{config.where}: field '{name}' must list names of modules")
        found += value
    return tuple(found)

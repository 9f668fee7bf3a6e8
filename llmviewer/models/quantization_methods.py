"""Readers of `quantization_config`, one per `quant_method`: number formats and the modules that have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.core.dtypes import DTYPES, Dtype, grouped_int, plain_int, scaled
from llmviewer.core.errors import UserError
from llmviewer.formats.linear import Format
from llmviewer.models.config import Config

#: Weights per fp32 scale of bitsandbytes' 4-bit formats (QLoRA, arXiv 2305.14314).
BITSANDBYTES_GROUP = 64
#: With "double quantization" a scale has 8 bits, and this many scales share one fp32 scale.
BITSANDBYTES_SCALES = 256
#: 8-bit floats with an 8-bit scale per 32 (OCP Microscaling v1.0).
MXFP8 = scaled("fp8", 8, group=32, scale_bits=8, name="mxfp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFormat:
    """The format of the linear layers in `targets`; without targets, of all linear layers."""

    format: Format
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
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

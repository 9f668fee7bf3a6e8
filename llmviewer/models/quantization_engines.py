"""Readers of `quantization_config` for formats of one engine's kernels: ModelSlim on Ascend chips, and Humming."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmviewer.core.dtypes import DTYPES, Dtype, grouped_int, plain_int, scaled
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.formats.linear import Format
from llmviewer.models.config import Config
from llmviewer.models.quantization_methods import (
    MXFP8,
    LayerFormat,
    QuantizedFormats,
    dynamic_rules,
    module_entries,
)

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
    found = ASCEND.get(kind.upper())
    if found is None:
        raise unknown("type of a weight", kind, ASCEND, where=config.where)
    if group > 0 and found.weights == plain_int(4):
        return Format(weights=grouped_int(4, group=group), activations=found.activations)
    return found


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
    found = _HUMMING.fullmatch(name.lower())
    if found is None or not 1 <= int(found[2]) <= 16:
        raise UserError(
            f"{fields.where}: number format {quoted(name)} is not known; expected uint4, int8, float4e2m1 ..."
        )
    kind, bits = ("fp" if found[1] == "float" else "int"), int(found[2])
    return DTYPES.get(f"{kind}{bits}") or Dtype(name=f"{kind}{bits}", bits=bits, compute=f"{kind}{bits}")

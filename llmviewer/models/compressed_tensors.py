"""Reader of `quantization_config` for compressed-tensors checkpoints, and for modelopt, which uses the same layout."""

from __future__ import annotations

from llmviewer.core.dtypes import DTYPES, Dtype, get_dtype, scaled
from llmviewer.core.errors import UserError
from llmviewer.formats.linear import Format
from llmviewer.models.config import Config
from llmviewer.models.quantization_methods import (
    LayerFormat,
    QuantizedFormats,
    bit_width,
    block_size,
    module_entries,
)

#: 4-bit float formats with 8-bit scales by definition, by group size: NVFP4 (e4m3 per 16), MXFP4 (e8m0 per 32).
FLOAT4_BY_GROUP = {16: DTYPES["nvfp4"], 32: DTYPES["mxfp4"]}


def compressed_tensors(config: Config) -> QuantizedFormats:
    """Groups of modules, each with formats of weights and inputs; modules in `ignore` are not quantized.

    A group that names modules takes precedence over one that names a class.
    """
    config.ignore("format", "quantization_status", "global_compression_ratio", "run_compressed", "version", "provider")
    config.ignore("quant_algo", "producer")  # fields of modelopt
    config.expect("transform_config", {})
    if config.has("sparsity_config") and config.get("sparsity_config"):
        config.section("sparsity_config").expect("format", "dense")
        config.section("sparsity_config").ignore(*config.section("sparsity_config").fields)
    groups = config.section("config_groups")
    rules = sorted((_group(groups.section(name)) for name in groups.fields), key=lambda rule: not rule.targets)
    cache = cache_format(config)
    unquantized = module_entries(config, "ignore")
    head = any(not rule.targets or "lm_head" in rule.targets for rule in rules)
    return QuantizedFormats(rules=tuple(rules), unquantized=unquantized, head=head, cache=cache)


def cache_format(config: Config) -> Dtype | None:
    """The format of the KV cache: a mapping of fields, a name as ModelOpt states it, or None."""
    if not config.has("kv_cache_scheme"):
        return None
    stated = config.get("kv_cache_scheme")
    return get_dtype(stated) if isinstance(stated, str) else _number_format(config.section("kv_cache_scheme"))


def _group(config: Config) -> LayerFormat:
    config.ignore("format")
    if config.has("output_activations"):
        raise UserError(f"{config.where}: field 'output_activations' is not supported; only null is")
    formats = {
        part: _number_format(config.section(part)) for part in ("weights", "input_activations") if config.has(part)
    }
    targets = module_entries(config, "targets")
    names_class = any(target.endswith("Linear") for target in targets)  # all linear layers
    layer_format = Format(weights=formats.get("weights"), activations=formats.get("input_activations"))
    return LayerFormat(format=layer_format, targets=() if names_class else targets)


def _number_format(config: Config) -> Dtype:
    """Number format of one tensor: `num_bits`, `type`, and scales by `strategy`."""
    bits = bit_width(config, "num_bits")
    config.ignore("dynamic", "actorder", "observer", "observer_kwargs", "zp_dtype")
    config.expect("type", "int", "float")
    config.expect("strategy", "tensor", "channel", "token", "group", "tensor_group", "block")
    kind = "fp" if config.text("type", "int") == "float" else "int"
    zero_point = 0.0 if config.flag("symmetric", default=True) else float(bits)
    scale_bits = _scale_bits(config) + zero_point
    group, strategy = config.count("group_size", 0, minimum=-1), config.text("strategy", "")
    if strategy == "block" or config.has("block_structure"):
        rows, columns = block_size(config, "block_structure")
        return scaled(f"{kind}{bits}", bits, group=rows * columns, scale_bits=scale_bits)
    if group <= 0:
        return DTYPES.get(f"{kind}{bits}") or Dtype(name=f"{kind}{bits}", bits=bits, compute=f"{kind}{bits}")
    if kind == "fp" and bits == 4 and group in FLOAT4_BY_GROUP:
        return FLOAT4_BY_GROUP[group]
    return scaled(f"{kind}{bits}", bits, group=group, scale_bits=scale_bits)


def _scale_bits(config: Config) -> float:
    """Bits of a scale: 16, the model's dtype, unless `scale_dtype` states another."""
    stated = config.text("scale_dtype", "bfloat16")
    return 8.0 if "8" in stated else 32.0 if "32" in stated else 16.0

"""Readers of `quantization_config` of toolkits that quantize inputs: compressed-tensors, Quark, torchao, ModelOpt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from llmviewer.core.dtypes import DTYPES, Dtype, get_dtype, grouped_int, plain_int, scaled
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.formats.linear import Format
from llmviewer.models.config import Config
from llmviewer.models.quantization_methods import (
    MXFP8,
    LayerFormat,
    QuantizedFormats,
    bit_width,
    block_size,
    fp8,
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


FP8, INT8 = DTYPES["fp8"], DTYPES["int8"]
#: quant_algo of ModelOpt -> format.  Source: https://github.com/NVIDIA/Model-Optimizer, modelopt/torch/export.
ALGORITHMS: dict[str, Format] = {
    "FP8": Format(weights=FP8, activations=FP8),
    "FP8_PER_CHANNEL_PER_TOKEN": Format(weights=FP8, activations=FP8),
    "FP8_PB_WO": Format(weights=scaled("fp8", 8, group=128 * 128, scale_bits=32)),
    "INT8_SQ": Format(weights=INT8, activations=INT8),
    "W8A8_SQ_PER_CHANNEL": Format(weights=INT8, activations=INT8),
    "W8A16": Format(weights=INT8),
    "W4A16": Format(weights=grouped_int(4)),
    "W4A16_AWQ": Format(weights=grouped_int(4)),
    "W4A8_AWQ": Format(weights=grouped_int(4), activations=FP8),
    "W4A8_MXFP4_FP8": Format(weights=DTYPES["mxfp4"], activations=FP8),
    "NVFP4": Format(weights=DTYPES["nvfp4"], activations=DTYPES["nvfp4"]),
    "NVFP4_AWQ": Format(weights=DTYPES["nvfp4"], activations=DTYPES["nvfp4"]),
    "W4A16_NVFP4": Format(weights=DTYPES["nvfp4"]),
    "MXFP4": Format(weights=DTYPES["mxfp4"]),
    "MXFP8": Format(weights=MXFP8, activations=MXFP8),
}
#: Fields that state ModelOpt's format of the KV cache.
CACHE_FIELDS = ("kv_cache_quant_algo", "kv_cache_scheme")
#: Class of torchao (or its older name) -> weights and inputs; group sizes are those of its defaults.
#: Source: https://docs.pytorch.org/ao/stable/api_ref_quantization.html
TORCHAO: dict[str, Format] = {
    "int4weightonly": Format(weights=scaled("int4", 4, group=128, scale_bits=32)),
    "int8weightonly": Format(weights=INT8),
    "int8dynamicactivationint4weight": Format(weights=scaled("int4", 4, group=32, scale_bits=32), activations=INT8),
    "int8dynamicactivationintxweight": Format(weights=scaled("int4", 4, group=32, scale_bits=32), activations=INT8),
    "int8dynamicactivationint8weight": Format(weights=INT8, activations=INT8),
    "float8weightonly": Format(weights=FP8),
    "float8dynamicactivationfloat8weight": Format(weights=FP8, activations=FP8),
    "float8dynamicactivationint4weight": Format(weights=grouped_int(4), activations=FP8),
    "intxweightonly": Format(weights=scaled("int8", 8, group=32, scale_bits=16)),
    "nvfp4inference": Format(weights=DTYPES["nvfp4"], activations=DTYPES["nvfp4"]),
    "mxfp8inference": Format(weights=MXFP8, activations=MXFP8),
}


def modelopt(config: Config) -> QuantizedFormats:
    """ModelOpt: groups as in compressed-tensors, or one `quant_algo`; `quantized_layers` have formats of their own."""
    if isinstance(config.get("quantization"), Mapping):  # the layout of hf_quant_config.json
        config.ignore("producer")
        return modelopt(config.section("quantization"))
    if config.has("config_groups"):
        config.ignore("quantized_layers", "group_size", "moe_quant_algo", "kv_cache_quant_algo", "exclude_modules")
        return compressed_tensors(config)
    config.ignore("producer", "quant_method", "group_size", "has_zero_point", "pre_quant_scale", "smoothquant_val")
    config.ignore("clamp_val", "use_meta_recipe")
    rules = list(_own_layers(config))
    algorithm = config.text("quant_algo")
    if algorithm != "MIXED_PRECISION":
        rules.append(LayerFormat(format=algorithm_format(config, algorithm, config.get("group_size"))))
    if not rules:
        raise UserError(f"{config.where}: quant_algo is MIXED_PRECISION, but 'quantized_layers' lists no layer")
    scheme = isinstance(config.get("kv_cache_scheme"), Mapping)  # as in compressed-tensors
    cache = config.text("kv_cache_quant_algo" if scheme else config.first_present(*CACHE_FIELDS), "")
    if cache.upper() not in ("", "FP8", "NVFP4", "INT8", "NONE"):
        raise UserError(f"{config.where}: field 'kv_cache_quant_algo' is {quoted(cache)}; supported: FP8, INT8, NVFP4")
    named = {"FP8": FP8, "INT8": INT8, "NVFP4": DTYPES["nvfp4"]}.get(cache.upper())
    stored = cache_format(config) if scheme else named
    unquantized = module_entries(config, "exclude_modules", "ignore")
    head = not unquantized or any("lm_head" in rule.targets for rule in rules)
    return QuantizedFormats(rules=tuple(rules), unquantized=unquantized, head=head, cache=stored)


def _own_layers(config: Config) -> tuple[LayerFormat, ...]:
    """A rule for each format in `quantized_layers`."""
    layers = config.get("quantized_layers", {})
    if not isinstance(layers, Mapping) or not all(isinstance(layer, Mapping) for layer in layers.values()):
        raise UserError(f"{config.where}: field 'quantized_layers' must be a mapping of layers")
    named: dict[tuple[str, object], list[str]] = {}
    for name, layer in layers.items():
        named.setdefault((str(layer.get("quant_algo")), layer.get("group_size")), []).append(name)
    return tuple(
        LayerFormat(format=algorithm_format(config, algorithm, group), targets=tuple(names))
        for (algorithm, group), names in named.items()
    )


def algorithm_format(config: Config, algorithm: str, group: object) -> Format:
    """The format of a `quant_algo`; integers of 4 bits have a scale per `group` weights."""
    if algorithm not in ALGORITHMS:
        raise unknown("quant_algo", algorithm, ALGORITHMS, where=config.where)
    form = ALGORITHMS[algorithm]
    if algorithm.startswith("W4A") and isinstance(group, int) and group > 0 and form.weights == grouped_int(4):
        return Format(weights=grouped_int(4, group=group), activations=form.activations)
    return form


def fp8_or_mixed(config: Config) -> QuantizedFormats:
    """An FP8 checkpoint; with `moe_quant_algo` ModelOpt has stored its routed experts in another format.

    `expert_dtype` fp4: DeepSeek-V4's routed experts, with an 8-bit scale per 32 and inputs in fp8.
    Source: https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash.
    """
    base = fp8(config)
    if config.text("expert_dtype", "fp8") == "fp4":
        experts = replace(base.rules[0].format, weights=DTYPES["mxfp4"])
        return replace(base, rules=(LayerFormat(format=experts, targets=("experts",)), *base.rules))
    if not config.has("moe_quant_algo"):
        return base
    config.ignore("config_groups", "quantized_layers", "ignore", "producer", "quant_algo", "group_size")
    config.expect("kv_cache_quant_algo", "FP8")
    experts = algorithm_format(config, config.text("moe_quant_algo"), None)
    return QuantizedFormats(
        rules=(LayerFormat(format=experts, targets=("experts",)), *base.rules),
        unquantized=base.unquantized,
        cache=FP8 if config.has("kv_cache_quant_algo") else base.cache,
    )


def quark(config: Config) -> QuantizedFormats:
    """Quark (AMD): a global format, formats of named layers, and excluded layers.

    Source: https://quark.docs.amd.com, and vllm/model_executor/layers/quantization/quark in
    https://github.com/vllm-project/vllm.
    """
    config.ignore("algo_config", "export", "quant_mode", "softmax_quant_spec", "kv_cache_group", "packed", "version")
    config.ignore("log_severity_level", "pack_method", "custom_mode", "weight_format", "kv_cache_post_rope")
    config.ignore("kv_cache_quant_config", "kv_cache_output_quant_config")
    config.expect("layer_type_quant_config", {})
    named = config.get("layer_quant_config") or {}
    if not isinstance(named, Mapping):
        raise UserError(f"{config.where}: field 'layer_quant_config' must be a mapping of layers")
    rules = [
        LayerFormat(format=_quark_format(Config(value, config.where)), targets=(name,))
        for name, value in named.items()
        if isinstance(value, Mapping)
    ]
    rules.append(LayerFormat(format=_quark_format(config.section("global_quant_config"))))
    caches = config.get("kv_cache_quant_config") or {}
    cache = FP8 if "fp8" in str(caches).lower() else None
    unquantized = module_entries(config, "exclude")
    return QuantizedFormats(rules=tuple(rules), unquantized=unquantized, head=not unquantized, cache=cache)


def _quark_format(config: Config) -> Format:
    config.ignore("bias", "target_device", "output_tensors")
    parts = [_quark_stored(config, name) if config.has(name) else None for name in ("weight", "input_tensors")]
    return Format(weights=parts[0], activations=parts[1])


def _quark_stored(config: Config, name: str) -> Dtype:
    """The format in which a tensor is stored: of two stages (fp8, then int4) the one with fewer bits."""
    stages = config.get(name)
    if not isinstance(stages, list):
        return _quark_dtype(config.section(name))
    if not stages or not all(isinstance(stage, Mapping) for stage in stages):
        raise UserError(f"{config.where}: field '{name}' must be a mapping of fields, or a list of such stages")
    return min((_quark_dtype(Config(stage, config.where)) for stage in stages), key=lambda dtype: dtype.bits)


def _quark_dtype(config: Config) -> Dtype:
    """The format of one tensor: `dtype`, and scales by `qscheme` and `group_size`."""
    name, group = config.text("dtype").lower(), config.count("group_size", 0, minimum=-1)
    config.ignore(*config.fields)
    per_group = config.text("qscheme", "") == "per_group" and group > 0
    if "fp8" in name:
        return scaled("fp8", 8, group=group, scale_bits=8) if per_group else FP8
    if name in ("fp4", "mxfp4", "nvfp4", "fp4_e2m1"):
        return DTYPES["nvfp4" if name == "nvfp4" or group == 16 else "mxfp4"]
    bits = next((n for n in (2, 3, 4, 6, 8) if name in (f"int{n}", f"uint{n}")), 0)
    zero_point = bits if name.startswith("u") else 0
    if not bits:
        raise UserError(f"{config.where}: field 'dtype' is {quoted(name)}; supported: fp8, fp4, int2 to int8, uint4")
    return grouped_int(bits, group=group, zero_point_bits=zero_point) if per_group else plain_int(bits)


def torchao(config: Config) -> QuantizedFormats:
    """torchao: `quant_type` is a class with its fields, or a name with `quant_type_kwargs`."""
    config.ignore("include_input_output_embeddings", "untie_embedding_weights")
    stated = config.get("quant_type")
    given = config.get("quant_type_kwargs") or {}
    if isinstance(stated, Mapping):
        inner = stated.get("default", stated)
        named, given = (inner.get("_type"), inner.get("_data") or {}) if isinstance(inner, Mapping) else (None, {})
    else:
        named = stated
    key = str(named).removesuffix("Config").lower().replace("_", "")
    if key not in TORCHAO:
        raise unknown("quant_type", str(named), TORCHAO, where=config.where)
    form, group = TORCHAO[key], given.get("group_size") if isinstance(given, Mapping) else None
    if isinstance(group, int) and group > 0 and form.weights and form.weights.compute.startswith("int4"):
        form = Format(weights=scaled("int4", 4, group=group, scale_bits=32), activations=form.activations)
    rule = LayerFormat(format=form)
    return QuantizedFormats(rules=(rule,), unquantized=module_entries(config, "modules_to_not_convert"))


def float4(config: Config) -> QuantizedFormats:
    """4-bit floats for weights and inputs: FP-Quant (arXiv 2509.23202) and Four Over Six (arXiv 2512.02010)."""
    config.ignore("forward_method", "backward_dtype", "hadamard_group_size", "pseudoquantization", "transform_init")
    config.ignore("activation_scale_rule", "gradient_dtype", "gradient_scale_rule", "matmul_backend", "output_dtype")
    config.ignore("quantize_backend", "scale_rule", "weight_scale_2d", "weight_scale_rule")
    config.expect("store_master_weights", False)
    config.expect("keep_master_weights", False)
    config.expect("module_config_overrides", {})
    name = config.first_present("forward_dtype", "dtype")
    config.expect(name, "mxfp4", "nvfp4")
    stored = DTYPES[config.text(name, "nvfp4")]
    for part in ("weight_dtype", "activation_dtype"):
        config.expect(part, stored.name)
    rule = LayerFormat(format=Format(weights=stored, activations=stored))
    return QuantizedFormats(rules=(rule,), unquantized=module_entries(config, "modules_to_not_convert"))


def eight_bit_inputs(config: Config) -> QuantizedFormats:
    """Weights and inputs of 8 bits with a scale per channel and token: names of SGLang and vLLM."""
    dtype = FP8 if "fp8" in config.text("quant_method", "") else INT8
    if "mxfp8" in config.text("quant_method", ""):
        dtype = MXFP8
    config.ignore("activation_scheme", "is_dynamic", "weight_block_size", "scale_fmt", "fmt")
    rule = LayerFormat(format=Format(weights=dtype, activations=dtype))
    return QuantizedFormats(
        rules=(rule,), unquantized=module_entries(config, "modules_to_not_convert", "ignored_layers", "ignore")
    )

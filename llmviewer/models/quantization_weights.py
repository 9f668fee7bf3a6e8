"""Readers of `quantization_config` for methods that store weights in few bits and multiply them in 16 bit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llmviewer.core.dtypes import DTYPES, Dtype, scaled
from llmviewer.core.errors import UserError, quoted
from llmviewer.formats.linear import Format
from llmviewer.models.config import Config
from llmviewer.models.quantization_methods import MXFP8, LayerFormat, QuantizedFormats, bit_width, module_entries

#: Weights per scale of Quanto's integers (https://github.com/huggingface/optimum-quanto, optimum/quanto/nn/qmodule.py).
QUANTO_GROUP = 128
#: Module of the token table in MLX.
_TABLE = "embed_tokens"
#: Modules of MLX whose names have no dot.
_MODULES = ("lm_head", _TABLE)
#: Characters by which a name of AutoRound's `extra_config` is an expression, searched for in the names of modules
#: (https://github.com/vllm-project/vllm, vllm/model_executor/layers/quantization).
_EXPRESSION = frozenset("*+?^$()[]{}|\\")


def weights_only(dtype: Dtype, unquantized: tuple[str, ...] = (), note: str = "") -> QuantizedFormats:
    """One format for the weights of all linear layers but `unquantized`."""
    return QuantizedFormats(rules=(LayerFormat(format=Format(weights=dtype)),), unquantized=unquantized, note=note)


def packed(name: str, bits: float) -> Dtype:
    """A format of `bits` per weight, codes and scales together, that no matrix unit multiplies."""
    return Dtype(name=f"{name}-{bits:.4g}bit", bits=bits, compute=f"{name}{bits:.4g}")


def auto_round(config: Config) -> QuantizedFormats:
    """Integers as in GPTQ, or MXFP4 and NVFP4 (AutoRound, https://github.com/intel/auto-round, docs).

    Layers in `extra_config` with 16 bits are not quantized; layers of other bits have a rule each.
    """
    config.ignore("iters", "lr", "minmax_lr", "nsamples", "seqlen", "low_gpu_mem_usage", "autoround_version", "amp")
    config.ignore(
        "enable_quanted_input", "enable_minmax_tuning", "scale_dtype", "packing_format", "to_quant_block_names"
    )
    config.ignore(
        "gradient_accumulate_steps", "low_cpu_mem_usage", "train_bs", "super_bits", "super_group_size", "act_sym"
    )
    config.ignore("act_dynamic", "act_group_size", "block_name_to_quantize", "quant_block_list")
    config.ignore(
        "batch_size", "quant_nontext_module", "provider", "static_kv_dtype", "export_format", "rotation_config"
    )
    config.ignore("model_free", "sym", "data_type")
    stated = {name: config.get(name) for name in ("bits", "group_size", "data_type", "act_bits", "act_data_type")}

    def own(fields: Mapping[str, Any], where: str) -> Format | None:
        given = {name: value for name, value in {**stated, **fields}.items() if value is not None}
        return _auto_round_format(Config(given, where))

    named = {
        _searched(name): own(fields, f"{config.where}: extra_config")
        for name, fields in _mapping(config, "extra_config").items()
        if isinstance(fields, Mapping)
    }
    default = own({}, config.where)
    if default is None:
        raise UserError(f"{config.where}: field 'bits' is {quoted(config.get('bits'))}, expected 1 to 15")
    rules = [LayerFormat(format=form, targets=(name,)) for name, form in named.items() if form is not None]
    plain = tuple(name for name, form in named.items() if form is None)
    has_head = any(rule.targets == ("lm_head",) for rule in rules)
    rules.append(LayerFormat(format=default))
    return QuantizedFormats(rules=tuple(rules), unquantized=plain, head=config.flag("lm_head", default=has_head))


def _searched(name: str) -> str:
    """A name of `extra_config` as an entry of a module list."""
    if _EXPRESSION.isdisjoint(name):
        return name
    return f"re:{name}" if name.startswith((".*", "^")) else f"re:.*{name}"


def _auto_round_format(fields: Config) -> Format | None:
    """The format of one set of AutoRound's fields; None for 16 bits.  Inputs below 16 bits are quantized too."""
    bits, inputs = fields.count("bits"), fields.count("act_bits", 16)
    if bits >= 16:
        return None
    kind = fields.text("data_type", "int")
    weights = _auto_round_dtype(fields, kind, bits)
    if inputs >= 16:
        return Format(weights=weights)
    return Format(weights=weights, activations=_auto_round_dtype(fields, fields.text("act_data_type", kind), inputs))


def _auto_round_dtype(fields: Config, kind: str, bits: int) -> Dtype:
    """The format of a `data_type`: mx_fp, nv_fp (also spelled mxfp4, fp4_v2 ...), fp, and integers with scales."""
    word = kind.replace("_", "")
    if word.startswith("mxfp") and bits in (4, 8):
        return MXFP8 if bits == 8 else DTYPES["mxfp4"]
    if word.startswith(("nvfp", "fp4v2")) and bits == 4:
        return DTYPES["nvfp4"]
    if word.startswith("fp") and bits == 8:
        return DTYPES["fp8"]
    if word in ("int", "intsym", "intasym", "intasymdq", "intsymdq"):
        return _grouped(bits, _group_size(fields))
    raise UserError(
        f"{fields.where}: data_type {quoted(kind)} of {bits} bits is not known; supported: int, fp (8 bits), "
        "mx_fp (4 and 8 bits), nv_fp (4 bits)"
    )


def _group_size(config: Config) -> int:
    return config.count("group_size", 128, minimum=-1)


def _grouped(bits: float, group: int) -> Dtype:
    """Integers with a 16-bit scale and a packed zero point per group; group -1 is one per channel, too few to count."""
    return scaled(f"int{bits:g}", bits, group=group, scale_bits=16 + bits) if group > 0 else packed("int", bits)


def _mapping(config: Config, name: str) -> Mapping[str, Any]:
    value = config.get(name, {})
    if not isinstance(value, Mapping):
        raise UserError(f"{config.where}: field '{name}' must be a mapping of fields")
    return value


def aqlm(config: Config) -> QuantizedFormats:
    """Additive codes: `num_codebooks` codes of `nbits_per_codebook` bits per group of weights (arXiv 2401.06118)."""
    group = config.count("in_group_size", 8) * config.count("out_group_size", 1)
    bits = config.count("num_codebooks", 1) * config.count("nbits_per_codebook", 16, maximum=32) / group
    codebooks = "AQLM: the codebooks of every matrix are not counted (2^bits vectors of 16-bit numbers each)"
    unquantized = module_entries(config, "linear_weights_not_to_quantize")
    names = tuple(name.removesuffix(".weight") for name in unquantized)
    return weights_only(packed("aqlm", bits), names, codebooks)


def vptq(config: Config) -> QuantizedFormats:
    """Vector codes and codes of their residuals, by layer (VPTQ, arXiv 2409.17066): log2(centroids) / length each."""
    config.ignore("enable_proxy_error", "shared_layer_config", "modules_to_not_convert")
    layers = _mapping(config, "config_for_layers")
    by_bits: dict[float, list[str]] = {}
    for name, layer in layers.items():
        by_bits.setdefault(_vptq_bits(config, layer), []).append(name)
    if not by_bits:
        raise UserError(f"{config.where}: field 'config_for_layers' must give the codes of every layer")
    rules = tuple(
        LayerFormat(format=Format(weights=packed("vptq", bits)), targets=tuple(names))
        for bits, names in by_bits.items()
    )
    note = "VPTQ: the codebooks of every matrix are not counted (centroids of 16-bit numbers)"
    return QuantizedFormats(rules=rules, note=note)


def _vptq_bits(config: Config, layer: object) -> float:
    """Bits per weight of one layer: of its codes, and of their residuals if there are any."""
    fields = layer if isinstance(layer, Mapping) else {}
    total = 0.0
    for name in ("num_centroids", "num_res_centroids"):
        try:
            length, centroids = float(fields["vector_lens"][-1]), float(fields.get(name, [-1])[-1])
        except (KeyError, IndexError, TypeError, ValueError):
            raise UserError(f"{config.where}: a layer of 'config_for_layers' has no vector_lens or {name}") from None
        total += math.log2(centroids) / length if centroids > 1.0 and length >= 1.0 else 0.0
    if total <= 0.0:
        raise UserError(f"{config.where}: a layer of 'config_for_layers' has no centroids")
    return total


def hqq(config: Config) -> QuantizedFormats:
    """Integers with a 16-bit scale and zero point per group (HQQ, https://github.com/mobiusml/hqq).

    A scale or zero point that is quantized itself has 8 bits.  Modules may have formats of their own.
    """
    config.ignore("hqq_format_version", "dynamic_config", "version", "axis")
    skipped = module_entries(config, "skip_modules", "modules_to_not_convert")
    quantized = _mapping(config, "quant_config")
    if "weight_quant_params" in quantized or not quantized:
        return weights_only(_hqq_format(config, quantized or config.fields), skipped)
    rules = tuple(
        LayerFormat(format=Format(weights=_hqq_format(config, params)), targets=(name,))
        for name, params in quantized.items()
    )
    return QuantizedFormats(rules=rules, unquantized=skipped)


def _hqq_format(config: Config, params: object) -> Dtype:
    """The format of one set of HQQ parameters."""
    fields = params if isinstance(params, Mapping) else {}
    inner = fields.get("weight_quant_params", fields)
    weights = Config(inner if isinstance(inner, Mapping) else {}, f"{config.where}: weight_quant_params")
    config.ignore("nbits", "group_size")
    bits, group = bit_width(weights, "nbits"), weights.count("group_size", 0, minimum=0)
    scale_bits = sum(8.0 if fields.get(name) else 16.0 for name in ("scale_quant_params", "zero_quant_params"))
    return scaled(f"int{bits}", bits, group=group, scale_bits=scale_bits) if group else packed("int", bits)


def exl2(config: Config) -> QuantizedFormats:
    """Mixed bits, on average `bits` per weight with all scales; `head_bits` in lm_head (ExLlamaV2 and V3).

    Source: https://github.com/turboderp-org/exllamav2, README and doc/convert.md.
    """
    config.ignore(
        "version", "calibration", "calibration_dataset", "codebook", "original_config", "out_scales", "scales"
    )
    bits = config.number("bits", 0.0)
    head = config.number(config.first_present("head_bits", "lm_head_bits"), 6.0)
    if not 0.0 < bits <= 16.0 or not 0.0 < head <= 16.0:
        raise UserError(f"{config.where}: field 'bits' is {quoted(config.get('bits'))}, expected 1 to 16")
    rule = LayerFormat(format=Format(weights=packed("exl", bits)))
    return QuantizedFormats(rules=(rule,), head=True, head_format=Format(weights=packed("exl", head)))


def eight_bits(config: Config) -> QuantizedFormats:
    """8-bit integers with a scale per output channel (EETQ, https://github.com/NetEase-FuXi/EETQ)."""
    config.expect("weights", "int8")
    return weights_only(DTYPES["int8"], module_entries(config, "modules_to_not_convert"))


def quanto(config: Config) -> QuantizedFormats:
    """Integers or 8-bit floats; below 8 bits with a 16-bit scale and shift per group of 128 weights."""
    config.expect("activations", "int8", "float8")
    names = {"float8": DTYPES["fp8"], "int8": DTYPES["int8"]}
    names |= {f"int{n}": scaled(f"int{n}", n, group=QUANTO_GROUP, scale_bits=32.0) for n in (2, 4)}
    config.expect("weights", *names)
    return weights_only(names[config.text("weights", "int8")], module_entries(config, "modules_to_not_convert"))


def higgs(config: Config) -> QuantizedFormats:
    """Grid codes with a 16-bit scale per group after a Hadamard transform (HIGGS, arXiv 2411.17525)."""
    config.ignore("p", "hadamard_size", "tune_metadata")
    bits = config.count("bits", 4, maximum=8)
    weights = packed("higgs", bits + 16.0 / config.count("group_size", 256))
    return weights_only(weights, module_entries(config, "modules_to_not_convert"))


def spqr(config: Config) -> QuantizedFormats:
    """Codes with scales and zero points of the same bits per `beta1` weights, whose own scales are 16 bit (SpQR).

    Source: arXiv 2306.03078, section 4: b + 2 b / beta1 + 64 / (beta1 beta2) bits; outliers have 32 bits each.
    """
    config.ignore("shapes")
    bits, first, second = bit_width(config, "bits"), config.count("beta1", 16), config.count("beta2", 16)
    stored = bits + 2.0 * bits / first + 64.0 / (first * second)
    note = "SpQR: outliers, about 1 % of the weights at 32 bits each, are not counted"
    return weights_only(packed("spqr", stored), module_entries(config, "modules_to_not_convert"), note)


def bitnet(config: Config) -> QuantizedFormats:
    """Ternary weights, four in a byte, with 8-bit inputs (BitNet b1.58, arXiv 2402.17764; transformers' BitLinear).

    `quantization_mode: online` keeps 16-bit weights and rounds them when they are used.
    """
    config.ignore("use_rms_norm", "rms_norm_eps", "linear_class")
    unquantized = module_entries(config, "modules_to_not_convert")
    config.expect("quantization_mode", "offline", "online")
    offline = config.text("quantization_mode", "offline") == "offline"
    layer_format = Format(weights=Dtype(name="ternary", bits=2.0, compute="int8"), activations=DTYPES["int8"])
    rules = (
        (LayerFormat(format=layer_format),) if offline else (LayerFormat(format=Format(activations=DTYPES["int8"])),)
    )
    return QuantizedFormats(rules=rules, unquantized=unquantized)


def mlx(config: Config) -> QuantizedFormats:
    """Integers with a 16-bit scale and bias per group, or MXFP4, MXFP8 and NVFP4 (MLX, Metal kernels).

    The embedding and lm_head are quantized too.  Modules may have formats of their own; false leaves one in 16 bit.
    Source: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html
    """
    config.ignore("quant_method", "linear_class", "quantization_mode")
    config.expect("dequantize", False)
    modules = {
        name: value
        for name, value in config.fields.items()
        if isinstance(value, (Mapping, bool)) and ("." in name or name in _MODULES)
    }
    config.ignore(*modules)
    own = [
        LayerFormat(format=Format(weights=_mlx_format(Config(value, config.where), config)), targets=(name,))
        for name, value in modules.items()
        if isinstance(value, Mapping)
    ]
    plain = tuple(name for name, value in modules.items() if value is False)
    default = LayerFormat(format=Format(weights=_mlx_format(config, config)))
    unquantized = (*plain, *module_entries(config, "modules_to_not_convert"))
    tables = [rule.format.weights for rule in own if rule.targets[0].endswith(_TABLE)] or [default.format.weights]
    embedding = None if any(name.endswith(_TABLE) for name in plain) else tables[0]
    return QuantizedFormats(rules=(*own, default), unquantized=unquantized, head=True, embedding=embedding)


def _mlx_format(fields: Config, default: Config) -> Dtype:
    """The format of one set of fields; what they leave out is that of the whole checkpoint."""
    mode = fields.text("mode", default.text("mode", "affine"))
    floats = {"mxfp4": DTYPES["mxfp4"], "nvfp4": DTYPES["nvfp4"], "mxfp8": MXFP8}
    group = fields.count("group_size", default.count("group_size", 64))
    bits = fields.count("bits", default.count("bits", 4), maximum=16)
    if mode in floats:
        return floats[mode]
    if mode != "affine":
        raise UserError(f"{default.where}: field 'mode' is {quoted(mode)}; supported: affine, {', '.join(floats)}")
    return scaled(f"int{bits}", bits, group=group, scale_bits=32.0)


def marlin(config: Config) -> QuantizedFormats:
    """4-bit integers with a 16-bit scale per group in Marlin's layout (https://github.com/IST-DASLab/marlin)."""
    group = _group_size(config)
    config.expect("bits", 4)
    return weights_only(scaled("int4", 4, group=group) if group > 0 else packed("int", 4))

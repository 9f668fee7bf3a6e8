"""Readers of `quantization_config`, one per `quant_method`: which formats, for which modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmviewer.core.dtypes import DTYPES, Dtype, grouped_int, plain_int, scaled
from llmviewer.core.errors import UserError, quoted
from llmviewer.formats.linear import Format
from llmviewer.models.config import Config

#: A 4-bit code per weight and an fp32 scale per 64 of them (QLoRA, arXiv 2305.14314).
BITSANDBYTES_GROUP = 64
#: Where scales are quantized again ("double quantization"), 8 bits each and one fp32 per 256 of them.
BITSANDBYTES_SCALES = 256
#: Scales of a float format that are 8 bit by its definition: NVFP4 (e4m3 per 16), MXFP4 (e8m0 per 32).
FLOAT4_BY_GROUP = {16: DTYPES["nvfp4"], 32: DTYPES["mxfp4"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFormat:
    """Linear layers among `targets` have this format; no targets: all of them."""

    format: Format
    targets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a checkpoint holds in other formats: the first rule that fits holds, save for the modules in `kept`.

    head: rules reach lm_head too, where it is a matrix of its own.
    """

    rules: tuple[LayerFormat, ...]
    kept: tuple[str, ...] = ()
    head: bool = False
    cache: Dtype | None = None


def gptq(config: Config) -> Stored:
    """Integers with a 16-bit scale and a packed zero point per group (GPTQ, arXiv 2210.17323)."""
    bits = _bits(config, "bits")
    config.ignore("sym", "desc_act", "act_group_aware", "damp_percent", "true_sequential", "static_groups", "dataset")
    config.ignore("tokenizer", "checkpoint_format", "format", "meta", "is_marlin_format", "backend", "exllama_config")
    config.ignore("use_exllama", "disable_exllama", "max_input_length", "model_seqlen", "use_cuda_fp16", "batch_size")
    config.ignore("cache_block_outputs", "block_name_to_quantize", "module_name_preceding_first_block", "pack_dtype")
    config.ignore("model_name_or_path", "model_file_base_name", "quantizer", "hyb_act")
    targets = _inside_block(config)
    weights = _integers(bits, config.count("group_size", 128, least=-1), zero_point_bits=bits)
    rule = LayerFormat(format=Format(weights=weights), targets=targets)
    return Stored(rules=(rule,), kept=_excluded(config), head=config.flag("lm_head", default=False))


def _inside_block(config: Config) -> tuple[str, ...]:
    """Names of modules, in a list of lists (those quantized together) or in one."""
    groups = config.get("modules_in_block_to_quantize", [])
    lists = [group if isinstance(group, list) else [group] for group in (groups if isinstance(groups, list) else [0])]
    names = [name for group in lists for name in group]
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{config.where}: field 'modules_in_block_to_quantize' must list names of modules")
    return tuple(map(str, names))


def _excluded(config: Config) -> tuple[str, ...]:
    """GPTQModel's `dynamic`: `-:expression` leaves modules out; other bits for some modules are not understood."""
    rules = config.get("dynamic") or {}
    for name in rules if isinstance(rules, dict) else [rules]:
        if not str(name).startswith("-:"):
            raise UserError(f"{config.where}: entry {quoted(name)} of 'dynamic' is not understood; only '-:' is")
    return tuple(f"re:{str(name).removeprefix('-:')}" for name in rules)


def awq(config: Config) -> Stored:
    """Integers with a 16-bit scale and a packed zero point per group (AWQ, arXiv 2306.00978)."""
    bits = _bits(config, config.one_of("bits", "w_bit"))
    config.ignore("version", "backend", "do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config")
    group = config.count(config.one_of("group_size", "q_group_size"), 128, least=-1)
    zero_point_bits = bits if config.flag("zero_point", default=True) else 0
    weights = _integers(bits, group, zero_point_bits=zero_point_bits)
    return Stored(rules=(LayerFormat(format=Format(weights=weights)),), kept=_entries(config, "modules_to_not_convert"))


def fp8(config: Config) -> Stored:
    """8-bit floats, inputs too: a scale per tensor, or an fp32 scale per block of weights and per row of a block of
    inputs (DeepSeek-V3, arXiv 2412.19437, section 3.3)."""
    config.expect("activation_scheme", "dynamic", "static")
    config.expect("fmt", "e4m3", "float8_e4m3fn", "e5m2")
    config.expect("dequantize", False)
    config.expect("expert_dtype", "fp8")
    config.ignore("scale_fmt")
    weights = inputs = DTYPES["fp8"]
    if config.has("weight_block_size"):
        rows, columns = _pair(config, "weight_block_size")
        weights = scaled("fp8", 8, group=rows * columns, scale_bits=32, name=f"fp8-{rows}x{columns}")
        inputs = scaled("fp8", 8, group=columns, scale_bits=32, name=f"fp8-1x{columns}")
    kept = _entries(config, "modules_to_not_convert", "ignored_layers")
    cache = DTYPES["fp8"] if config.has("kv_cache_scheme") else None
    return Stored(rules=(LayerFormat(format=Format(weights=weights, activations=inputs)),), kept=kept, cache=cache)


def fbgemm_fp8(config: Config) -> Stored:
    """8-bit floats with a scale per output channel, inputs with one per token (Llama 3.1 405B)."""
    config.ignore("activation_scale_ub")
    rule = LayerFormat(format=Format(weights=DTYPES["fp8"], activations=DTYPES["fp8"]))
    return Stored(rules=(rule,), kept=_entries(config, "modules_to_not_convert"))


def mxfp4(config: Config) -> Stored:
    """4-bit floats with an 8-bit scale per 32, in the experts alone; products in 16 bit (GPT-OSS)."""
    config.expect("dequantize", False)
    rule = LayerFormat(format=Format(weights=DTYPES["mxfp4"]), targets=("experts",))
    return Stored(rules=(rule,), kept=_entries(config, "modules_to_not_convert"))


def bitsandbytes(config: Config) -> Stored:
    """LLM.int8() multiplies int8 inputs (arXiv 2208.07339); 4-bit codes are converted to 16 bit (QLoRA)."""
    config.ignore("llm_int8_threshold", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight")
    config.ignore("bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "_load_in_4bit", "_load_in_8bit")
    double = config.flag("bnb_4bit_use_double_quant", default=False)
    kind = config.text("bnb_4bit_quant_type", "fp4")
    kept = _entries(config, "llm_int8_skip_modules")
    if config.flag("load_in_8bit", default=False):
        return Stored(
            rules=(LayerFormat(format=Format(weights=DTYPES["int8"], activations=DTYPES["int8"])),), kept=kept
        )
    if not config.flag("load_in_4bit", default=False):
        raise UserError(f"{config.where}: neither 'load_in_8bit' nor 'load_in_4bit' is true")
    scale_bits = 8 + 32 / BITSANDBYTES_SCALES if double else 32
    weights = scaled(kind, 4, group=BITSANDBYTES_GROUP, scale_bits=scale_bits, name=kind)
    return Stored(rules=(LayerFormat(format=Format(weights=weights)),), kept=kept)


def compressed_tensors(config: Config) -> Stored:
    """Groups of modules, each with the numbers of its weights and inputs; `ignore` lists what stays.

    A group that names modules comes before one that names their class.
    """
    config.ignore("format", "quantization_status", "global_compression_ratio", "run_compressed", "version", "provider")
    config.ignore("quant_algo", "producer")  # of modelopt, which writes the same groups
    config.expect("transform_config", {})
    if config.has("sparsity_config") and config.get("sparsity_config"):
        config.part("sparsity_config").expect("format", "dense")
        config.part("sparsity_config").ignore(*config.part("sparsity_config").fields)
    groups = config.part("config_groups")
    rules = sorted((_group(groups.part(name)) for name in groups.fields), key=lambda rule: not rule.targets)
    cache = _numbers(config.part("kv_cache_scheme")) if config.has("kv_cache_scheme") else None
    kept = _entries(config, "ignore")
    return Stored(rules=tuple(rules), kept=kept, head=any(not rule.targets for rule in rules), cache=cache)


def _group(config: Config) -> LayerFormat:
    config.ignore("format")
    if config.has("output_activations"):
        raise UserError(f"{config.where}: field 'output_activations' is not understood; only null is")
    numbers = {part: _numbers(config.part(part)) for part in ("weights", "input_activations") if config.has(part)}
    targets = _entries(config, "targets")
    everything = any(target.endswith("Linear") for target in targets)  # a class, not a module
    form = Format(weights=numbers.get("weights"), activations=numbers.get("input_activations"))
    return LayerFormat(format=form, targets=() if everything else targets)


def _numbers(config: Config) -> Dtype:
    """One tensor's numbers: `num_bits`, `type`, and scales by `strategy`."""
    bits = _bits(config, "num_bits")
    config.ignore("dynamic", "actorder", "observer", "observer_kwargs", "zp_dtype")
    config.expect("type", "int", "float")
    config.expect("strategy", "tensor", "channel", "token", "group", "tensor_group", "block")
    kind = "fp" if config.text("type", "int") == "float" else "int"
    zero_point = 0.0 if config.flag("symmetric", default=True) else float(bits)
    scale_bits = _scale_bits(config) + zero_point
    group, strategy = config.count("group_size", 0, least=-1), config.text("strategy", "")
    if strategy == "block" or config.has("block_structure"):
        rows, columns = _pair(config, "block_structure")
        return scaled(f"{kind}{bits}", bits, group=rows * columns, scale_bits=scale_bits)
    if group <= 0:
        return DTYPES.get(f"{kind}{bits}") or Dtype(name=f"{kind}{bits}", bits=bits, compute=f"{kind}{bits}")
    if kind == "fp" and bits == 4 and group in FLOAT4_BY_GROUP:
        return FLOAT4_BY_GROUP[group]
    return scaled(f"{kind}{bits}", bits, group=group, scale_bits=scale_bits)


def _scale_bits(config: Config) -> float:
    """16 unless stated: scales have the model's dtype."""
    stated = config.text("scale_dtype", "bfloat16")
    return 8.0 if "8" in stated else 32.0 if "32" in stated else 16.0


def _bits(config: Config, name: str) -> int:
    bits = config.count(name)
    if bits > 16:
        raise UserError(f"{config.where}: field '{name}' is {bits}, expected 1 to 16")
    return bits


def _integers(bits: int, group: int, *, zero_point_bits: int) -> Dtype:
    """Per group of weights, or per channel (-1), where scales are too few to count."""
    return grouped_int(bits, group=group, zero_point_bits=zero_point_bits) if group > 0 else plain_int(bits)


def _pair(config: Config, name: str) -> tuple[int, int]:
    """Rows and columns of a block."""
    value = config.get(name)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(n, int) and n > 0 for n in value):
        raise UserError(f"{config.where}: field '{name}' must list the rows and columns of a block")
    return value[0], value[1]


def _entries(config: Config, *names: str) -> tuple[str, ...]:
    """Module names of one or several lists; null is an empty one."""
    found: list[str] = []
    for name in names:
        value = config.get(name, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
            raise UserError(f"{config.where}: field '{name}' must list names of modules")
        found += value
    return tuple(found)


#: quant_method -> reader.
METHODS: dict[str, Callable[[Config], Stored]] = {
    "gptq": gptq,
    "awq": awq,
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "mxfp4": mxfp4,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "modelopt": compressed_tensors,
}

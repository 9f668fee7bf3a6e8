"""Hub ids: known suffixes are removed by rule, and index entries state the fields in which a config differs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from llmviewer.core import data, files
from llmviewer.core.errors import UserError, printable
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import decode
from llmviewer.formats.linear import is_linear, weight_access
from llmviewer.models.config import DIRECTORY, QUANTIZATION_FIELD
from llmviewer.models.model import Model
from llmviewer.models.module_names import names_of

_ENTRIES: files.CacheOfFiles[Mapping[str, Alias]] = files.CacheOfFiles()


@frozen
class Alias:
    """A name of a model.  fields: in which the config of this Hub id differs.  source: where that config was read.

    Without a source the id was never compared with its own config.json.  repository: its name on the Hub today.
    """

    name: str
    stem: str
    repository: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def is_hub_id(self) -> bool:
        """Whether the name is that of a checkpoint on the Hub, not another spelling of the model's name."""
        organisation, _, rest = self.name.partition("/")
        return bool(rest) and organisation != "DiT" and not organisation.startswith("DiT-")


def entries() -> Mapping[str, Alias]:
    """Every alias by its name as it is compared."""
    path = str(data.folder(DIRECTORY) / data.ALIASES)
    return _ENTRIES.get(path, _read)


def _read() -> dict[str, Alias]:
    stated = {data.normalized(name): (stem, name, own) for stem, name, own in data.alias_items(DIRECTORY)}

    def alias(key: str) -> Alias:
        stem, name, own = stated[key]
        if isinstance(own, str):  # an earlier name of the same repository
            target = alias(data.normalized(own))
            return replace(target, name=name)
        fields = {field: value for field, value in own.items() if field != "source"}
        return Alias(name=name, stem=stem, repository=name, fields=fields, source=str(own.get("source", "")))

    return {key: alias(key) for key in stated}


def merged(config: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The config with these fields, in the section of its language model where they stand there."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return {**config, **fields}
    outside = (*config, QUANTIZATION_FIELD)
    inner = {name: value for name, value in fields.items() if name in text or name not in outside}
    outer = {name: value for name, value in fields.items() if name not in inner}
    return {**config, **outer, "text_config": {**text, **inner}}


#: Suffixes of checkpoints with the architecture of the model they are trained from.
VARIANTS = tuple("instruct it chat base pt hf sft dpo qat".split())


def _stored(method: str, **fields: object) -> dict[str, Any]:
    return {QUANTIZATION_FIELD: {"quant_method": method, **fields}}


def _plain(dtype: str) -> dict[str, Any]:
    return {QUANTIZATION_FIELD: None, "torch_dtype": dtype}


def _groups(weights: Mapping[str, object], inputs: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Fields of a compressed-tensors checkpoint: all linear layers but lm_head."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return _stored("compressed-tensors", config_groups={"group_0": group}, ignore=["lm_head"])


_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}
_INT8 = {"num_bits": 8, "type": "int", "strategy": "channel"}
_INT8_INPUTS = {"num_bits": 8, "type": "int", "strategy": "token"}
_NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
_MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}

#: Format -> the fields that its checkpoints add to config.json, as their makers publish them: AWQ and GPTQ
#: https://huggingface.co/Qwen/Qwen2.5-7B-Instruct-AWQ (groups of 128), w#a# and FP8-dynamic https://huggingface.co/RedHatAI,
#: fp8-ffn arXiv 2407.21783 (section 6.2: no attention, neither the first nor the last of 126 layers),
#: blocks https://huggingface.co/Qwen/Qwen3-8B-FP8, NVFP4 https://huggingface.co/nvidia, bnb https://huggingface.co/unsloth.
#: NVIDIA's FP8 and NVFP4 state an fp8 cache (https://github.com/ai-dynamo/aiconfigurator, model_configs),
#: AutoRound has groups of 128 (https://github.com/intel/auto-round), MLX of 64 (https://github.com/ml-explore/mlx-lm).
FORMATS: dict[str, dict[str, Any]] = {
    "bf16": _plain("bfloat16"),
    "fp16": _plain("float16"),
    "awq": _stored("awq", bits=4, group_size=128),
    "gptq-int4": _stored("gptq", bits=4, group_size=128),
    "gptq-int8": _stored("gptq", bits=8, group_size=128),
    "fp8": _stored("fp8"),
    "fp8-block": _stored("fp8", weight_block_size=[128, 128]),
    "fp8-ffn": _stored("fbgemm_fp8", modules_to_not_convert=["self_attn", "layers.0", "layers.125"]),
    "int4-autoround": _stored("auto-round", bits=4, group_size=128, sym=True),
    **{f"mlx-{bits}bit": _stored("mlx", bits=bits, group_size=64) for bits in (3, 4, 5, 6, 8)},
    "nvfp4-kv": _stored("modelopt", quant_algo="NVFP4", kv_cache_quant_algo="FP8", ignore=["lm_head"]),
    "fp8-kv": _stored("fp8", kv_cache_scheme={"num_bits": 8, "type": "float"}),
    "w4a16": _groups(_INT4),
    "w8a16": _groups(_INT8),
    "w8a8": _groups(_INT8, _INT8_INPUTS),
    "nvfp4": _groups(_NVFP4, _NVFP4),
    "nvfp4a16": _groups(_NVFP4),
    "mxfp4": _groups(_MXFP4),
    "bnb-4bit": _stored("bitsandbytes", load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "bnb-8bit": _stored("bitsandbytes", load_in_8bit=True),
}
#: Other spelling, organisation/spelling or organisation/model/spelling -> format.
SPELLINGS: dict[str, str] = {
    **dict.fromkeys(("awq-int4", "awq-4bit", "int4-awq"), "awq"),
    **dict.fromkeys(("gptq", "gptq-4bit"), "gptq-int4"),
    "gptq-8bit": "gptq-int8",
    **dict.fromkeys(("fp8-dynamic", "w8a8-fp8", "w8a8-fp8-dynamic"), "fp8"),
    **dict.fromkeys(("qwen/fp8", "deepseek-ai/fp8"), "fp8-block"),
    "meta-llama/llama-3.1-405b/fp8": "fp8-ffn",
    **dict.fromkeys(("quantized.w4a16", "w4a16-g128"), "w4a16"),
    "quantized.w8a16": "w8a16",
    **dict.fromkeys(("quantized.w8a8", "w8a8-int8"), "w8a8"),
    "fp4": "nvfp4",
    **dict.fromkeys(("nvidia/nvfp4", "nvidia/fp4"), "nvfp4-kv"),
    "nvidia/fp8": "fp8-kv",
    **{f"mlx-community/{bits}bit": f"mlx-{bits}bit" for bits in (3, 4, 5, 6, 8)},
    "mlx-community/4bit-dwq": "mlx-4bit",
    **dict.fromkeys(("autoround-int4", "int4-auto-round"), "int4-autoround"),
}
#: Suffix, or organisation/suffix, of a format without known stored bits -> the reason.
UNKNOWN_BITS: dict[str, str] = {
    "ggml": "such a repository holds several files of a format before GGUF",
    **dict.fromkeys(
        ("int4", "int8", "4bit", "8bit", "3bit", "5bit", "6bit"), "the bits of its scales and inputs are not stated"
    ),
    **dict.fromkeys("exl2 exl3 hqq aqlm vptq mlx autoround marlin eetq onnx openvino ov".split(), "none are published"),
    **dict.fromkeys(("unsloth-bnb-4bit", "meta-llama/fp8"), "only its config.json lists the layers kept in 16 bit"),
}
_SUFFIXES = sorted(
    {word.rpartition("/")[2] for table in (FORMATS, SPELLINGS, UNKNOWN_BITS) for word in table} | set(VARIANTS),
    key=len,
    reverse=True,
)


@frozen
class Resolved:
    """A model of model_configs/ and the format that a Hub id names; empty: the format of the model's own config.

    known: the Hub id in aliases.yaml that the name leads to if its config has fields of its own, else the stem.
    """

    stem: str
    known: str
    format: str = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of config.json that the format replaces."""
        return FORMATS.get(self.format, {})


def resolve(name: str) -> Resolved | None:
    """The model and format of an id that is not an alias; None if the rules do not lead to a known name.

    Raises UserError if the model is known but no stored bits are known for the format, or if the id names two formats.
    """
    organisation, _, rest = data.normalized(name).rpartition("/")
    index, removed = _index(), list[str]()
    while rest not in index:
        suffix = next((word for word in _SUFFIXES if rest.endswith((f"-{word}", f".{word}"))), None)
        if suffix is None:
            return None
        removed.append(suffix)
        rest = rest[: -len(suffix) - 1]
    stem, known = index[rest]
    formats = [_keyed(organisation, stem, word) for word in removed if word not in VARIANTS]
    for word in (word for word in formats if word in UNKNOWN_BITS):
        raise UserError(f"model '{printable(name)}': no stored bits are known for '{word}': {UNKNOWN_BITS[word]}{HELP}")
    if len(formats) > 1:
        raise UserError(f"model '{printable(name)}' names {len(formats)} formats: {', '.join(formats)}{HELP}")
    return Resolved(stem=stem, known=known, format=next(iter(formats), ""))


HELP = " (`llmviewer models fetch ID` downloads its config.json; or give a base model and --quantization)"


def doubt_bytes(model: Model) -> float:
    """Bytes by which the weights are larger if attention stays in 16 bit, as in some checkpoints of these formats."""
    graph = model.graph(decode(1.0, 0.0))
    linears = ((block, weight_access(op).tensor) for block, op in graph if is_linear(op) and _is_attention(op.name))
    return sum(
        float(weight.elements) * max(model.dtype.bytes - weight.dtype.bytes, 0.0) * block.repeats
        for block, weight in linears
    )


def _is_attention(operator: str) -> bool:
    return names_of(operator)[0].startswith(("self_attn.", "linear_attn."))


def known_names() -> tuple[str, ...]:
    """Last parts of the names and ids of which each leads to one model."""
    return tuple(_index())


def _keyed(organisation: str, stem: str, suffix: str) -> str:
    """The format of a suffix, in which an organisation may have a convention of its own, also for one model."""
    keys = (f"{organisation}/{stem}/{suffix}", f"{organisation}/{suffix}", suffix)
    key = next((key for key in keys if key in SPELLINGS or key in UNKNOWN_BITS), suffix)
    return SPELLINGS.get(key, key)


def _index() -> dict[str, tuple[str, str]]:
    """Last part of every name and alias in model_configs/ -> stem, and the name to read.

    Parts that several models share are left out, as are ids of quantized checkpoints, each of which is only itself.
    """
    stems_by_name: dict[str, dict[str, str]] = {stem: {stem: stem} for stem in data.stems(DIRECTORY)}
    for key, alias in entries().items():
        if QUANTIZATION_FIELD not in alias.fields:
            names = stems_by_name.setdefault(key.rpartition("/")[2], {})
            if alias.fields:
                names[alias.stem] = alias.name
            else:
                names.setdefault(alias.stem, alias.stem)
    return {name: next(iter(stems.items())) for name, stems in stems_by_name.items() if len(stems) == 1}

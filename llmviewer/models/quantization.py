"""From `quantization_config` in a config.json to the number formats of the model's linear layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Block
from llmviewer.core.workload import decode
from llmviewer.formats.checkpoint import Checkpoint, Variant, alike
from llmviewer.formats.linear import Format, is_linear
from llmviewer.models import quantization_floats as floats
from llmviewer.models import quantization_methods as engines
from llmviewer.models import quantization_weights as weights
from llmviewer.models.config import QUANTIZATION_FIELD, QUANTIZATION_FIELDS, Config
from llmviewer.models.model import Model
from llmviewer.models.module_names import ModuleList, module_list, names_of, unmatched
from llmviewer.models.quantization_floats import compressed_tensors
from llmviewer.models.quantization_methods import (
    QuantizedFormats,
    awq,
    bitsandbytes,
    fbgemm_fp8,
    gptq,
    mxfp4,
)

#: quant_method -> reader of `quantization_config`.
METHODS: dict[str, Callable[[Config], QuantizedFormats]] = {
    "aqlm": weights.aqlm,
    "ascend": engines.ascend,
    "auto-round": weights.auto_round,
    "awq": awq,
    "awq_marlin": awq,
    "bitnet": weights.bitnet,
    "bitsandbytes": bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "eetq": weights.eight_bits,
    "exl2": weights.exl2,
    "exl3": weights.exl2,
    "fbgemm_fp8": fbgemm_fp8,
    "fouroversix": floats.float4,
    "fp8": floats.fp8_or_mixed,
    "fp_quant": floats.float4,
    "gptq": gptq,
    "gptq_marlin": gptq,
    "higgs": weights.higgs,
    "hqq": weights.hqq,
    "humming": engines.humming,
    "intel/auto-round": weights.auto_round,
    "marlin": weights.marlin,
    "metal": weights.mlx,
    "mlx": weights.mlx,
    "modelopt": floats.modelopt,
    "modelopt_fp4": floats.modelopt,
    "mxfp4": mxfp4,
    "mxfp8": floats.eight_bit_inputs,
    "quanto": weights.quanto,
    "quark": floats.quark,
    "spqr": weights.spqr,
    "torchao": floats.torchao,
    "vptq": weights.vptq,
    "w8a8_fp8": floats.eight_bit_inputs,
    "w8a8_int8": floats.eight_bit_inputs,
}


#: Tensors that hold a row per token.
TABLES = ("embedding.weight", "per_layer_embedding.weight")


def section_with_formats(config: Config) -> Config | None:
    """The section that states the number formats of a checkpoint; None if there is none.

    A model's own section of a multimodal config comes second, and MLX's `quantization` counts where no other is.
    """
    for name in QUANTIZATION_FIELDS:
        for section in (config, *config.all_sections()):
            if name == QUANTIZATION_FIELD and section.has(name):
                return section.section(name)
            if isinstance(section.get(name), Mapping):
                return section.section(name)
    return None


def with_checkpoint_formats(model: Model, config: Config) -> Model:
    """The model in the formats of its checkpoint; unchanged if the config has no `quantization_config`.

    Every layer is looked up separately: if a list names some layers of a kind, that kind becomes two blocks.
    Routers, gates of shared experts, norms and embeddings always keep the model's dtype, as in every engine.
    """
    holder = section_with_formats(config)
    if holder is None:
        return model
    if model.encoder is not None:
        raise UserError(f"{holder.where}: quantized checkpoints of encoder-decoders are not read; use --quantization")
    formats = _read(holder)
    for section in (config, *config.all_sections()):
        section.ignore(*QUANTIZATION_FIELDS)
    layers, blocks = _layer_numbers(model), {block.name: block for block in model.graph(decode(1.0, 0.0)).blocks}
    rules = _Rules.of(formats, holder.where)
    variants = {name: _variants(blocks[name], numbers, rules) for name, numbers in layers.items()}
    if formats.head and not model.head.tied:
        variants["head"] = (Variant(repeats=1, formats={"lm_head": formats.head_format or rules.head()}),)
    if formats.embedding is not None:
        tables = Variant(repeats=1, formats={}, weights=dict.fromkeys(TABLES, formats.embedding))
        variants |= {"embedding": (tables,)} | ({"head": (tables,)} if model.head.tied else {})
    linear = {kind: [*_names(blocks[kind]).values()] for kind in layers}
    names = {number: linear[kind] for kind, numbers in layers.items() for number in numbers}
    entries = (*formats.unquantized, *(entry for rule in formats.rules for entry in rule.targets))
    checkpoint = Checkpoint(variants=variants, cache=formats.cache)
    notes = (*filter(None, (formats.note,)), *_note(unmatched(entries, names, holder.where)), *_idle(variants, holder))
    return replace(model, checkpoint=checkpoint, notes=(*model.notes, *notes))


def _note(entries: list[str]) -> tuple[str, ...]:
    """A note about `entries` that match no linear layer, if there are any."""
    if not entries:
        return ()
    quoted = ", ".join(f"'{printable(entry)}'" for entry in entries[:3]) + (", …" if len(entries) > 3 else "")
    return (f"{QUANTIZATION_FIELD} lists {quoted}: ignored, because no linear layer of this model matches",)


def _idle(variants: Mapping[str, tuple[Variant, ...]], holder: Config) -> tuple[str, ...]:
    """A note if no linear layer is in a format of the checkpoint."""
    formats = (form for found in variants.values() for variant in found for form in variant.formats.values())
    if any(form != Format() for form in formats):
        return ()
    named = holder.get("quant_algo") or holder.get("quant_method") or _implied_method(holder)
    return (f"{QUANTIZATION_FIELD} names {printable(named)}, but no weight of this model falls under it",)


def _read(config: Config) -> QuantizedFormats:
    method = config.text("quant_method", _implied_method(config))
    if method not in METHODS:
        raise unknown(
            "quant_method", method, METHODS, where=config.where, hint=f"in 16 bit: --ignore-fields {QUANTIZATION_FIELD}"
        )
    return METHODS[method](config)


def _implied_method(config: Config) -> str | None:
    """The method of checkpoints that state no quant_method: early bitsandbytes, ModelOpt and MLX."""
    if config.has("load_in_8bit") or config.has("load_in_4bit"):
        return "bitsandbytes"
    if config.has("quant_algo") or config.has("config_groups") or config.has("quantization"):
        return "modelopt"
    return "mlx" if config.has("bits") and config.has("group_size") else None


@frozen(kw_only=False)
class _Rules:
    """The rules of a checkpoint with parsed module lists; unquantized: modules in the model's dtype."""

    formats: tuple[tuple[Format, ModuleList | None], ...]
    unquantized: ModuleList

    @staticmethod
    def of(stated: QuantizedFormats, where: str) -> _Rules:
        formats = tuple(
            (rule.format, module_list(rule.targets, where) if rule.targets else None) for rule in stated.rules
        )
        return _Rules(formats, module_list(stated.unquantized, where))

    def format(self, names: tuple[str, ...], layer: int) -> Format:
        """The format of the operator with these module names in a layer; an empty Format keeps the model's dtype."""
        if self.unquantized.contains(names, layer):
            return Format()
        matching = (form for form, targets in self.formats if targets is None or targets.contains(names, layer))
        return next(matching, Format())

    def head(self) -> Format:
        """The format of lm_head: of the first rule that names it, or that names no module."""
        if self.unquantized.has_head():
            return Format()
        return next((form for form, targets in self.formats if targets is None or targets.has_head()), Format())

    @property
    def distinguishes_layers(self) -> bool:
        """Whether layers of one kind may differ in format."""
        return self.unquantized.distinguishes_layers or any(
            targets is not None and targets.distinguishes_layers for _, targets in self.formats
        )


def _layer_numbers(model: Model) -> dict[str, tuple[int, ...]]:
    """Layer numbers by the name of their kind."""
    return {layer.name: layer.numbers or tuple(range(layer.repeats)) for layer in model.layers}


def _names(block: Block) -> dict[str, tuple[str, ...]]:
    """The linear layers of a block and the possible names of their modules.

    Experts of a layer that also has a dense `mlp` (Gemma 4) stand beside it, not under it.
    """
    operators = [operator.name for operator in block.operators if is_linear(operator)]
    beside = not {"up_proj", "gate_up_proj"}.isdisjoint(operators)

    def modules(operator: str) -> tuple[str, ...]:
        names = names_of(operator)
        if not beside or not operator.startswith("expert_"):
            return names
        return tuple(name for name in names if name.startswith("experts."))

    return {operator: modules(operator) for operator in operators}


def _variants(block: Block, numbers: tuple[int, ...], rules: _Rules) -> tuple[Variant, ...]:
    """The distinct combinations of formats among a block's layers, the most common first."""
    operators = _names(block)

    def formats_of(number: int) -> tuple[Format, ...]:
        return tuple(rules.format(names, number) for names in operators.values())

    kinds = alike(numbers, formats_of) if rules.distinguishes_layers else [(formats_of(numbers[0]), [*numbers])]
    return tuple(
        Variant(repeats=len(own), formats=dict(zip(operators, formats, strict=True)), numbers=tuple(own))
        for formats, own in kinds
    )

"""`quantization_config` of a config.json -> the formats in which the model's linear layers are stored and run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from llmviewer.core.errors import shown, unknown
from llmviewer.core.ir import Block
from llmviewer.core.workload import decode
from llmviewer.formats.checkpoint import Checkpoint, Variant
from llmviewer.formats.linear import Format, is_linear
from llmviewer.models.config import STORED, Config
from llmviewer.models.model import Model
from llmviewer.models.module_lists import ModuleList, listed, unnamed
from llmviewer.models.module_names import names_of
from llmviewer.models.quantization_methods import METHODS, Stored


def as_stored(model: Model, config: Config) -> Model:
    """The model in the formats of its checkpoint; unchanged where the config has no `quantization_config`.

    Every layer is looked up by itself: a list that names some layers of a kind splits the kind in two blocks.
    Routers, gates of shared experts, norms and embeddings stay in the model's dtype whatever the config says, as every
    engine keeps them.
    """
    holder = next((part for part in (config, *config.parts.values()) if part.has(STORED)), None)
    if holder is None:
        return model
    stored = _read(holder.part(STORED))
    layers, blocks = _layers(model), {block.name: block for block in model.graph(decode(1.0, 0.0)).blocks}
    rules = _Rules.of(stored, holder.where)
    variants = {name: _variants(blocks[name], numbers, rules) for name, numbers in layers.items()}
    if stored.head and not model.head.tied and not rules.kept.has_head():
        variants["head"] = (Variant(repeats=1, formats={"lm_head": _everywhere(stored)}),)
    names = {n: [names_of(op) for op in _linear(blocks[kind])] for kind, numbers in layers.items() for n in numbers}
    left = unnamed((*stored.kept, *(entry for rule in stored.rules for entry in rule.targets)), names, holder.where)
    checkpoint = Checkpoint(variants=variants, cache=stored.cache)
    return replace(model, checkpoint=checkpoint, notes=(*model.notes, *_note(left)))


def _everywhere(stored: Stored) -> Format:
    """The format of what no rule names in particular."""
    return next((rule.format for rule in stored.rules if not rule.targets), stored.rules[0].format)


def _note(left: list[str]) -> tuple[str, ...]:
    listed = ", ".join(f"'{shown(entry)}'" for entry in left[:3]) + (", …" if len(left) > 3 else "")
    return (f"{STORED} lists {listed}, which names no linear layer of this model; not heeded",) if left else ()


def _read(config: Config) -> Stored:
    method = config.text("quant_method", _unnamed_method(config))
    if method not in METHODS:
        raise unknown("quant_method", method, METHODS, where=config.where)
    return METHODS[method](config)


def _unnamed_method(config: Config) -> str | None:
    """The first bitsandbytes checkpoints do not say what they are."""
    return "bitsandbytes" if config.has("load_in_8bit") or config.has("load_in_4bit") else None


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of a checkpoint with their lists of modules understood."""

    formats: tuple[tuple[Format, ModuleList | None], ...]
    kept: ModuleList

    @staticmethod
    def of(stored: Stored, where: str) -> _Rules:
        formats = tuple((rule.format, listed(rule.targets, where) if rule.targets else None) for rule in stored.rules)
        return _Rules(formats, listed(stored.kept, where))

    def format(self, operator: str, layer: int) -> Format:
        """The format of an operator in a layer; an empty one keeps the model's dtype."""
        names = names_of(operator)
        if self.kept.holds(names, layer):
            return Format()
        return next((form for form, at in self.formats if at is None or at.holds(names, layer)), Format())

    @property
    def numbered(self) -> bool:
        """Whether layers of one kind may differ."""
        return self.kept.numbered or any(at is not None and at.numbered for _, at in self.formats)


def _layers(model: Model) -> dict[str, tuple[int, ...]]:
    """Numbers of the layers of every kind."""
    return {layer.name: layer.numbers or tuple(range(layer.repeats)) for layer in model.layers}


def _linear(block: Block) -> list[str]:
    return [operator.name for operator in block.operators if is_linear(operator)]


def _variants(block: Block, numbers: tuple[int, ...], rules: _Rules) -> tuple[Variant, ...]:
    """How many layers of a block have which formats, the most common first."""
    operators = _linear(block)
    looked_up = numbers if rules.numbered else numbers[:1] * len(numbers)
    found = Counter(tuple(rules.format(operator, number) for operator in operators) for number in looked_up)
    return tuple(
        Variant(repeats=times, formats=dict(zip(operators, formats, strict=True)))
        for formats, times in found.most_common()
    )

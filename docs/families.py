"""`make docs`: the models of the catalogue by form and family, for docs/reference/models.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import fill

from llmviewer import models
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.core.workload import decode, prefill
from llmviewer.models.architectures import ARCHITECTURES, MULTIMODAL
from llmviewer.models.dit import PatchEmbedding
from llmviewer.models.model import Model
from llmviewer.reports.catalog_page import MODEL_FIELDS, family
from llmviewer.result.describe import model_object

#: Heading -> what its models have in common, and the test; the first that applies is taken.
FORMS: dict[str, tuple[str, Callable[[Model], bool]]] = {
    "Diffusion transformers": (
        "One denoising step is one bidirectional pass over the patches of a latent image; context counts patches.",
        lambda model: isinstance(model.embedding, PatchEmbedding),
    ),
    "Encoders": (
        "One bidirectional pass without a cache: embedders, rerankers, classifiers.",
        lambda model: model.is_encoder,
    ),
    "Encoder-decoders": (
        "An encoder over the input; the decoder attends to its output and to the tokens written so far.",
        lambda model: model.encoder is not None,
    ),
    "Hybrids and recurrent models": (
        "Layers with a state of fixed size (Mamba, delta rule, lightning attention, short convolutions), alone or "
        "between layers of attention; some with experts.",
        lambda model: any(op.kind in (Kind.RECURRENCE, Kind.CONV) for _, op in model.graph(decode(1.0, 1.0))),
    ),
    "Sparse attention": (
        "An indexer chooses the keys that a query attends to; with latent or compressed caches, and experts.",
        lambda model: any(op.role is OperatorRole.INDEX_SCORES for _, op in model.graph(decode(1.0, 1.0))),
    ),
    "Mixtures of experts": (
        "Some layers choose a few experts per token; *active* parameters are those of one token.",
        lambda model: model.active_parameters < model.parameters,
    ),
    "Dense decoders": (
        "Every token uses all parameters; some have layers with a sliding window.",
        lambda model: True,
    ),
}
COLUMNS = tuple((column, show) for column, show in MODEL_FIELDS if column.title != "Architecture")


def tables() -> str:
    """A section per form with a table of its families, then the architectures without a model in the catalogue."""
    found = [models.load(name) for name in models.names()]
    forms: dict[str, list[Model]] = {heading: [] for heading in FORMS}
    for model in found:
        forms[next(heading for heading, (_, applies) in FORMS.items() if applies(model))].append(model)
    sections = [_section(heading, FORMS[heading][0], listed) for heading, listed in reversed(forms.items())]
    return "\n".join((_summary(found), *sections, _without_a_model()))


def _summary(found: list[Model]) -> str:
    families = {family(model.architecture) for model in found}
    return (
        f"{len(found)} models of {len(families)} families, by form; families are named by class. The\n"
        f"{len(ARCHITECTURES)} architectures and {len(MULTIMODAL)} wrappers, with the test of their counts, are in\n"
        "the [certificate](../evidence/certificate.md#architectures).\n"
    )


def _section(heading: str, meaning: str, listed: list[Model]) -> str:
    """Heading and table of one form: a bold row per family, and its models by size."""
    families: dict[str, list[Model]] = {}
    for model in sorted(listed, key=lambda model: float(model.parameters)):
        families.setdefault(family(model.architecture), []).append(model)
    rows = [row for name in sorted(families, key=str.lower) for row in _family_rows(name, families[name])]
    names = " | ".join(column.title for column, _ in COLUMNS)
    rules = " | ".join("---" if column.title == "Model" else "---:" for column, _ in COLUMNS)
    return "\n".join((f"### {heading}\n\n{meaning}\n\n| {names} |\n| {rules} |", *rows, ""))


def _family_rows(name: str, listed: list[Model]) -> Iterator[str]:
    yield f"| **{name}** |{' |' * (len(COLUMNS) - 1)}"
    for model in listed:
        entry = model_object(model, model.graph(prefill(1.0, 1.0)) if model.is_encoder else None)
        yield f"| {' | '.join(show(entry) for _, show in COLUMNS)} |"


def _without_a_model() -> str:
    """The architectures that no model of the catalogue has."""
    used = {str(entry) for name in models.names() for entry in _model_types(name)}
    names = ", ".join(f"`{name}`" for name in sorted(set(ARCHITECTURES) - used, key=str.lower))
    return f"### Architectures without a model here\n\n{fill(names, 120, break_on_hyphens=False)}.\n"


def _model_types(name: str) -> Iterator[object]:
    """The model types that a config names: its own and those of its parts."""
    config = models.read(name).config
    yield config.get("model_type")
    yield MULTIMODAL.get(str(config.get("model_type")))
    for part in config.values():
        if isinstance(part, dict):
            yield part.get("model_type")

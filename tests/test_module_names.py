"""Module lists in quantization configs use checkpoint names, so every linear operator must have one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from llmviewer import models
from llmviewer.core import data
from llmviewer.core.workload import decode
from llmviewer.formats.linear import is_linear
from llmviewer.models.load import parse
from llmviewer.models.module_names import MODULES, names_of

#: The only name that differs between two layer kinds with the same operator: lightning attention of MiniMax-Text-01.
UNNAMED = {("minimax_text_01", "out_proj")}


def config(name: str) -> dict[str, Any]:
    return dict(data.read_yaml(data.folder("model_configs") / f"{name}.yaml")["config"])


def model_type(fields: dict[str, Any]) -> str:
    return str(fields.get("text_config", {}).get("model_type") or fields["model_type"])


ONE_OF_EACH = {model_type(config(name)): name for name in models.names()}


def linear_operators(name: str) -> set[str]:
    graph = models.load(name).graph(decode(1.0, 0.0))
    return {op.name for block, op in graph if block.is_layer and is_linear(op)}


@pytest.mark.parametrize("name", models.names())
def test_layer_indices_of_all_kinds_cover_the_model(name: str) -> None:
    """From 0; those of a decoder follow its encoder's layers and the projections of their output."""
    model = models.load(name)
    kinds, encoder = model.layers, model.encoder
    first = 0 if encoder is None else encoder.depth + encoder.decoder_layers
    numbers = sorted(n for kind in kinds for n in kind.numbers or range(kind.repeats))
    assert numbers == [first + n for n in range(sum(kind.repeats for kind in kinds))]
    assert all(len(kind.numbers) in (0, kind.repeats) for kind in kinds)


@pytest.mark.parametrize("name", ONE_OF_EACH.values())
def test_every_linear_operator_has_a_name_in_checkpoints(name: str) -> None:
    assert linear_operators(name) <= set(MODULES)


@pytest.mark.parametrize("kind", [kind for kind in ONE_OF_EACH if kind != "dit"])  # of no library
def test_names_match_the_librarys_modules(kind: str) -> None:
    """Each operator's matrix is a module of the library's class, and each linear module belongs to an operator."""
    nn = pytest.importorskip("torch").nn
    pytest.importorskip("transformers")
    from tests.certificate.families import Code
    from tests.certificate.meta_model import build, family_of
    from tests.certificate.torch_counts import reduced

    if config(ONE_OF_EACH[kind]).get("is_encoder_decoder"):
        pytest.skip("test_seq2seq_defaults.py holds encoder-decoders to the library's classes")
    fields = reduced(config(ONE_OF_EACH[kind]))
    if family_of(fields).code is not Code.OWN:
        pytest.skip("the library has no class of its own")
    built = build(fields)
    linear = {path for path, module in built.named_modules() if isinstance(module, nn.Linear) or _is_conv1d(module)}
    experts = {path for path, weight in built.named_parameters() if ".experts" in path and weight.dim() >= 2}
    found = {
        re.sub(r"^.*?(?:layers|layer|h|blocks)\.\d+\.", "", path.removesuffix(".weight")) for path in linear | experts
    }
    operators = {op for block, op in _graph(fields) if block.is_layer}
    for operator in (op.name for op in operators if is_linear(op)):
        assert (kind, operator) in UNNAMED or found & set(names_of(operator)), operator


def _graph(fields: dict[str, Any]) -> Any:
    return parse(fields, "reduced").graph(decode(1.0, 0.0))


def _is_conv1d(module: Any) -> bool:
    """True for the class name of GPT-2's linear layer."""
    return type(module).__name__ == "Conv1D"

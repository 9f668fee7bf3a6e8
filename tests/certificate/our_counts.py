"""Counts from a config by llmviewer's own operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer import models
from llmviewer.core import data
from llmviewer.core.ir import Graph, Operator
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step, decode, prefill
from llmviewer.layers.mla import MlaForm
from llmviewer.models.load import parse
from llmviewer.models.model import with_mla_form


@dataclass(frozen=True, slots=True, kw_only=True)
class OurCounts:
    """Matmul FLOPs of one step under the headings of `TorchCounts`."""

    linear: int
    attention: int
    lm_head: int


def published_config(stem: str) -> dict[str, Any]:
    """The config of a model in model_configs/."""
    return dict(data.read_known_yaml(data.folder("model_configs") / f"{stem}.yaml")["config"])


def our_prefill(config: Mapping[str, Any], batch: int, tokens: int) -> OurCounts:
    """`tokens` new tokens in each of `batch` sequences, empty cache."""
    return _counted(config, prefill(float(batch), float(tokens)))


def our_decode(config: Mapping[str, Any], batch: int, cached: int) -> OurCounts:
    """One new token in each of `batch` sequences with `cached` tokens in the cache."""
    return _counted(config, decode(float(batch), float(cached)))


def our_parameters(stem: str) -> int:
    """Stored parameters at full depth."""
    return int(models.load(stem).parameters)


def _counted(config: Mapping[str, Any], step: Step) -> OurCounts:
    """Counts of one step; latent attention is in naive form as in the library: kv_b_proj over all cached tokens."""
    graph = with_mla_form(parse(config, "certificate"), MlaForm.NAIVE).graph(step)
    return OurCounts(
        linear=_sum(graph, lambda op: op.kind is Kind.GEMM and op.name != "lm_head"),
        attention=_sum(graph, lambda op: op.kind is Kind.ATTENTION),
        lm_head=_sum(graph, lambda op: op.name == "lm_head"),
    )


def _sum(graph: Graph, chosen: Any) -> int:
    return sum(_whole(op) * block.repeats for block, op in graph if chosen(op))


def _whole(operator: Operator) -> int:
    flops = float(operator.matmul_flops)
    assert flops.is_integer(), operator.name
    return int(flops)

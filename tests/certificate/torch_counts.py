"""FLOPs and parameters of a model by PyTorch, from the library's own code on the meta device.

Conventions: 2 FLOPs per multiply-add; only matrix products and convolutions; eager attention over the full new x keys
square; chosen experts only, plus routers and shared experts; no multi-token-prediction blocks, no vision or audio.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .errors import CounterDisagreesError
from .headings import Filed, Heading
from .layer_kinds import covering_depth
from .meta_model import build, family_of, resolved_config, text_config
from .reductions import first_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchCounts:
    """FLOPs of one step, all sequences together."""

    linear: int
    """Weight products outside the head: projections, FFN, routers, shared and chosen experts."""
    attention: int
    """QK^T and PV over the full new x keys square; a windowed layer's keys are min(cached, window - 1) + new."""
    lm_head: int
    """The head on the last position of each sequence."""
    recurrence: int
    """Products without weights in state-space and linear-attention mixers, in whatever form the library scans."""
    convolution: int
    """Short convolutions, where the library calls a convolution (its one-token update often does not)."""
    rotary: int
    """Tables of rotary angles; left out of any comparison."""
    routed_experts: int
    """The part of `linear` spent in routed experts."""
    latent_expansion: int
    """The part of `linear` spent expanding *cached* latents through kv_b_proj (0 without latent attention, and in a
    prefill): the library expands the whole cache at every step. The rest of `linear` expands new tokens only."""
    by_module: Mapping[str, int] = field(compare=False, repr=False)
    """FLOPs by heading and qualified module name, to find where two counts part (before correction of experts)."""


def reduced(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the first few layers, enough to contain every kind of layer, at real widths."""
    family = family_of(config)
    text = text_config(config)
    fields = family.cut(text, resolved_config(text))
    resolved = resolved_config(fields)
    small = first_layers(fields, resolved.num_hidden_layers, covering_depth(resolved, family.layers))
    return {**config, "text_config": small} if "text_config" in config else small


def count_prefill(config: Mapping[str, Any], batch: int, tokens: int) -> TorchCounts:
    """A forward pass over `tokens` new tokens in each of `batch` sequences, empty cache; head on the last position."""
    return _counted(config, _Step(batch=batch, new=tokens, cached=0))


def count_decode(config: Mapping[str, Any], batch: int, cached: int) -> TorchCounts:
    """One new token in each of `batch` sequences with `cached` tokens in the library's own cache."""
    return _counted(config, _Step(batch=batch, new=1, cached=cached))


def count_step(config: Mapping[str, Any], batch: int, new: int, cached: int) -> TorchCounts:
    """A chunk or a verification step: `new` tokens after `cached` ones, in each of `batch` sequences.

    Fails in the library's own code for MiniMax-Text-01: its mask takes the cached length from layer 0, which has none.
    """
    return _counted(config, _Step(batch=batch, new=new, cached=cached))


def code_of(config: Mapping[str, Any]) -> str:
    """The class that is run, and whether it is the model's own or an equivalent of the same shapes."""
    family = family_of(config)
    return f"{family.model_class}: {family.code.value}"


def parameter_count(config: Mapping[str, Any]) -> int:
    """All stored parameters of the model, tied weights once, buffers (DeepSeek's router bias) and other parts not."""
    family, model = family_of(config), build(config)
    named = model.named_parameters()
    counted = sum(parameter.numel() for name, parameter in named if not any(part in name for part in family.beside))
    return counted - family.unstored(model.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """A forward pass of `batch` equal sequences."""

    batch: int
    new: int
    cached: int


def _counted(config: Mapping[str, Any], step: _Step) -> TorchCounts:
    """Counts one step by our filing and by PyTorch's counter, which must agree."""
    model, family = build(config), family_of(config)
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from .product_filing import ProductFiling

    with torch.no_grad():
        cache = _filled_cache(model, step)
        filing, inputs = ProductFiling(model), _inputs(model, step.batch, step.new)
        with FlopCounterMode(display=False) as counter, filing.following(model), filing:
            model(**inputs, **cache, **({} if family.encoder else {"use_cache": True}))
    if counter.get_total_flops() != filing.filed.total():
        raise CounterDisagreesError(f"filed {filing.filed.total()}, FlopCounterMode says {counter.get_total_flops()}")
    head_rows = 1 if family.encoder or _takes_one_logit(model) else step.new
    return _tally(filing.filed, step, family.experts_chosen(model.config), head_rows)


def _filled_cache(model: Any, step: _Step) -> dict[str, Any]:
    """The cache argument returned by a prefill of `step.cached` tokens; empty if there are none."""
    if not step.cached:
        return {}
    given = _given_cache(model)
    output = model(**_inputs(model, step.batch, step.cached), **given, use_cache=True)
    return given or {name: output[name] for name in ("cache_params", "state", "past_key_values") if name in output}


def _given_cache(model: Any) -> dict[str, Any]:
    """An empty cache for a class that fills one but does not return it (RecurrentGemma)."""
    if type(model).__name__ != "RecurrentGemmaForCausalLM":
        return {}
    from transformers import DynamicCache

    return {"past_key_values": DynamicCache(config=model.config)}


def _inputs(model: Any, batch: int, tokens: int) -> dict[str, Any]:
    """Token ids on the meta device, and the request for one logit if the model supports it.

    The request is a position, not the number 1: given a number, Gemma 4 also drops the other positions from the layers
    that share a cache, and the count would no longer be that of all tokens in all layers.
    """
    import torch

    ids = torch.empty(batch, tokens, dtype=torch.long, device="meta")
    position = torch.empty(1, dtype=torch.long, device="meta")
    return {"input_ids": ids, **({"logits_to_keep": position} if _takes_one_logit(model) else {})}


def _takes_one_logit(model: Any) -> bool:
    """Older classes apply the head to every position; the count is then divided by the positions."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def _tally(filed: Filed, step: _Step, experts_chosen: Fraction, head_rows: int) -> TorchCounts:
    """Sum of each heading."""
    total = {heading: sum(flops for (of, _), flops in filed.items() if of is heading) for heading in Heading}
    routed = total[Heading.EXPERTS] * experts_chosen
    expansion = sum(flops for (_, module), flops in filed.items() if module.endswith("kv_b_proj"))
    of_cached = expansion * Fraction(step.cached, step.cached + step.new)
    return TorchCounts(
        linear=total[Heading.LINEAR] + _whole(routed),
        attention=total[Heading.ATTENTION],
        lm_head=_whole(Fraction(total[Heading.HEAD], head_rows)),
        recurrence=total[Heading.RECURRENCE],
        convolution=total[Heading.CONVOLUTION],
        rotary=total[Heading.ROTARY],
        routed_experts=_whole(routed),
        latent_expansion=_whole(of_cached),
        by_module={f"{heading.value} {module}": flops for (heading, module), flops in filed.items()},
    )


def _whole(value: Fraction | int) -> int:
    """An integral count; a fraction means that the share of experts is wrong."""
    if value != int(value):
        raise CounterDisagreesError(f"{value} is not a whole number of FLOPs")
    return int(value)

"""`--kv-evict`: tokens that leave the KV cache, by a share of the context or a largest number of tokens per layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.ir import Graph, Pass, as_built
from llmviewer.techniques.kv_cache.fewer_keys import WHERE, at_most, attends
from llmviewer.techniques.layer_settings import LayerSetting, by_layer, layer_settings
from llmviewer.techniques.technique import Change, Parameter, Technique, add_pass, change_kv_cache, parse_numbers

_KEPT = Parameter(name="kept", low=1e-6, high=1.0)
_TOKENS = Parameter(name="tokens", low=1, whole=True)
_PYRAMID = (
    Parameter(name="pyramid", low=9, whole=True),
    Parameter(name="beta", default=20.0, low=1.0, high=1e4, whole=True),
)
#: Last tokens of the prompt that PyramidKV keeps in every layer beside those that it selects.
RECENT = 8.0


def _make(text: str) -> Change:
    if text.startswith(_PYRAMID[0].name):
        mean, beta = parse_numbers(WHERE, text.replace(":", ",beta="), _PYRAMID).values()
        return _limited(f"evict(keep a pyramid of {mean:,.0f} tokens, beta {beta:g})", _pyramid(mean, beta))
    settings = layer_settings(WHERE, text)
    if len(settings) == 1 and not text.startswith(_TOKENS.name):
        return _share(parse_numbers(WHERE, text, (_KEPT,))["kept"])
    limits = [_limit(one.text) for one in settings]
    name = f"{limits[0]:,.0f} tokens" if len(limits) == 1 else text
    passes = [as_built if limit == np.inf else at_most(limit) for limit in limits]
    return _limited(f"evict(keep {name})", by_layer(WHERE, settings, passes))


def _limit(text: str) -> float:
    """Most tokens that a setting by layers keeps; all of them for a share of 1."""
    if text.startswith(_TOKENS.name):
        return parse_numbers(WHERE, text, (_TOKENS,))["tokens"]
    if parse_numbers(WHERE, text, (_KEPT,))["kept"] < 1.0:
        raise UserError(
            f"{WHERE}: {quoted(text)} is a share, for all layers alike; by layers: tokens=2048, or 1 for all"
        )
    return np.inf


def _share(kept: float) -> Change:
    """Keep max(floor(kept C), 1) of C tokens in every layer after a forward pass; the next pass attends to those and to
    its own new tokens.

    A whole prompt is therefore attended in full; a decode step or a later chunk of a prompt attends to the kept tokens.
    A windowed layer keeps as many, at most its window; a chunked layer (Llama 4) keeps that share of the current
    chunk.  Not counted: the selection of tokens, and the one layer that stores its whole prompt during eviction.
    """
    if kept == 1.0:
        return lambda system: system
    return _unshared(change_kv_cache(f"evict(keep {kept:g})", kept=kept))


def _limited(name: str, evict: Pass) -> Change:
    """The change by a pass after which layers keep at most a number of tokens."""
    listed = add_pass(name, lambda _: evict)
    return _unshared(lambda system: listed(replace(system, kv_cache=replace(system.kv_cache, limited=True))))


def _unshared(evicting: Change) -> Change:
    """The change, refused where sequences share a prefix."""

    def change(system: System) -> System:
        if system.kv_cache.shared:
            raise UserError(
                f"{WHERE}: sequences evict different tokens and cannot share a prefix (--prefix-cache shared)"
            )
        return evicting(system)

    return change


def _pyramid(mean: float, beta: float) -> Pass:
    """Keep fewer tokens in every layer than in the one before, `mean` on average (PyramidKV)."""

    def changed(graph: Graph) -> Graph:
        layers = [block for block in graph.blocks if block.is_layer]
        numbered = zip(layers, layer_numbers(layers), strict=True)
        numbers = sorted(number for block, own in numbered if attends(block) for number in own)
        limits = pyramid(mean, beta, len(numbers))
        settings = [
            LayerSetting(text=f"{limit:g}", layers=frozenset({n}), ranges=str(n))
            for n, limit in zip(numbers, limits, strict=True)
        ]
        others = LayerSetting(text="1")
        return by_layer(WHERE, [others, *settings], [as_built, *map(at_most, limits)])(graph)

    return changed


def pyramid(mean: float, beta: float, layers: int) -> list[float]:
    """Tokens that each layer keeps: an arithmetic sequence, in whole steps, and the 8 latest ones in every layer.

    Of the others, s = mean - 8 on average, the last layer keeps floor(s / beta) and the first one 2 s minus those.
    Source: PyramidKV arXiv 2406.02069; the rounding is that of https://github.com/Zefan-Cai/PyramidKV,
    pyramidkv/pyramidkv_utils.py.
    """
    if layers == 1:
        return [mean]
    others = mean - RECENT
    least = others // beta
    most = 2.0 * others - least
    step = (most - least) // (layers - 1.0)
    return [RECENT + most - layer * step for layer in range(layers)]


TECHNIQUE = Technique(
    name="kv_evict",
    kind="kv cache",
    summary="Stores, and attends to, only some of the tokens seen so far (token eviction), by layer if asked.",
    parameters={
        "SHARE": "share of the cached tokens that stays",
        "tokens": "most tokens that stay in a layer: tokens=2048 (H2O, StreamingLLM, SnapKV)",
        "tokens=N@LAYERS": "after a +: another number for these layers, counted from 0: tokens=1024+tokens=4096@0-7",
        "pyramid": "mean of numbers that fall by the same step from layer to layer: pyramid=2048 (PyramidKV)",
        "beta": "after a colon: the last layer keeps about 1 / beta of the mean; default pyramid=2048:20",
    },
    formula="max(floor(share C), 1) or min(C, tokens) of C cached tokens, attended and resident; new tokens of a pass "
    "all; pyramid: 8 tokens, and of s = mean - 8 others 2 s - floor(s / beta) in the first layer down to "
    "floor(s / beta) in the last one; the selection is not counted",
    source="H2O arXiv 2306.14048; StreamingLLM arXiv 2309.17453; SnapKV arXiv 2404.14469; PyramidKV arXiv 2406.02069",
    example="llmviewer analyze llama-2-7b --hardware a100 --input-len 4096 --batch-size 8 --kv-evict 0.2",
    make=_make,
)

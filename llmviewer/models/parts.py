"""Pieces that most parsers share: embedding and head, layers grouped by kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from llmviewer.dtypes import Dtype
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.models.config import Config
from llmviewer.models.model import Embedding, Head, Model
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm

Kind = TypeVar("Kind", bound=Hashable)


def grouped(kinds: Sequence[Kind], build: Callable[[Kind, int], DecoderLayer]) -> tuple[DecoderLayer, ...]:
    """One DecoderLayer per kind of layer, in order of first appearance, with how many layers are of that kind."""
    counted = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    return tuple(build(kind, times) for kind, times in counted.items())


def head(config: Config, dtype: Dtype, hidden: int, norm: Norm | None, *, tied: bool, bias: bool = False) -> Head:
    """Final norm and lm_head over the vocabulary; `tied`: the architecture's default where the config is silent."""
    vocabulary = config.count("vocab_size")
    linear = Linear(name="lm_head", in_features=hidden, out_features=vocabulary, dtype=dtype, bias=bias)
    return Head(lm_head=linear, tied=config.flag("tie_word_embeddings", default=tied), norm=norm)


def model(
    config: Config, dtype: Dtype, layers: tuple[DecoderLayer, ...], norm: Norm | None, *, tied: bool = False
) -> Model:
    """The usual frame: one table of `hidden_size`, layers, final norm, head without bias."""
    hidden = config.count("hidden_size")
    return Model(
        name="",
        architecture="",
        hidden=hidden,
        dtype=dtype,
        embedding=Embedding(vocabulary=config.count("vocab_size"), width=hidden, dtype=dtype),
        layers=layers,
        head=head(config, dtype, hidden, norm, tied=tied),
        max_context=float(config.count("max_position_embeddings", ABSENT_CONTEXT)),
    )


#: A config that states no maximum context has none.
ABSENT_CONTEXT = 10**8

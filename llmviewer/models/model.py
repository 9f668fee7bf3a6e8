"""A model: embedding, layers and head, before any technique (checkpoint formats, one device, unfused, eager)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import BUFFER, Access, Block, Graph, Operator, Pass, Role, Tensor, as_built, whole
from llmviewer.core.workload import Step, decode
from llmviewer.layers.decoder import DecoderLayer, FeedForward, HyperConnection
from llmviewer.layers.encoder import Encoder
from llmviewer.layers.feed_forward import Prediction
from llmviewer.layers.mla import Mla, MlaForm
from llmviewer.ops.elementwise import Norm, embedding
from llmviewer.ops.gemm import Linear, is_routed

#: Graphs of a model that are kept.
KEPT = 8


@frozen(eq=False)
class Embedding:
    """Token and position tables, and the operators between them and the first layer.

    width: elements of a row.  positions: rows of a learned position table, 0 = none.
    scaled: rows are multiplied by a factor.  project: a matrix to the hidden width if rows are narrower (OPT-350m).
    per_layer: makes an additional input for every layer (Gemma 4).  types: rows of a table of segments (BERT).
    stored: weights that are stored and that no pass reads.
    """

    vocabulary: int
    width: int
    dtype: Dtype
    positions: int = 0
    position_width: int = 0
    scaled: bool = False
    project: Linear | None = None
    norm: Norm | None = None
    per_layer: FeedForward | None = None
    types: int = 0
    stored: tuple[Tensor, ...] = ()

    def _table(self, name: str, rows: int, width: int) -> Tensor:
        return Tensor(name=f"{name}.weight", elements=float(rows) * width, dtype=self.dtype, role=Role.WEIGHT)

    def block(self, step: Step) -> Block:
        """Gather, project, normalise; the last output is the residual stream."""
        tokens = step.tokens
        y = Tensor(name="embedding", elements=tokens * (1.0 * self.width), dtype=self.dtype)
        table = self._table("embedding", self.vocabulary, self.width)
        adds_positions = self.positions and not self.project
        tables = (table, self._positions()) if adds_positions else (table,)
        added = float(bool(adds_positions)) + float(self.scaled) + float(bool(self.types))
        if self.types:
            tables = (*tables, self._table("token_type_embedding", self.types, self.width))
        operators = [embedding("embedding", tables, y, tokens, flops=added)]
        if self.stored:
            unread = tuple(Access(tensor, 0.0) for tensor in self.stored)
            operators[0] = replace(operators[0], reads=(*operators[0].reads, *unread))
        if self.project is not None:
            operators.append(self.project.operator(y, tokens))
            if self.positions:
                operators.append(self._add_positions(tokens, operators[-1].output))
        if self.norm is not None:
            operators.append(self.norm.operator(operators[-1].output, tokens))
        if self.per_layer is not None:
            operators += self.per_layer.operators(step, y)
        return Block(name="embedding", operators=tuple(operators), scope="model")

    def _positions(self) -> Tensor:
        return self._table("position_embedding", self.positions, self.position_width or self.width)

    def _add_positions(self, tokens: Count, x: Tensor) -> Operator:
        y = Tensor(name="position_embedding", elements=x.elements, dtype=x.dtype)
        operator = embedding("position_embedding", (self._positions(),), y, tokens, flops=1.0)
        return replace(operator, reads=(*operator.reads, whole(x)))


@frozen(eq=False)
class Head:
    """Final norm over all tokens, then lm_head at the positions that need logits.

    streams: the weighted sum of several residual streams before the norm (DeepSeek-V4).
    tied: lm_head uses the embedding's table.  project: a matrix back to the table's width (OPT-350m).
    merge: makes one stream of several before the norm (Gemma 3n).
    prediction: a part between the norm and lm_head (ModernBERT).
    logit_flops, logit_special: vector FLOP and exponentials per logit (soft cap, scale).
    has_logits: False for an embedder, which ends at the final norm.
    """

    lm_head: Linear
    tied: bool
    norm: Norm | None = None
    streams: HyperConnection | None = None
    project: Linear | None = None
    merge: FeedForward | None = None
    prediction: Prediction | None = None
    logit_flops: float = 0.0
    logit_special: float = 0.0
    has_logits: bool = True

    def block(self, step: Step, hidden: Tensor) -> Block:
        """The operators of the head: final_norm, lm_head."""
        operators: list[Operator] = []
        x = hidden
        if self.merge is not None:
            operators += self.merge.operators(step, x)
            x = operators[-1].output
        if self.streams is not None:
            operators += self.streams.collapse("head", step, self.streams.widened(hidden))
            x = operators[-1].output
        if self.norm is not None:
            operators.append(self.norm.operator(x, step.tokens))
            x = operators[-1].output
        if self.project is not None:
            operators.append(self.project.operator(x, step.tokens))
            x = operators[-1].output
        if self.prediction is not None:
            rows = Tensor(name=x.name, elements=step.logits * (1.0 * self.lm_head.in_features), dtype=x.dtype)
            operators += self.prediction.on_rows(step.logits, rows)
            x = operators[-1].output
        if self.has_logits:
            operators.append(self.logits(x, step.logits))
        return Block(name="head", operators=tuple(operators), scope="model")

    def logits(self, x: Tensor, rows: Count) -> Operator:
        """lm_head over `rows` rows of `x`."""
        read = Tensor(name=x.name, elements=rows * (1.0 * self.lm_head.in_features), dtype=x.dtype)
        operator = self.lm_head.operator(read, rows)
        if self.logit_flops:
            work = operator.vector_flops + operator.writes[0].elements * self.logit_flops
            special = operator.writes[0].elements * self.logit_special
            operator = replace(operator, vector_flops=work, special_ops=special)
        if not self.tied:
            return operator
        table = replace(self.lm_head.weight, name="embedding.weight")
        return replace(operator, reads=(operator.reads[0], whole(table), *operator.reads[2:]))


@frozen(slots=False, eq=False)  # no slots: derived figures are kept
class Model:
    """The shapes of a model as its config states them.  hidden: width of the residual stream.

    checkpoint: pass that stores linear layers and caches in the formats of a quantized checkpoint.
    named_format: where that pass comes from if not from a config (`awq` of the model's id); empty: from the config.
    quantization: format of --quantization that the model's name states (`q4_k_m`), if none is given.
    doubt_bytes: by which the weights may be larger, where only the name of the checkpoint states their format.
    uncompared: the Hub id that was asked for, if its own config.json was never compared with this model's.
    changed: the fields of its config that the user set, as typed; `none`: none.
    is_encoder: one bidirectional pass without a cache; nothing is decoded (encoders, diffusion transformers).
    encoder: the encoder beside which `layers` are a decoder with cross attention; None without one.
    vision_parameters: of the vision tower and its projector, which no pass of the language model runs.
    vision: fields of the config around that tower, if its passes are known (`images.py`).
    """

    name: str
    architecture: str
    hidden: int
    dtype: Dtype
    embedding: Embedding
    layers: tuple[DecoderLayer, ...]
    head: Head
    max_context: float
    notes: tuple[str, ...] = ()
    source: str = ""
    checkpoint: Pass = as_built
    named_format: str = ""
    quantization: str = ""
    uncompared: str = ""
    changed: str = "none"
    doubt_bytes: float = 0.0
    vision_parameters: float = 0.0
    vision: Mapping[str, Any] | None = None
    is_encoder: bool = False
    encoder: Encoder | None = None

    def graph(self, step: Step) -> Graph:
        """The graph of one forward pass in the checkpoint's formats: embedding, each kind of layer, any head.

        Those of the last steps are kept, as searches ask for the same ones on every chip.
        """
        if (key := step.key) is None:
            return self._built(step)
        if (found := self._graphs.get(key)) is None:
            if len(self._graphs) >= KEPT:
                self._graphs.clear()  # maybe those of another thread, which holds the one that it found
            self._graphs[key] = found = self._built(step)
        return found

    @cached_property
    def _graphs(self) -> dict[Hashable, Graph]:
        return {}

    def _built(self, step: Step) -> Graph:
        hidden = Tensor(name="hidden", elements=step.tokens * (1.0 * self.hidden), dtype=self.dtype)
        layers = tuple(layer.block(step, hidden) for layer in self.layers)
        before = self.encoder.blocks(step) if self.encoder else ()
        head = self.head.block(step, hidden)
        decoder = (self.embedding.block(step), *layers, *((head,) if head.operators else ()))
        return self.checkpoint(Graph(blocks=(*before, *decoder)))

    @property
    def all_layers(self) -> tuple[DecoderLayer, ...]:
        """Layers of the encoder, if there is one, and of the decoder."""
        return (*(self.encoder.layers if self.encoder else ()), *self.layers)

    @cached_property
    def parameters(self) -> float:
        """Number of stored parameters: a tied table counts once, buffers do not count."""
        stored = self._graph().stored_weights()
        return float(sum(t.elements * layers for t, layers in stored if not t.name.endswith(BUFFER)))

    @cached_property
    def active_parameters(self) -> float:
        """Parameters used per token: only the chosen experts; the embedding and head in full."""
        graph = self._graph()
        unused = 0.0
        for block, operator in graph:
            for access in operator.reads:
                if access.tensor.role is Role.WEIGHT and is_routed(operator):
                    unused += float(access.tensor.elements - access.elements) * block.repeats
        return self.parameters - round(unused)

    def _graph(self) -> Graph:
        return self.graph(decode(1.0, 0.0))


def with_mla_form(model: Model, form: MlaForm) -> Model:
    """A copy of the model that computes its latent attention in `form`."""

    def change(layer: DecoderLayer) -> DecoderLayer:
        return replace(layer, mixer=replace(layer.mixer, form=form)) if isinstance(layer.mixer, Mla) else layer

    return replace(model, layers=tuple(map(change, model.layers)))

"""A model: embedding, layers, head; built plain (checkpoint dtype, one chip, unfused, eager attention)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmviewer.core.counts import Count
from llmviewer.core.dtypes import Dtype
from llmviewer.core.ir import BUFFER, Block, Graph, Operator, Pass, Role, Tensor, as_built, whole
from llmviewer.core.workload import Step, decode
from llmviewer.layers.decoder import DecoderLayer, FeedForward
from llmviewer.ops.embedding import embedding
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding:
    """Tables looked up for every token, and what follows before the first layer.

    width: of a row; positions: rows of a learned position table, 0 = none; scaled: rows are multiplied by a factor.
    project: a matrix to the hidden width where rows are narrower (OPT-350m).
    per_layer: makes an input for every layer beside the stream (Gemma 4).
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

    def _table(self, name: str, rows: int, width: int) -> Tensor:
        return Tensor(name=f"{name}.weight", elements=float(rows) * width, dtype=self.dtype, role=Role.WEIGHT)

    def block(self, step: Step) -> Block:
        """Gather, project, normalise; the last output is the residual stream."""
        tokens = step.tokens
        y = Tensor(name="embedding", elements=tokens * (1.0 * self.width), dtype=self.dtype)
        table = self._table("embedding", self.vocabulary, self.width)
        added = self.positions and not self.project
        tables = (table, self._positions()) if added else (table,)
        operators = [embedding("embedding", tables, y, tokens, flops=float(bool(added)) + float(self.scaled))]
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Head:
    """Final norm over all tokens, then the vocabulary on the step's logit positions.

    tied: the matrix is the embedding's table.  project: a matrix back to the table's width (OPT-350m).
    logit_flops: vector work per logit (soft cap, scale).
    """

    lm_head: Linear
    tied: bool
    norm: Norm | None = None
    project: Linear | None = None
    logit_flops: float = 0.0
    logit_special: float = 0.0

    def block(self, step: Step, hidden: Tensor) -> Block:
        """final_norm, lm_head."""
        operators: list[Operator] = []
        x = hidden
        if self.norm is not None:
            operators.append(self.norm.operator(x, step.tokens))
            x = operators[-1].output
        if self.project is not None:
            operators.append(self.project.operator(x, step.tokens))
            x = operators[-1].output
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Model:
    """Everything a config says about shapes.  hidden: width of the residual stream.

    checkpoint: which linear layers and caches are stored in other formats than `dtype`.
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

    def graph(self, step: Step) -> Graph:
        """One forward pass: embedding, each kind of layer, head, in the checkpoint's formats."""
        hidden = Tensor(name="hidden", elements=step.tokens * (1.0 * self.hidden), dtype=self.dtype)
        layers = tuple(layer.block(step, hidden) for layer in self.layers)
        return self.checkpoint(Graph(blocks=(self.embedding.block(step), *layers, self.head.block(step, hidden))))

    @property
    def parameters(self) -> float:
        """Stored parameters, tied tables once, buffers not."""
        stored = self._graph().stored_weights()
        return float(sum(t.elements * times for t, times in stored if not t.name.endswith(BUFFER)))

    @property
    def active_parameters(self) -> float:
        """Parameters one token uses: of routed experts the chosen ones, embeddings and head whole."""
        graph = self._graph()
        idle = 0.0
        for block, operator in graph:
            for access in operator.reads:
                if access.tensor.role is Role.WEIGHT and operator.name.startswith("expert_"):
                    idle += float(access.tensor.elements - access.elements) * block.repeats
        return self.parameters - round(idle)

    def _graph(self) -> Graph:
        return self.graph(decode(1.0, 0.0))

"""`--speculative speculator`: MLP stages run in sequence, each on the state and token of the stage before."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from llmviewer.core.dtypes import Dtype
from llmviewer.core.errors import unknown
from llmviewer.core.ir import Block, Operator, Role, Tensor, whole
from llmviewer.core.workload import Step
from llmviewer.models.model import Model
from llmviewer.ops.elementwise import activate, activation, elementwise
from llmviewer.ops.embedding import embedding
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import Norm, NormKind
from llmviewer.serving.generation import Draft, Generation
from llmviewer.techniques.speculation.draft_options import ACCEPTANCE_HELP, required_acceptance, scheme_name
from llmviewer.techniques.speculation.module import Module, draft_module
from llmviewer.techniques.speculation.verification import round_facts, tree_verification_pass
from llmviewer.techniques.technique import Change, Parameter, Technique, change_generation, parse_parameters

SOURCE = "arXiv 2404.19124; https://github.com/foundation-model-stack/fms-extras, fms_extras/models/speculator.py"


class Embeddings(Enum):
    """Whether stages have separate embeddings, norms and LM heads, or share one set."""

    OWN = "own"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorStage:
    """One stage: token embedding, projection of the previous state, normalized weighted sum, GELU, LM head.

    first: its input is the target's hidden state, whose width differs, so its projection is never shared.
    """

    vocabulary: float
    state: float
    inner: float
    dtype: Dtype
    first: bool

    def operators(self, step: Step) -> tuple[Operator, ...]:
        """Operators of the stage at the positions that need logits; the state is the output of the last but one."""
        rows = step.logits
        elements = rows * (1.0 * self.inner)
        before = Tensor(name="hidden", elements=rows * (1.0 * self.state), dtype=self.dtype)
        table = Tensor(
            name="embedding.weight", elements=self.vocabulary * self.inner, dtype=self.dtype, role=Role.WEIGHT
        )
        token = embedding("embedding", (table,), Tensor(name="embedding", elements=elements, dtype=self.dtype), rows)
        name = "state_proj_first" if self.first else "state_proj"
        project = Linear(name=name, in_features=self.state, out_features=self.inner, dtype=self.dtype)
        state = project.operator(before, rows)
        sums = Tensor(name="state_sum", elements=elements, dtype=self.dtype)
        both = elementwise("state_sum", (whole(state.output), whole(token.output)), sums, rows, flops=2.0)
        norm = Norm(
            name="state_norm", kind=NormKind.LAYER, width=self.inner, parameters=2.0 * self.inner, dtype=self.dtype
        )
        normed = norm.operator(sums, rows)
        act = activate("state_act", normed.output, rows, activation("gelu"))
        head = Linear(name="lm_head", in_features=self.inner, out_features=self.vocabulary, dtype=self.dtype)
        return (token, state, both, normed, act, head.operator(act.output, rows))


def speculator(target: Model, heads: int, inner: int, embeddings: Embeddings = Embeddings.OWN) -> Module:
    """`heads` stages of width `inner`, all run in one pass of the module.

    Own parameters: heads (2 V inner + 2 inner) + h inner + (heads - 1) inner^2; if stages share embedding, norm and
    head, and all but the first the projection: 2 V inner + 2 inner + h inner + inner^2.
    With tensor parallelism embeddings and heads are split by vocabulary and projections replicated, as in vLLM.
    Not modelled: scaling of the target's state (`scale_input`), which has no weights.
    """
    vocabulary, own = target.head.lm_head.out_features, embeddings is Embeddings.OWN
    widths = [target.hidden] + [inner] * heads
    stages = [
        SpeculatorStage(vocabulary=vocabulary, state=state, inner=width, dtype=target.dtype, first=at == 0)
        for at, (state, width) in enumerate(pairwise(widths))
    ]

    def blocks(step: Step) -> tuple[Block, ...]:
        # blocks of one scope share weights of the same name
        return tuple(
            Block(name=f"stage_{at}", operators=stage.operators(step), scope=f"stage_{at}" if own else "model")
            for at, stage in enumerate(stages, 1)
        )

    return draft_module(target, f"speculator, {heads} heads of {inner}", blocks, SOURCE)


WHERE = "--speculative speculator"
HEADS = Parameter(name="heads", default=3, low=1, high=16, whole=True)
#: Width of the published heads for Llama-2-13b: https://huggingface.co/ibm-fms/llama-13b-accelerator
INNER = Parameter(name="inner", default=4096, low=1, high=1e6, whole=True)
CANDIDATES = Parameter(name="candidates", default=1, low=1, high=64, whole=True)


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("heads", "inner", "embeddings", "candidates", "acceptance"))
    heads, inner, candidates = (parameter.value(given, WHERE) for parameter in (HEADS, INNER, CANDIDATES))
    embeddings = given.get("embeddings", Embeddings.OWN.value)
    allowed = [one.value for one in Embeddings]
    if embeddings not in allowed:
        raise unknown("embeddings", embeddings, allowed, where=WHERE)
    by_position = required_acceptance(WHERE, given)

    def make(target: Model) -> Generation:
        module = speculator(target, int(heads), int(inner), Embeddings(embeddings))
        draft = Draft(name=module.architecture, model=module, caches=False)
        shape = tree_verification_pass(candidates * heads, heads)
        facts = round_facts(module.architecture, candidates * heads, by_position)
        return Generation(shape=shape, tokens=by_position.tokens(heads), drafts=(draft,), facts=facts)

    return change_generation(scheme_name("speculator", text), make)


TECHNIQUE = Technique(
    name="speculator",
    kind="speculation",
    summary="One MLP stage per draft token, each on the state and token of the stage before (IBM's multi-stage "
    "speculator).",
    parameters={
        "heads": "number of stages: 3 to 4 for language, 6 to 8 for code (default: 3)",
        "acceptance": ACCEPTANCE_HELP,
        "inner": "width of a stage (default: 4096)",
        "embeddings": "own: separate embeddings, norms and heads per stage; shared: one set (default: own)",
        "candidates": "chains verified in one pass; acceptance is that of the best (default: 1)",
    },
    formula="a stage: embedding V x d, h or d -> d, norm, GELU, d -> V; verification of candidates x heads + 1 tokens; "
    "E = 1 + a_1 + a_1 a_2 + ...",
    source=SOURCE + "; https://pytorch.org/blog/hitchhikers-guide-speculative-decoding/",
    example="llmviewer analyze llama-2-13b --hardware a100 --speculative speculator,heads=3,acceptance=0.7/0.6/0.5",
    make=_make,
)

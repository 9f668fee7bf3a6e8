"""`--speculative mtp`: the multi-token prediction module of a checkpoint drafts."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.core.ir import Block, Operator
from llmviewer.core.workload import Step
from llmviewer.layers.attention import Attention
from llmviewer.layers.decoder import DecoderLayer
from llmviewer.layers.mla import Mla
from llmviewer.models.model import Model
from llmviewer.ops.gemm import Linear
from llmviewer.ops.norm import rms_norm
from llmviewer.techniques.speculation.draft_options import ACCEPTANCE_HELP, TOKENS_HELP
from llmviewer.techniques.speculation.feature_rounds import FeatureDrafter, feature_method
from llmviewer.techniques.speculation.module import (
    VOCABULARY,
    Module,
    checkpoint_formats,
    draft_module,
    embedding_block,
    hidden_states,
)
from llmviewer.techniques.technique import Change, Parameter, Technique, parse_parameters

SOURCE = (
    "DeepSeek-V3 arXiv 2412.19437, section 2.2; "
    "https://github.com/vllm-project/vllm, vllm/model_executor/models/deepseek_mtp.py, qwen3_next_mtp.py, mimo_mtp.py"
)


#: Architectures whose module is not like their last layer -> substrings of the layers with its mixer and its MLP.
#: MiMo-V2-Flash: a sliding window and a dense MLP, 0.33e9 parameters per module (arXiv 2601.02780).
LIGHT = {"MiMoV2FlashForCausalLM": ("sliding", "dense")}


def module_layer(target: Model) -> DecoderLayer:
    """The layer of the module: the target's last layer with attention, unless the architecture is in LIGHT."""
    by_name = {layer.name: layer for layer in target.layers}
    if target.architecture in LIGHT:
        mixers, parts = LIGHT[target.architecture]
        mixer = next(layer.mixer for name, layer in by_name.items() if mixers in name)
        part = next(layer for name, layer in by_name.items() if parts in name)
        return replace(part, mixer=mixer, repeats=1, numbers=())
    attending = [layer for layer in target.layers if isinstance(layer.mixer, (Attention, Mla))]
    last = max(attending or target.layers, key=lambda layer: max(layer.numbers, default=layer.repeats))
    return replace(last, repeats=1, numbers=())


def mtp(target: Model) -> Module:
    """The MTP module.

    Norms of token embedding and hidden state, eh_proj (2 h -> h) of both, one layer like the target's last one
    (experts included), the module's norm and the target's LM head.
    Own parameters: 2 h h + 3 h + the layer's; embedding and head are the target's.  The layer has the number formats
    of the target's last one, eh_proj has 16 bit.  Published for DeepSeek-V3: 11.5e9
    (https://github.com/deepseek-ai/DeepSeek-V3, README_WEIGHTS.md; 14e9 with embedding, head and scales).
    """
    layer = module_layer(target)
    width, dtype = target.hidden, target.dtype
    project = Linear(name="eh_proj", in_features=2 * width, out_features=width, dtype=dtype)
    head = replace(target.head, norm=rms_norm("final_norm", width, dtype))

    def blocks(step: Step) -> tuple[Block, ...]:
        input_block = Block(name="mtp_input", operators=_join(target, project, step), scope="model")
        hidden = hidden_states(target, step)
        return (embedding_block(target, step), input_block, layer.block(step, hidden), head.block(step, hidden))

    return draft_module(target, "MTP", blocks, SOURCE, checkpoint_formats(target, {layer.name: (layer.name, 1)}))


def _join(target: Model, project: Linear, step: Step) -> tuple[Operator, ...]:
    """enorm and hnorm as one norm with two rows per token, then eh_proj."""
    norm = rms_norm("input_norm", target.hidden, target.dtype, rows=2)
    norm = replace(norm, parameters=2.0 * target.hidden)
    normed = norm.operator(hidden_states(target, step, 2.0), step.tokens)
    return normed, project.operator(normed.output, step.tokens)


WHERE = "--speculative mtp"
MODULES = Parameter(name="modules", default=1, low=1, high=16, whole=True)
#: 85 % acceptance of second tokens, the low end of the DeepSeek-V3 report.
DEFAULT = "mtp-deepseek-v3"


def _make(text: str) -> Change:
    given = parse_parameters(WHERE, text, ("tokens", "acceptance", "modules"))
    modules = int(MODULES.value(given, WHERE))
    one_token = given.get("tokens", "1") in ("0", "1")

    def drafter(target: Model) -> FeatureDrafter:
        module = mtp(target)
        return FeatureDrafter(name="MTP", first=module, later=module, shared=VOCABULARY, modules=modules)

    return feature_method("mtp", text, given, drafter, DEFAULT if one_token else "", 1.0)


TECHNIQUE = Technique(
    name="mtp",
    kind="speculation",
    summary="The multi-token prediction module of a checkpoint drafts (DeepSeek-V3, GLM-4.5, Qwen3-Next, MiMo-V2; "
    "for other models, a module of the same form).",
    parameters={
        "tokens": f"{TOKENS_HELP} (default: 1)",
        "acceptance": f"{ACCEPTANCE_HELP} (default for one token: {DEFAULT})",
        "modules": "modules with separate weights, used in turn (default: 1)",
    },
    formula="eh_proj (2 h -> h) of token embedding and hidden state, one layer like the target's last, the target's LM "
    "head, for every draft token; E = 1 + a_1 + a_1 a_2 + ...; memory: the module's weights and its layer's KV cache",
    source=SOURCE,
    example="llmviewer analyze deepseek-v3 --hardware h200 -tp 8 --speculative mtp,tokens=1",
    make=_make,
)

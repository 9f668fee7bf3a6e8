"""Facts that the certificate needs about each architecture: one row per `model_type`.

`layers` lists functions that distinguish layers (none: all equal). `fields` turns a published config into the fields
of the class. `cut` changes further fields of a reduced config. `experts_chosen` is the share of the experts' products
that belong to chosen experts (1 unless the library runs them all). `stand_ins` replaces the forward pass of modules
that cannot run without data. `beside` names modules of other parts (towers for images and sound), whose parameters do
not belong to the language model. `unstored` counts parameters that the class has and no checkpoint. `code` states
whether the class is the model's own or an equivalent of the same shapes. An `encoder` has no cache, and a head on
every position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from typing import Any

from . import layer_kinds as by
from . import published_fields as to
from . import reductions as cut
from .stand_ins import dbrx_experts, dense_mlp, jetmoe_gating, longcat_experts


class Code(Enum):
    """Origin of the code that is run."""

    OWN = "own class"
    EQUIVALENT = "equivalent class of the same shapes"


def every_expert_runs(resolved: Any) -> Fraction:
    """Llama 4: the library multiplies all tokens by all experts; only k of N are chosen."""
    return Fraction(resolved.num_experts_per_tok, resolved.num_local_experts)


def only_chosen_run(resolved: Any) -> Fraction:
    """The default: the library runs only the chosen experts."""
    return Fraction(1)


def nothing_unstored(resolved: Any) -> int:
    """The default: a checkpoint stores every parameter of the class."""
    return 0


def gates_of_identities(resolved: Any) -> int:
    """LongCat-Flash: the library also allocates gate and up matrices for experts that return their input."""
    width: int = 2 * resolved.expert_ffn_hidden_size * resolved.hidden_size
    return resolved.num_layers * int(resolved.zero_expert_num) * width


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts about one architecture."""

    model_class: str
    layers: tuple[by.LayerLabels, ...] = ()
    code: Code = Code.OWN
    fields: Callable[[dict[str, Any]], dict[str, Any]] = to.as_published
    cut: Callable[[dict[str, Any], Any], dict[str, Any]] = cut.nothing_else
    experts_chosen: Callable[[Any], Fraction] = only_chosen_run
    stand_ins: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    unstored: Callable[[Any], int] = nothing_unstored
    encoder: bool = False


FAMILIES: dict[str, Family] = {
    # dense, all layers equal
    "gpt2": Family(model_class="GPT2LMHeadModel"),
    "opt": Family(model_class="OPTForCausalLM"),
    "gptj": Family(model_class="GPTJForCausalLM"),
    "gpt_neox": Family(model_class="GPTNeoXForCausalLM"),
    "bloom": Family(model_class="BloomForCausalLM"),
    "falcon": Family(model_class="FalconForCausalLM"),
    "mpt": Family(model_class="MptForCausalLM"),
    "gpt_bigcode": Family(model_class="GPTBigCodeForCausalLM"),
    "starcoder2": Family(model_class="Starcoder2ForCausalLM"),
    "llama": Family(model_class="LlamaForCausalLM"),
    "mistral": Family(model_class="MistralForCausalLM"),
    "gemma": Family(model_class="GemmaForCausalLM"),
    "phi": Family(model_class="PhiForCausalLM"),
    "phi3": Family(model_class="Phi3ForCausalLM"),
    "glm": Family(model_class="GlmForCausalLM"),
    "glm4": Family(model_class="Glm4ForCausalLM"),
    "cohere": Family(model_class="CohereForCausalLM"),
    "granite": Family(model_class="GraniteForCausalLM"),
    "olmo": Family(model_class="OlmoForCausalLM"),
    "olmo2": Family(model_class="Olmo2ForCausalLM"),
    "nemotron": Family(model_class="NemotronForCausalLM"),
    "seed_oss": Family(model_class="SeedOssForCausalLM"),
    "emu3_text_model": Family(model_class="Emu3ForCausalLM"),
    "phi4_multimodal": Family(model_class="Phi4MultimodalForCausalLM", beside=("embed_tokens_extend",)),
    "hrm_text": Family(model_class="HrmTextForCausalLM", layers=(by.every_layer,), cut=cut.two_layers_per_stack),
    "git": Family(model_class="GitForCausalLM", beside=("image_encoder", "visual_projection")),
    "mllama_text_model": Family(model_class="MllamaForCausalLM"),
    "stablelm": Family(model_class="StableLmForCausalLM"),
    # dense, windows or rotary embedding in some layers only
    "qwen2": Family(model_class="Qwen2ForCausalLM", layers=(by.layer_types,), cut=cut.windows_from_second_layer),
    "qwen3": Family(model_class="Qwen3ForCausalLM", layers=(by.layer_types,), cut=cut.windows_from_second_layer),
    "smollm3": Family(model_class="SmolLM3ForCausalLM", layers=(by.layer_types, by.rotary_layers)),
    "gemma2": Family(model_class="Gemma2ForCausalLM", layers=(by.layer_types,)),
    "gemma3_text": Family(model_class="Gemma3ForCausalLM", layers=(by.layer_types,)),
    "gemma3n_text": Family(
        model_class="Gemma3nForCausalLM",
        layers=(by.layer_types, by.cache_sharing),
        cut=cut.shared_tail_of_lists,
        stand_ins={"Gemma3nTextMLP": dense_mlp},
    ),
    "gemma4_text": Family(
        model_class="Gemma4ForCausalLM", layers=(by.layer_types, by.cache_sharing), cut=cut.shared_tail
    ),
    "gemma4_unified_text": Family(
        model_class="Gemma4UnifiedForCausalLM", layers=(by.layer_types, by.cache_sharing), cut=cut.shared_tail
    ),
    "cohere2": Family(model_class="Cohere2ForCausalLM", layers=(by.layer_types,)),
    "olmo3": Family(model_class="Olmo3ForCausalLM", layers=(by.layer_types,)),
    # experts in every layer
    "mixtral": Family(model_class="MixtralForCausalLM"),
    "phimoe": Family(model_class="PhimoeForCausalLM"),
    "olmoe": Family(model_class="OlmoeForCausalLM"),
    "granitemoe": Family(model_class="GraniteMoeForCausalLM"),
    "minimax_m2": Family(model_class="MiniMaxM2ForCausalLM"),
    "dbrx": Family(model_class="DbrxForCausalLM", stand_ins={"DbrxExperts": dbrx_experts}),
    "gpt_oss": Family(model_class="GptOssForCausalLM", layers=(by.layer_types,)),
    # experts in some layers
    "qwen2_moe": Family(
        model_class="Qwen2MoeForCausalLM", layers=(by.layer_types, by.sparse_step), cut=cut.windows_from_second_layer
    ),
    "qwen3_moe": Family(model_class="Qwen3MoeForCausalLM", layers=(by.sparse_step,)),
    "llama4_text": Family(
        model_class="Llama4ForCausalLM", layers=(by.layer_types, by.listed_experts), experts_chosen=every_expert_runs
    ),
    "deepseek_v2": Family(model_class="DeepseekV2ForCausalLM", layers=(by.dense_first,)),
    "deepseek_v3": Family(model_class="DeepseekV3ForCausalLM", layers=(by.dense_first,)),
    "glm4_moe": Family(model_class="Glm4MoeForCausalLM", layers=(by.dense_first,)),
    "jetmoe": Family(model_class="JetMoeForCausalLM", stand_ins={"JetMoeTopKGating": jetmoe_gating}),
    "longcat_flash": Family(
        model_class="LongcatFlashForCausalLM",
        stand_ins={"LongcatFlashExperts": longcat_experts},
        unstored=gates_of_identities,
    ),
    "mimo_v2_flash": Family(
        model_class="MiMoV2FlashForCausalLM", layers=(by.layer_types, by.mlp_types), fields=to.mimo
    ),
    # state spaces, linear attention and their hybrids
    "mamba": Family(model_class="MambaForCausalLM"),
    "mamba2": Family(model_class="Mamba2ForCausalLM"),
    "jamba": Family(model_class="JambaForCausalLM", layers=(by.layer_types, by.expert_counts)),
    "nemotron_h": Family(model_class="NemotronHForCausalLM", layers=(by.layer_types,)),
    "granitemoehybrid": Family(model_class="GraniteMoeHybridForCausalLM", layers=(by.layer_types,)),
    "minimax": Family(model_class="MiniMaxForCausalLM", layers=(by.layer_types,)),
    "qwen3_next": Family(model_class="Qwen3NextForCausalLM", layers=(by.layer_types, by.sparse_step)),
    "qwen3_5_text": Family(model_class="Qwen3_5ForCausalLM", layers=(by.layer_types,)),
    "qwen3_5_moe_text": Family(model_class="Qwen3_5MoeForCausalLM", layers=(by.layer_types,)),
    "recurrent_gemma": Family(model_class="RecurrentGemmaForCausalLM", layers=(by.layer_types,)),
    "zamba": Family(model_class="ZambaForCausalLM", layers=(by.shared_calls,)),
    "zamba2": Family(model_class="Zamba2ForCausalLM", layers=(by.shared_calls,)),
    # not in the library: an equivalent class
    "internlm2": Family(model_class="LlamaForCausalLM", code=Code.EQUIVALENT, fields=to.internlm2),
    "baichuan": Family(model_class="LlamaForCausalLM", code=Code.EQUIVALENT, fields=to.baichuan),
    "chatglm": Family(model_class="GlmForCausalLM", code=Code.EQUIVALENT, fields=to.chatglm),
    "kimi_k2": Family(model_class="DeepseekV3ForCausalLM", code=Code.EQUIVALENT, layers=(by.dense_first,)),
    "minimax_text_01": Family(model_class="MiniMaxForCausalLM", layers=(by.layer_types,), fields=to.minimax_text),
}

NESTED_TEXT: dict[str, str] = {
    "emu3": "emu3_text_model",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "got_ocr2": "qwen2",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Model type of a multimodal config -> that of its `text_config`, where the latter does not say."""

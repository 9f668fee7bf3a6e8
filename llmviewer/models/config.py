"""Reading a config.json: every field is read by a parser, ignored for a stated reason, or an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.models.class_defaults import class_defaults, is_harmless

#: A larger size is a typing error.
MAX_FIELD_VALUE = 10**8
#: Sizes that every config of its own states; without them it is an excerpt.
SIZES_OF_A_MODEL = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
#: The folder of the known models.
DIRECTORY = "model_configs"
#: The field with the number formats of a quantized checkpoint.
QUANTIZATION_FIELD = "quantization_config"
#: Its names in other tools: compressed-tensors before 2024-08, MLX and ModelOpt.
QUANTIZATION_FIELDS = (QUANTIZATION_FIELD, "compression_config", "quantization")
#: Reason -> fields that change no shape and no count.
_IGNORED_BY_REASON: dict[str, str] = {
    "identity": "_name_or_path name_or_path architectures auto_map model_type transformers_version torch_dtype dtype "
    "finetuning_task id2label label2id problem_type _commit_hash custom_pipelines _from_model_config",
    "token ids, no shapes": "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id "
    "forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids "
    "tokenizer_class prefix",
    "training only": "initializer_range init_std init_method_std attention_dropout attn_pdrop embd_pdrop resid_pdrop "
    "dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob activation_dropout embedding_dropout "
    "layerdrop classifier_dropout summary_activation summary_first_dropout summary_proj_to_labels summary_type "
    "summary_use_proj router_aux_loss_coef router_jitter_noise input_jitter_noise output_router_logits "
    "router_z_loss_coef "
    "aux_loss_alpha seq_aux gradient_checkpointing rescale_prenorm_residual use_cache_in_training ffn_dropout "
    "residual_dropout attn_dropout emb_pdrop ffn_pdrop resid_dropout",
    "numerical detail that changes no work": "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_eps norm_epsilon "
    "layernorm_epsilon "
    "rope_theta rope_scaling rope_parameters rope_local_base_freq rotary_emb_base rope_ratio partial_rope_base "
    "original_max_position_embeddings attention_softmax_in_fp32 apply_residual_connection_post_layernorm_fp32 "
    "scale_attention_softmax_in_fp32 attention_bias_in_fp32 residual_in_fp32 query_pre_attn_scalar scale_attn_weights "
    "scale_attn_by_inverse_layer_idx reorder_and_upcast_attn softmax_scale slow_but_exact initializer_cutoff_factor "
    "time_step_min time_step_max time_step_floor time_step_limit time_step_scale time_step_init_scheme "
    "rope_interleave rope_interleaved routed_scaling_factor",
    "which experts are chosen, not how many": "norm_topk_prob n_group topk_group scoring_func",
    "multi-token prediction: an extra block that ordinary decoding does not run": "num_nextn_predict_layers "
    "num_mtp_layers mtp_transformer_layers num_mtp_modules use_mtp mtp_num_hidden_layers mtp_use_dedicated_embeddings",
    "vision and audio: only the language model is counted": "vision_config audio_config mm_tokens_per_image "
    "image_token_index boi_token_index eoi_token_index eoa_token_index image_token_id video_token_id audio_token_id "
    "boi_token_id "
    "eoi_token_id boa_token_id eoa_token_id vision_start_token_id vision_end_token_id vision_soft_tokens_per_image "
    "audio_soft_tokens_per_image projector_hidden_act multimodal_projector_bias vision_feature_layer "
    "spatial_merge_size",
    "run-time settings": "use_cache pretraining_tp return_dict output_attentions output_hidden_states is_decoder "
    "is_encoder_decoder add_cross_attention tie_encoder_decoder task_specific_params gradient_checkpointing "
    "ep_size attn_implementation _attn_implementation use_flash_attn cross_attention_hidden_size "
    "chunk_size_feed_forward "
    "torchscript use_bfloat16 max_length min_length do_sample early_stopping num_beams num_beam_groups "
    "diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size "
    "encoder_no_repeat_ngram_size num_return_sequences output_scores return_dict_in_generate remove_invalid_values "
    "exponential_decay_length_penalty pruned_heads tf_legacy_loss cache_implementation skip_bos output_past",
    "read once for all architectures": "quantization_config max_position_embeddings tie_word_embeddings vocab_size",
}
#: Ignored field -> reason.
IGNORED_FIELDS: dict[str, str] = {
    name: reason for reason, names in _IGNORED_BY_REASON.items() for name in names.split()
}


class Config:
    """The fields of a config.json, and which of them were read.  where: name of the config in error messages."""

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where
        self.read: set[str] = set()
        self.sections: dict[str, Config] = {}
        self.class_sizes: Mapping[str, int] = {}
        self.assumed: dict[str, int] = {}

    def has(self, name: str) -> bool:
        """Whether the field is present and not null; marks it as read."""
        self.read.add(name)
        return self.fields.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The raw value; null counts as missing."""
        return self.fields[name] if self.has(name) else default

    def defaults(self, **values: Any) -> None:
        """Set the class's defaults for missing fields (an explicit null stays null)."""
        self.fields = {**values, **self.fields}

    def override(self, **values: Any) -> None:
        """Set fields that another part of the config decides."""
        self.fields = {**self.fields, **values}

    def assume_class(self, model_type: str, *, nested: bool) -> None:
        """Let missing sizes have the defaults of the library's class.

        nested: also those without which a config of its own is a mere excerpt (SIZES_OF_A_MODEL); a section of a
        multimodal config leaves them out where they are the class's.
        """
        sizes = class_defaults(model_type)
        self.class_sizes = {name: size for name, size in sizes.items() if nested or name not in SIZES_OF_A_MODEL}

    def first_present(self, *names: str) -> str:
        """The first of several field names that is present; the first name if none is."""
        present = [name for name in names if self.has(name)]
        return present[0] if present else names[0]

    def count(self, name: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_FIELD_VALUE) -> int:
        """A whole number from `minimum` to `maximum`; without a default the field is required."""
        value = self.get(name, default)
        if name in self.class_sizes and name not in self.fields:
            value = self.assumed[name] = self.class_sizes[name]
        if value is None:
            raise UserError(f"{self.where}: missing field '{name}'")
        is_whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
        if isinstance(value, bool) or not is_whole:
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a whole number")
        if not minimum <= value <= maximum:
            raise UserError(f"{self.where}: field '{name}' is {printable(value)}, expected {minimum} to {maximum}")
        return int(value)

    def number(self, name: str, default: float) -> float:
        """A finite number, `default` if missing."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e300:
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a number")
        return float(value)

    def fraction(self, name: str, default: float) -> float:
        """A number from 0 to 1, `default` if missing."""
        value = self.number(name, default)
        if not 0.0 <= value <= 1.0:
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected 0 to 1")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean, `default` if missing."""
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string; without a default the field is required."""
        value = self.get(name, default)
        if value is None:
            raise UserError(f"{self.where}: missing field '{name}'")
        if not isinstance(value, str):
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a string")
        return value

    def words(self, name: str, allowed: Mapping[str, Any] | tuple[str, ...], length: int) -> list[str]:
        """The first `length` entries of a list of strings, each one of `allowed` (layer_types)."""
        value = self.get(name)
        if not isinstance(value, list) or len(value) < length:
            raise UserError(f"{self.where}: field '{name}' must list {length} layers")
        for word in value[:length]:
            if not isinstance(word, str) or word not in allowed:
                raise unknown(f"entry of {name}", word, allowed, where=self.where)
        return list(value[:length])

    def numbers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """A list of whole numbers (the layers with experts), `default` if missing."""
        value = self.get(name, list(default))
        if not isinstance(value, list) or not all(type(entry) is int for entry in value):
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}, expected a list of whole numbers")
        return list(value)

    def expect(self, name: str, *values: Any) -> None:
        """Raise if the field has another value than these; a missing field or null is fine."""
        value = self.get(name)
        if value is not None and value not in values:
            allowed = ", ".join(map(printable, values))
            raise UserError(f"{self.where}: field '{name}' is {quoted(value)}; supported: {allowed}")

    def ignore(self, *names: str) -> None:
        """Mark fields as read that do not matter for this architecture's shapes."""
        self.read.update(names)

    def section(self, name: str) -> Config:
        """A nested config (`text_config`), whose unread fields are reported together with this one's."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            raise UserError(f"{self.where}: field '{name}' must be a mapping of fields")
        return self.sections.setdefault(name, Config(value, f"{self.where}: {name}"))

    def all_sections(self) -> list[Config]:
        """Sections that were read, and the sections within them."""
        return [inner for section in self.sections.values() for inner in (section, *section.all_sections())]

    def assumptions(self) -> tuple[str, ...]:
        """A note about sizes that the config leaves to the library's class, nested ones included."""
        assumed = dict(self.assumed)
        for section in self.all_sections():
            assumed |= section.assumed
        if not assumed:
            return ()
        sizes = ", ".join(f"{name} {size}" for name, size in assumed.items())
        return (f"the config leaves sizes to its class in transformers: {sizes}",)

    def unread_fields(self) -> list[str]:
        """Fields that were neither read nor are in IGNORED_FIELDS or harmless, nested ones included."""
        unread = (name for name in self.fields if name not in self.read and name not in IGNORED_FIELDS)
        own = [name for name in unread if not is_harmless(name, self.fields)]
        return own + [name for section in self.sections.values() for name in section.unread_fields()]

    def names(self) -> set[str]:
        """Names of all fields, nested ones included."""
        return {*self.fields}.union(*(section.names() for section in self.sections.values()))

    def check_all_read(self, ignored: tuple[str, ...] = ()) -> None:
        """Raise if any field was not read, or if one of the `ignored` fields, which are excepted, is not there."""
        for name in ignored:
            if name not in self.names():
                raise unknown(
                    "field of --ignore-fields",
                    name,
                    self.names(),
                    where=self.where,
                    hint="the config has no such field",
                )
        unread = [name for name in self.unread_fields() if name not in ignored]
        if unread:
            noun, verb = ("fields", "are") if len(unread) > 1 else ("field", "is")
            names = ", ".join(quoted(name) for name in unread[:5]) + (", …" if len(unread) > 5 else "")
            raise UserError(
                f"{self.where}: {noun} {names} {verb} not supported for this architecture and may change its shapes "
                f"(to ignore: --ignore-fields {printable(unread[0])})"
            )

    def check_used(self, changed: Iterable[str]) -> None:
        """Raise if no count depends on one of these fields, `section.name` if nested, which a user has changed."""
        read = self.read.union(*(section.read for section in self.all_sections()))
        for name in changed:
            if name.rpartition(".")[2] not in read:
                raise UserError(f"{self.where}: no count depends on field {quoted(name)}, which --model-set changes")


#: Stands for "no limit" where a config states no maximum context.
ABSENT_CONTEXT = 10**8
#: A larger depth is a typing error; parsers list the layers one by one.
MAX_LAYERS = 10**4


def hidden_size(config: Config) -> int:
    """Width of the residual stream."""
    return _size(config, "hidden_size", "n_embd", "n_embed", "d_model")


def head_count(config: Config) -> int:
    """Number of query heads."""
    return _size(config, "num_attention_heads", "n_head", "n_heads")


def head_size(config: Config, default: int | None = None) -> int:
    """Elements per head: `head_dim`, else the class's `default`, else hidden_size / heads."""
    if config.has("head_dim") or default:
        return config.count("head_dim", default)
    hidden, heads = hidden_size(config), head_count(config)
    _check_divisible(config, "elements of hidden_size", hidden, heads, "heads")
    return hidden // heads


def kv_head_count(config: Config) -> int:
    """Number of key-value heads; equal to the number of query heads if not stated."""
    heads = head_count(config)
    return group_count(config, "num_key_value_heads", heads, heads=heads)


def group_count(config: Config, name: str, default: int | None = None, *, heads: int) -> int:
    """Groups (or key-value heads) stated in the field `name`; `heads` must be a multiple of it."""
    groups = config.count(name, default, maximum=heads)
    _check_divisible(config, "heads", heads, groups, name)
    return groups


def _check_divisible(config: Config, name: str, value: int, divisor: int, divisor_name: str) -> None:
    if value % divisor:
        raise UserError(f"{config.where}: {value} {name} are not divisible by {divisor} {divisor_name}")


def layer_count(config: Config) -> int:
    """Number of decoder layers."""
    return _size(config, "num_hidden_layers", "n_layer", "n_layers", maximum=MAX_LAYERS)


def _size(config: Config, *names: str, maximum: int = MAX_FIELD_VALUE) -> int:
    """A size that architectures name differently; if a config has several of the names, their values must agree."""
    stated = {name: config.count(name, maximum=maximum) for name in names if config.has(name)}
    if len(set(stated.values())) > 1:
        raise UserError(f"{config.where}: fields {', '.join(stated)} disagree")
    return next(iter(stated.values())) if stated else config.count(names[0])


def max_context(config: Config) -> float:
    """Longest supported context [tokens]: `model_max_length` (Command-R), else the smallest of the usual fields.

    The default of the class counts only where the config states none of them.
    """
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_sequence_length")
    stated = [config.count(name) for name in names if config.has(name)]
    smallest = min(stated) if stated else config.count(names[0], ABSENT_CONTEXT)
    return float(config.count("model_max_length", smallest))


def window(config: Config) -> float:
    """Sliding window [tokens], including the query's own; inf if `sliding_window` is null or missing."""
    return float(config.count("sliding_window")) if config.has("sliding_window") else np.inf


def rotary_dim(config: Config, head_dim: int, *, factor: float = 1.0) -> int:
    """Rotated elements per head: head_dim x `partial_rotary_factor`, a top-level field or one of `rope_parameters`."""
    rope = config.get("rope_parameters")
    nested = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    return int(head_dim * config.fraction("partial_rotary_factor", nested or factor))


def rotary_dim_by_type(config: Config, layer_type: str, head_dim: int, factor: float) -> int:
    """Rotated elements per head in layers of a type (`full`, `sliding`), which have rope parameters of their own.

    factor: the share that is rotated if the config states no rope parameters.
    """
    if config.has("rope_parameters"):
        rope = config.section("rope_parameters").section(f"{layer_type}_attention")
        rope.ignore("rope_theta", "rope_type")
        factor = rope.fraction("partial_rotary_factor", 1.0)
    return int(head_dim * factor)


def layer_types(config: Config, allowed: tuple[str, ...], default: Sequence[str]) -> list[str]:
    """Type of every layer, one of `allowed` (`full`, `sliding`, `linear`): `layer_types`, else the class's default."""
    if not config.has("layer_types"):
        return list(default)
    words = config.words("layer_types", tuple(f"{word}_attention" for word in allowed), len(default))
    return [word.removesuffix("_attention") for word in words]


def binary_layer_list(config: Config, name: str, words: tuple[str, str]) -> list[str]:
    """A list field with 0 or 1 for every layer, as the words for 0 and 1."""
    flags, layers = config.numbers(name), layer_count(config)
    if len(flags) < layers or not set(flags) <= {0, 1}:
        raise UserError(f"{config.where}: field '{name}' must list 0 or 1 for {layers} layers")
    return [words[flag] for flag in flags[:layers]]


def sliding_or_full(config: Config, period: int) -> list[str]:
    """`full` for every `period`-th layer, else `sliding`; the config may list the types or state another period."""
    name = config.first_present("sliding_window_pattern", "_sliding_window_pattern")
    period = config.count(name, period)
    default = ["sliding" if (layer + 1) % period else "full" for layer in range(layer_count(config))]
    return layer_types(config, ("sliding", "full"), default)


def rope_layers(config: Config) -> list[bool]:
    """Whether each layer has rope: all but every `no_rope_layer_interval`-th, or as `no_rope_layers` lists.

    In spite of its name, `no_rope_layers` has 1 for layers with rope.
    """
    depth, period = layer_count(config), config.count("no_rope_layer_interval", 4)
    flags = config.numbers("no_rope_layers") or [int((layer + 1) % period > 0) for layer in range(depth)]
    if len(flags) < depth or not set(flags) <= {0, 1}:
        raise UserError(f"{config.where}: field 'no_rope_layers' must list 0 or 1 for {depth} layers")
    return [flag == 1 for flag in flags[:depth]]

"""Options of a run, declared once; command line, Python signatures and docs/reference/options.md read them here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Any

from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.language.option import Kind, Option, Panel
from llmviewer.techniques.registry import TECHNIQUES

#: Entry of a technique, or its folder for all others in it -> panel.
PANELS = {
    "quantization.quantization": Panel.COMMON,
    "kv_cache.contents:DTYPE": Panel.COMMON,
    "parallel.sizes:tensor_parallel_size": Panel.COMMON,
    "kv_cache.contents:prefix_cache": Panel.WORKLOAD,
    "sparsity.expert_skew:expert_skew_option": Panel.WORKLOAD,
    "sparsity.neurons:hot_neurons_option": Panel.MEMORY,
    "sparsity.early_exit:skip_layers_option": Panel.GENERATION,
    "sparsity.early_exit:EARLY_EXIT": Panel.GENERATION,
    "compression": Panel.PRECISION,
    "sparsity": Panel.PRECISION,
    "kv_cache": Panel.MEMORY,
    "offload": Panel.MEMORY,
    "kernels.set_figures:FIGURES": Panel.HARDWARE,
    "kernels.set_figures:POWER_LIMIT": Panel.HARDWARE,
    "kernels": Panel.KERNELS,
    "parallel": Panel.HARDWARE,
    "methods": Panel.GENERATION,
}


def panel_of(entry: str) -> Panel:
    """The panel of a technique by its registry entry; KeyError if neither it nor its folder or file has one."""
    return PANELS.get(entry) or PANELS[entry.replace(":", ".").partition(".")[0]]


def _declared(kind: Kind, default: Any, summary: str, panel: Panel = Panel.KERNELS, **more: Any) -> Any:
    """Field of `Options` with the declaration of its option."""
    option = Option(kind=kind, default=default, help=summary, group="run", panel=panel, **more)
    return field(default=default, metadata={"option": option})


def _word(default: str, summary: str, **more: Any) -> Any:
    return _declared(Kind.WORD, default, summary, **more)


def _limit(summary: str, *aliases: str, least: int = 1) -> Any:
    """Field of a whole number that an engine has unless the user sets it."""
    return _declared(Kind.WHOLE, None, summary, Panel.MEMORY, aliases=aliases, least=least)


def _of_llama_cpp(kind: Kind, default: Any, summary: str, *aliases: str, separator: str = ",", **more: Any) -> Any:
    """Field of an option that only llama.cpp has; `techniques/llama_cpp.py` says which others it stands for."""
    return _declared(kind, default, f"llama.cpp: {summary}", Panel.MEMORY, aliases=aliases, separator=separator, **more)


def _bits(summary: str) -> Any:
    """Field of a number of bits, for which a number format stands in the options of a run."""
    return _declared(Kind.TEXT, "", summary, Panel.PRECISION, separator=",")


#: Options that only llama.cpp has.
LLAMA_CPP_OPTIONS = (
    *("gpu_layers", "n_cpu_moe", "override_tensor", "cache_type_k", "cache_type_v"),
    *("logical_batch", "split_mode", "tensor_split", "main_gpu", "backend"),
)
#: Options that say how a model's config is read.
MODEL_OPTIONS = ("dtype", "ignore_fields", "model_set", "trace_model", "latent_attention")
#: Options that only an engine has.
ENGINE_OPTIONS = ("max_num_seqs", "max_model_len", "enforce_eager")


@frozen
class Options:
    """How a model is run.  techniques: option of the registry -> its text."""

    dtype: str = _word(
        "auto",
        "auto, bf16, fp16, fp32: dtype of weights and activations.",
        choices=("auto", "bf16", "fp16", "fp32"),
        separator=",",
        panel=Panel.PRECISION,
    )
    latent_attention: str = _word(
        "cheaper", "Form of MLA: cheaper (in FLOPs), naive, absorbed.", choices=("cheaper", "naive", "absorbed")
    )
    efficiency: str = _word(
        "calibrated",
        "calibrated: what kernels reach; ideal: the data sheet's roofline, a lower bound.",
        choices=("calibrated", "ideal"),
        closed=True,
    )
    engine: str = _word(
        "kernels",
        "Serving engine, with calibrated: kernels (none), vllm, vllm==0.19, mine.yaml ...",
        separator=",",
        panel=Panel.COMMON,
    )
    profile: str = _word("", "A profile of your own, from `llmviewer calibrate fit`.")
    gpu_memory_utilization: float | None = _declared(
        Kind.FRACTION, None, "Fraction of the memory that an engine may use; default: its own, or 0.9.", Panel.MEMORY
    )
    max_num_batched_tokens: int | None = _declared(
        Kind.WHOLE,
        None,
        "Most prompt tokens of one prefill pass; 0 = no limit; default: the engine's.",
        Panel.GENERATION,
        least=0,
        aliases=("-ub", "--ubatch-size"),
    )
    max_num_seqs: int | None = _limit(
        "Most sequences that the engine runs concurrently; default: the engine's.", "-np", "--parallel"
    )
    max_model_len: int | None = _limit(
        "Longest context that the engine serves, of llama.cpp all its slots together; 0, default: the model's.",
        "-c",
        "--ctx-size",
        least=0,
    )
    enforce_eager: bool = _declared(Kind.SWITCH, False, "The engine captures no CUDA graphs.", Panel.MEMORY)
    ignore_fields: tuple[str, ...] = _declared(Kind.WORDS, (), "Ignore this unknown field of the config.", Panel.OUTPUT)
    model_set: str = _declared(
        Kind.TEXT,
        "none",
        "Fields of config.json with other values: num_key_value_heads=4,num_hidden_layers=48.",
        Panel.OUTPUT,
        separator=";",
    )
    gpu_layers: str = _of_llama_cpp(
        Kind.TEXT, "", "layers on the GPU, the rest on the host: 20, auto, all (default: all; of Ollama auto).", "-ngl",
        "--n-gpu-layers",
    )  # fmt: skip
    n_cpu_moe: str = _of_llama_cpp(
        Kind.TEXT, "0", "first layers whose experts the host computes: 10, all (--cpu-moe).", "-ncmoe"
    )
    override_tensor: str = _of_llama_cpp(
        Kind.TEXT, "", "experts on the host by a pattern of their tensors: exps=CPU.", "-ot", separator=";"
    )
    cache_type_k: str = _of_llama_cpp(Kind.WORD, "", "format of the cached keys: f16, q8_0, q4_0 ...", "-ctk")
    cache_type_v: str = _of_llama_cpp(Kind.WORD, "", "format of the cached values: f16, q8_0, q4_0 ...", "-ctv")
    logical_batch: int | None = _of_llama_cpp(
        Kind.WHOLE, None, "logical batch, which a micro-batch does not exceed.", "-b"
    )
    split_mode: str = _of_llama_cpp(
        Kind.WORD, "", "how several GPUs share the model: layer (a pipeline), tensor, none.", "-sm"
    )
    tensor_split: str = _of_llama_cpp(Kind.TEXT, "", "shares of the GPUs, one for each: 1,1.", "-ts", separator=";")
    main_gpu: int = _of_llama_cpp(
        Kind.WHOLE, 0, "GPU that holds the model with --split-mode none, from 0.", "-mg", least=0
    )
    backend: str = _of_llama_cpp(
        Kind.WORD, "", "backend of its build: cuda, rocm (hip), vulkan, metal, sycl, cpu; default: the chip's."
    )
    trace_model: bool = _declared(
        Kind.SWITCH,
        False,
        "Read the model from a traced pass of transformers' own class (extra `trace`).",
        Panel.OUTPUT,
    )
    weight_bits: str = _bits("Bits of weights, in place of --quantization: 4, 8, 16.")
    activation_bits: str = _bits("Bits of activations, in place of --quantization: 8, 16.")
    kv_bits: str = _bits("Bits of the KV cache, in place of --kv-cache-dtype: 4, 8, 16.")
    techniques: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, declaration in RUN.items():
            object.__setattr__(self, name, declaration.checked(name, getattr(self, name)))
        for name in ("engine", "profile"):
            if self.efficiency == "ideal" and getattr(self, name) != RUN[name].default:
                raise UserError(f"{name} is {quoted(getattr(self, name))}; it needs --efficiency calibrated, not ideal")
        for name in ENGINE_OPTIONS:
            if self.engine == RUN["engine"].default and getattr(self, name) != RUN[name].default:
                raise UserError(f"{name} is {quoted(getattr(self, name))}; it needs an engine, such as vllm")


#: Options of numbers of bits.
BITS = ("weight_bits", "activation_bits", "kv_bits")


#: Options of number formats, of which an engine may have its own.
NUMBER_FORMATS = ("quantization", "kv_cache_dtype")


def with_bits(words: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run with number formats in place of numbers of bits: --weight-bits 4 is --quantization w4a16.

    Raises UserError for what is no number of bits, and for a format beside them.
    """
    given = {name: _bits_of(name, words[name]) for name in BITS if words.get(name) not in (None, "")}
    rest = {name: value for name, value in words.items() if name not in BITS}
    weights, inputs = (given.get(name, 16) for name in BITS[:2])
    formats = {
        "quantization": (BITS[:2], "none" if weights == inputs == 16 else f"w{weights}a{inputs}"),
        "kv_cache_dtype": (BITS[2:], "auto" if given.get("kv_bits") == 16 else f"kv{given.get('kv_bits')}"),
    }
    for option, (names, text) in formats.items():
        stated = [name for name in names if name in given]
        if not stated:
            continue
        if rest.get(option) not in (None, "", (), "none", "auto"):
            raise UserError(f"{' and '.join(stated)} and {option} {rest[option]} state the same; give one of them")
        rest[option] = text
    return rest


def _bits_of(name: str, value: object) -> int:
    """The number of bits.  Raises UserError."""
    text = str(value).strip().removesuffix(".0")
    if text not in map(str, range(1, 17)):
        raise UserError(f"{name} is {quoted(value)}; allowed: whole numbers from 1 to 16")
    return int(text)


def _size(default: int, summary: str, *aliases: str) -> Option:
    return Option(
        kind=Kind.WHOLE,
        default=default,
        help=summary,
        group="workload",
        array=True,
        aliases=aliases,
        panel=Panel.COMMON,
    )


#: Sizes of the workload.
WORKLOAD: dict[str, Option] = {
    "batch_size": _size(1, "Sequences in the batch.", "--batch"),
    "input_len": _size(1024, "Prompt tokens of each sequence: 1024, 4k (k = 1024).", "--random-input-len"),
    "output_len": _size(128, "Tokens each sequence generates.", "--random-output-len"),
}
#: Fields of `Options`.
RUN: dict[str, Option] = {
    entry.name: entry.metadata["option"] for entry in fields(Options) if "option" in entry.metadata
}
#: Every option of a run by name; techniques come last, in the order of application.
OPTIONS: dict[str, Option] = {
    **WORKLOAD,
    **RUN,
    **{
        name: Option(
            kind=Kind.WORD,
            default=option.default,
            help=option.help,
            group="technique",
            aliases=option.aliases,
            separator=option.separator,
            panel=panel_of(option.entry),
            repeated=option.repeated,
        )
        for name, option in TECHNIQUES.items()
    },
}
#: Those beside the sizes of the workload.
RUN_OPTIONS: dict[str, Option] = {name: one for name, one in OPTIONS.items() if name not in WORKLOAD}

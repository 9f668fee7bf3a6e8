"""Options as llama.cpp has them: each stands for options of a run, which `translated` puts in its place.

Source of the options: https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from llmviewer.core.arguments import parse_number
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.workload import decode
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.model import Model
from llmviewer.ops.gemm import has_routed_experts
from llmviewer.techniques.layer_settings import OR, ranges_of
from llmviewer.techniques.options import LLAMA_CPP_OPTIONS, RUN, Options
from llmviewer.techniques.quantization.grammar import GGML_CACHE_BITS
from llmviewer.timing import engine, engine_backends

#: The preset, and the one without an engine, which takes these options too.
ENGINES = ("llama.cpp", "llama.cpp-2024", RUN["engine"].default)
#: Preset of `--offload` that has its placement.
PRESET = "llama.cpp"
#: Values of -fa -> kernel.
ATTENTION = {"on": "flash", "auto": "flash", "1": "flash", "off": "eager", "0": "eager"}
#: Formats of -ctk and -ctv.
CACHE_TYPES = ("f32", "f16", "bf16", *GGML_CACHE_BITS)
#: Values of --split-mode -> the option that divides the model so; empty: one GPU.
SPLIT_MODES = {"layer": "pipeline_parallel_size", "tensor": "tensor_parallel_size", "none": ""}
#: Names of the matrices of a layer's routed experts in a GGUF file.
EXPERTS = tuple(f"blk.{{}}.ffn_{part}_exps.weight" for part in ("gate", "up", "down"))
#: Names that a pattern for experts must not match.
OTHERS = (
    *("token_embd.weight", "output.weight"),
    *(f"blk.{{}}.{part}.weight" for part in ("attn_q", "attn_output", "attn_norm", "ffn_norm", "ffn_gate_inp")),
    "blk.{}.ffn_down_shexp.weight",
)
#: Options that stay beside what they stand for, so that notes can say where they change nothing.
KEPT = ("logical_batch", "split_mode", "tensor_split", "main_gpu", "backend")
#: What no share of a GPU reaches: more is a typing error.
LARGEST_SHARE = 1e9
#: Longest pattern, most repetitions in it, and one of a group: patterns beyond these can take time without end.
MAX_PATTERN_CHARACTERS, MAX_REPETITIONS = 400, 4
REPETITION = re.compile(r"(?<!\()[*+?{]")
REPEATED_GROUP = re.compile(r"\)[*+{?]|[*+}]\s*[*+{]")


def translated(model: Model, options: Options, devices: int = 0) -> Options:
    """The options with those of llama.cpp, and a context of 0, replaced by what they stand for.  Raises UserError.

    The same object where none is given.  devices: those of a split, whose shares no other option states; 0: no split.
    """
    if options.max_model_len == 0:
        known = int(model.max_context) if model.max_context < ABSENT_CONTEXT else None
        options = replace(options, max_model_len=known)
    given = {name: value for name in LLAMA_CPP_OPTIONS if (value := getattr(options, name)) != RUN[name].default}
    attention = options.techniques.get("attention", "")
    if not given and attention not in ATTENTION:
        return options
    name = engine.load(options.engine).name if given else ""
    foreign = [one for one in given if one != "backend"]  # which programs that run its code have too
    if foreign and name not in ENGINES:
        first = foreign[0]
        raise UserError(
            f"--{first.replace('_', '-')} is an option of llama.cpp; --engine {options.engine} has none like it"
        )
    if "logical_batch" in given and name == engine.KERNELS_ONLY.name:
        raise UserError("--logical-batch is llama.cpp's logical batch; state its engine, or --batch-size for sequences")
    techniques = dict(options.techniques)
    if attention in ATTENTION:
        techniques["attention"] = ATTENTION[attention]
    _put(techniques, "kv_cache_dtype", _cache(options, techniques))
    if not devices:
        _put(techniques, *_devices(options))
    if placed := placement(options, model):
        if any(_divided(techniques, name) for name in SPLIT_MODES.values()):
            raise UserError("--gpu-layers and --n-cpu-moe beside a tensor group are not modelled; use one GPU, or -pp")
        techniques["offload"] = _beside(placed, techniques.get("offload", ""))
    cleared = {name: RUN[name].default for name in given if name not in KEPT}
    cleared["backend"] = engine_backends.spelled(options.backend)
    return replace(options, **cleared, **_micro_batch(options), techniques=techniques)


def with_program_defaults(model: Model, options: Options, memory_bytes: float, *, has_host: bool) -> Options:
    """The options with the defaults of a program around llama.cpp where none is stated: context, layers on the host.

    memory_bytes: of one GPU [byte].  has_host: whether a host has memory of its own.
    """
    program = engine.load(options.engine).program
    if program is None or options.efficiency == "ideal":
        return options
    sizes = (options.techniques.get(name, "1").partition(",")[0] for name in filter(None, SPLIT_MODES.values()))
    devices = math.prod(one if isinstance(one, int) else 0 for one in map(parse_number, sizes))  # 0: refused later
    context = program.default_context(memory_bytes * devices)
    if context is not None and options.max_model_len is None:
        options = replace(options, max_model_len=int(min(context, model.max_context)))
    placed = {
        name for name in ("gpu_layers", "n_cpu_moe", "override_tensor") if getattr(options, name) != RUN[name].default
    }
    alone = devices == 1 and options.techniques.get("batching", "static") == "static"
    if program.offloads and has_host and alone and not placed and "offload" not in options.techniques:
        options = replace(options, gpu_layers="auto")
    return options


def _put(techniques: dict[str, str], name: str, text: str) -> None:
    """Set a technique that is not given otherwise; an empty text sets none.  Raises UserError."""
    if not text:
        return
    if techniques.get(name, text) != text:
        raise UserError(
            f"--{name.replace('_', '-')} {techniques[name]} and options of llama.cpp both set it; remove one"
        )
    techniques[name] = text


def _micro_batch(options: Options) -> dict[str, Any]:
    """The micro-batch, which is at most the logical batch."""
    own = options.max_num_batched_tokens or engine.load(options.engine).max_num_batched_tokens
    if options.logical_batch is None or options.logical_batch >= own:
        return {}
    return {"max_num_batched_tokens": options.logical_batch}


def _cache(options: Options, techniques: Mapping[str, str]) -> str:
    """The format of the cache; empty where neither keys nor values have one.  Values below 16 bit need -fa on."""
    types = {name: getattr(options, name) or "f16" for name in ("cache_type_k", "cache_type_v")}
    for name, one in types.items():
        if one not in CACHE_TYPES:
            raise unknown(f"value of --{name.replace('_', '-')}", one, CACHE_TYPES)
    keys, values = types.values()
    if options.cache_type_k == options.cache_type_v == "":
        return ""
    attention = techniques.get("attention", engine.load(options.engine).attention)
    if values in GGML_CACHE_BITS and attention == "eager":
        raise UserError(
            f"--cache-type-v {values} needs FlashAttention, without which llama.cpp does not start; add -fa on"
        )
    return keys if keys == values else f"k{keys}v{values}"


def shares_of(options: Options, *, every: bool = False) -> tuple[float, ...]:
    """The shares of --tensor-split above 0, or every one; empty where none is stated.  Raises UserError.

    Also for a --split-mode that is unknown or not modelled.
    """
    mode, split = options.split_mode or "layer", options.tensor_split
    if mode == "row":
        raise UserError("--split-mode row divides matrices alone, which is not modelled; allowed: layer, tensor, none")
    if mode not in SPLIT_MODES:
        raise unknown("value of --split-mode", mode, SPLIT_MODES)
    shares = [parse_number(one) for one in re.split("[,/]", split)] if split else []
    numbers = [float(one) for one in shares if not isinstance(one, str) and 0.0 <= one < LARGEST_SHARE]
    if len(numbers) < len(shares) or (split and not any(numbers)):
        raise UserError(f"--tensor-split is {quoted(split)}; allowed: shares of the GPUs, one for each: 1,1")
    return tuple(one for one in numbers if one or every)


def _devices(options: Options) -> tuple[str, str]:
    """The option that divides the model evenly, and the number of GPUs; empty texts for one GPU."""
    mode, used = options.split_mode or "layer", shares_of(options)
    if len(set(used)) > 1:
        raise UserError(f"--tensor-split is {quoted(options.tensor_split)}; --split-mode {mode} takes equal shares")
    if options.split_mode and mode != "none" and not used and not _divided(options.techniques, SPLIT_MODES[mode]):
        option = SPLIT_MODES[mode].replace("_", "-")
        raise UserError(f"--split-mode {mode} divides nothing on one GPU; add -ts 1,1 or --{option} 2")
    if mode == "none" and (
        len(used) > 1 or any(_divided(options.techniques, name) for name in SPLIT_MODES.values() if name)
    ):
        raise UserError("--split-mode none takes one GPU of several; remove it, or what states several")
    several = len(used) > 1
    return (SPLIT_MODES[mode], str(len(used))) if several else ("", "")


def _divided(techniques: Mapping[str, str], name: str) -> bool:
    return techniques.get(name, "1") != "1"


def placement(options: Options, model: Model) -> str:
    """Parameters of `--offload llama.cpp`; empty where everything is on the GPU."""
    layers = sum(layer.repeats for layer in model.all_layers)
    parts = []
    count = _count("gpu_layers", options.gpu_layers or "all", ("all", "auto", "-1"), layers + 1)
    if isinstance(count, int):  # the head is the last layer, the first to be on the GPU
        parts += [f"cpu_layers={layers + 1 - count if count else 'all'}"] if count < layers + 1 else []
    elif count == "auto":
        parts.append("cpu_layers=auto")
    experts = _count("n_cpu_moe", options.n_cpu_moe, ("all",), layers)
    chosen = range(layers if experts == "all" else int(experts))
    moved = {*chosen, *_overridden(options.override_tensor, layers)}
    if moved and not has_routed_experts(model.graph(decode(1.0, 1.0))):
        name = "override-tensor" if options.override_tensor else "n-cpu-moe"
        raise UserError(f"--{name}: {model.name} has no routed experts")
    if moved:
        parts.append(f"cpu_experts={OR.join(ranges_of(moved))}")
    return ",".join((PRESET, *parts)) if parts else ""


def _count(name: str, text: str, words: tuple[str, ...], most: int) -> int | str:
    """The number of layers in a text, at most `most`, or one of some words."""
    number = parse_number(text)
    if text in words:
        return text
    if isinstance(number, str) or number < 0 or (isinstance(number, float) and not number.is_integer()):
        allowed = ", ".join(("a whole number", *(word for word in words if word != "-1")))
        raise UserError(f"--{name.replace('_', '-')} is {quoted(text)}; allowed: {allowed}")
    return min(int(number), most)


def _overridden(text: str, layers: int) -> set[int]:
    """The layers whose experts patterns of -ot put on the host: `exps=CPU`, `blk\\.(1|2)\\.ffn_.*_exps\\.=CPU`.

    Patterns are those of GGUF tensors.  Raises UserError for one that matches other tensors, or a part of the experts.
    """
    found: set[int] = set()
    for part in (one for one in text.split(",") if one):
        pattern, equals, place = part.rpartition("=")
        matches = _matcher(pattern, part)
        if not equals or place != "CPU":
            raise UserError(
                f"--override-tensor is {quoted(part)}; allowed: PATTERN=CPU of routed experts, as in exps=CPU"
            )
        if any(matches(name.format(layer)) for name in OTHERS for layer in range(layers)):
            raise UserError(
                f"--override-tensor {quoted(part)} matches more than routed experts, which alone are moved here"
            )
        for layer in range(layers):
            count = sum(matches(name.format(layer)) for name in EXPERTS)
            if 0 < count < len(EXPERTS):
                raise UserError(
                    f"--override-tensor {quoted(part)} matches a part of a layer's experts; allowed: all or none"
                )
            found |= {layer} if count else set()
    if text and not found:
        raise UserError(f"--override-tensor {quoted(text)} matches no expert, such as {EXPERTS[0].format(0)}")
    return found


def _matcher(pattern: str, part: str) -> Callable[[str], bool]:
    """Whether a name matches a pattern anywhere, as std::regex_search does.  Raises UserError."""
    allowed = "a pattern of tensors with few repetitions, none of groups, as in exps=CPU"
    refused = f"--override-tensor is {quoted(part)}; allowed: {allowed}"
    repeats = len(REPETITION.findall(pattern)) > MAX_REPETITIONS or REPEATED_GROUP.search(pattern)
    if not pattern or len(pattern) > MAX_PATTERN_CHARACTERS or repeats:
        raise UserError(refused)
    try:
        compiled = re.compile(pattern)
    except re.error:
        raise UserError(refused) from None
    return lambda name: compiled.search(name) is not None


def _beside(placed: str, other: str) -> str:
    """The placement with parameters of the host that --offload states: host=NAME."""
    from llmviewer.techniques.offload.offload import LLAMA_CPP_HOST

    if not other or other == "none":
        return placed
    names = [one.partition("=")[0].strip() for one in other.split(",")]
    if strange := next((name for name in names if name not in LLAMA_CPP_HOST), ""):
        takes = ", ".join(LLAMA_CPP_HOST)
        raise UserError(
            f"--offload {strange} and options of llama.cpp both place tensors; beside them it takes {takes}"
        )
    return f"{placed},{other}"

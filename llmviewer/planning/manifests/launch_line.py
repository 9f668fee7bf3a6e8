"""A server's launch line -> the model and options that `analyze`, `simulate` and `size` take.

Flags with the spelling of an option are that option; others stand in the tables here, by engine.  What changes neither
speed nor memory is dropped; every other flag is named in a note.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from llmviewer.core import arguments, data
from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.core.frozen import frozen
from llmviewer.planning.manifests import sglang, trtllm, vllm
from llmviewer.planning.manifests.flags import DTYPES, Tables
from llmviewer.planning.manifests.options import FIELDS
from llmviewer.techniques.options import OPTIONS
from llmviewer.techniques.quantization.presets import OF_GGUF

#: Options of a run by name: their text, or True of a switch.
Options = dict[str, str | bool]


@frozen
class LaunchLine:
    """A launch line as it is read.

    options: of a run, by name.  unread: flags with their values that are not read.  flags: option -> its flag on the
    line, where that is spelled otherwise.
    """

    model: str
    options: Mapping[str, str | bool]
    unread: tuple[str, ...] = ()
    flags: Mapping[str, str] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line on the flags that are not read."""
        return (f"of the launch line, not read: {', '.join(map(printable, self.unread))}",) if self.unread else ()


@frozen
class Dialect:
    """One engine's command.  starts: words before the model or its flags.  model: flags of the model.

    names: flag, dashes for underscores -> option.  inert: flags that change neither speed nor memory.
    switches: flags without a value -> the option's text.  settled: reads what several flags say
    together, and takes the switches that it has read.
    """

    engine: str
    starts: tuple[tuple[str, ...], ...]
    model: tuple[str, ...]
    names: Mapping[str, str]
    inert: frozenset[str]
    switches: Mapping[str, tuple[str, str | bool]] = field(default_factory=dict)
    settled: Callable[[Options, set[str]], None] = lambda options, switched: None


#: Flags of HTTP servers and logs.
SERVER = """host port api-key served-model-name chat-template tokenizer tokenizer-mode tokenizer-path trust-remote-code
download-dir load-format revision code-revision tokenizer-revision seed log-level log-requests disable-log-requests
no-enable-log-requests disable-log-stats uvicorn-log-level root-path ssl-keyfile ssl-certfile allowed-origins
enable-auto-tool-choice tool-call-parser reasoning-parser enable-reasoning generation-config response-role hf-token
enable-metrics timeout alias metrics watch-dist-timeout model-loader-extra-config config-format backend
disable-uvicorn-access-log enable-server-load-tracking max-log-len jinja no-webui mlock no-mmap verbose slots
chat-template-file predict temp top-p top-k min-p repeat-penalty prompt-cache enable-prompt-tokens-details"""
SPELLED = {
    spelling.lstrip("-"): name for name, one in OPTIONS.items() for spelling in one.spellings(name) if spelling != "-q"
}
#: Names of number formats of engines -> those of options; empty: as the checkpoint stores them.
FORMATS = {
    **{long: short for short, long in DTYPES.items()},
    **{"half": "fp16", "float": "fp32", "fp8_e4m3": "fp8"},
    **dict.fromkeys(("compressed-tensors", "modelopt", "modelopt_fp4", "quark", "auto-round", "mxfp4"), ""),
}


def _names(tables: Tables, **more: str) -> dict[str, str]:
    """The flags of a table of launches -> options, and others."""
    by_field = {field: name for name, (field, _) in FIELDS.items()}
    found = {flag.lstrip("-").replace("_", "-"): by_field.get(name, name) for name, flag in tables.scalars.items()}
    return found | {flag.replace("_", "-"): name for flag, name in more.items()}


def _size(options: Options, name: str) -> int:
    """The size of a group, 1 where none is stated.  Raises UserError."""
    return arguments.whole_number(name, arguments.parse_size(str(options.get(name, 1))))


def _experts(options: Options, switched: set[str]) -> None:
    """Expert parallelism of vLLM, which spans the tensor and data-parallel group."""
    if "enable-expert-parallel" in switched:
        switched.remove("enable-expert-parallel")
        size = _size(options, "tensor_parallel_size") * _size(options, "data_parallel_size")
        options["expert_parallel_size"] = str(size)


def _attention_ranks(options: Options, switched: set[str]) -> None:
    """SGLang's data-parallel attention, whose --tp-size counts the devices of all ranks."""
    if "enable-dp-attention" in switched:
        switched.remove("enable-dp-attention")
        devices, ranks = _size(options, "tensor_parallel_size"), _size(options, "data_parallel_size")
        if devices % ranks:
            raise UserError(
                f"--enable-dp-attention divides --tp-size by --dp-size; {devices} is no multiple of {ranks}"
            )
        if ranks > 1:
            options["tensor_parallel_size"] = str(devices // ranks)
            options.setdefault("expert_parallel_size", str(devices))
    if options.get("max_num_batched_tokens") == "-1":
        options["max_num_batched_tokens"] = "0"  # prompts are not cut


def _gguf(options: Options, switched: set[str]) -> None:
    """llama.cpp's experts on the host."""
    if {"cpu-moe", "cmoe"} & switched:
        switched -= {"cpu-moe", "cmoe"}
        options["n_cpu_moe"] = "all"
    if options.get("gpu_layers") in ("99", "999", "-1"):
        options["gpu_layers"] = "all"


PYTHON = ("python", "python3")
INERT = frozenset(SERVER.split())
DIALECTS = (
    Dialect(
        engine="vllm",
        starts=(
            ("vllm", "serve"),
            *((python, "-m", "vllm.entrypoints.openai.api_server") for python in PYTHON),
            ("vllm/vllm-openai",),
        ),
        model=("model",),
        names=_names(vllm.TABLES, q="quantization"),
        inert=INERT
        | {"swap-space", "enable-chunked-prefill", "disable-custom-all-reduce", "distributed-executor-backend"},
        switches={"enforce-eager": ("enforce_eager", True)},
        settled=_experts,
    ),
    Dialect(
        engine="sglang",
        starts=(*((python, "-m", "sglang.launch_server") for python in PYTHON), ("sglang", "serve")),
        model=("model-path", "model"),
        names=_names(
            sglang.TABLES,
            **dict.fromkeys(("tp", "tensor-parallel-size"), "tensor_parallel_size"),
            **dict.fromkeys(("dp", "data-parallel-size"), "data_parallel_size"),
            **dict.fromkeys(("ep", "expert-parallel-size"), "expert_parallel_size"),
            **dict.fromkeys(("pp", "pipeline-parallel-size"), "pipeline_parallel_size"),
        ),
        inert=INERT | {"dist-init-addr", "nnodes", "node-rank", "watchdog-timeout"},
        switches={"disable-cuda-graph": ("enforce_eager", True), "enable-mixed-chunk": ("batching", "chunked")},
        settled=_attention_ranks,
    ),
    Dialect(
        engine="trtllm",
        starts=(("trtllm-serve", "serve"), ("trtllm-serve",)),
        model=("model",),
        names=_names(trtllm.TABLES),
        inert=INERT | {"enable-chunked-prefill"},
    ),
    Dialect(
        engine="llama.cpp",
        starts=(("llama-server",), ("llama-cli",), ("llama", "serve"), ("ghcr.io/ggml-org/llama.cpp",)),
        model=("m", "model", "hf", "hf-repo"),
        names={"n-gpu-layers": "gpu_layers", "n-cpu-moe": "n_cpu_moe"},
        inert=INERT | {"cont-batching", "cb"},
        settled=_gguf,
    ),
)


def launch_line(text: str) -> LaunchLine:
    """The LaunchLine of a line, or of the container in a compose file or a Kubernetes manifest.  Raises UserError.

    text: a shell command (environment variables and `docker run` before it are passed over), or a YAML file's path.
    """
    own = data.user_path(text) if text.endswith((".yaml", ".yml")) else None
    words = _of_manifest(own) if own else _lexed(text)
    for dialect in DIALECTS:
        for start in dialect.starts:
            at = _found(words, start)
            if at is not None:
                return _launch(dialect, words[at + len(start) :])
    known = ", ".join(dict.fromkeys(" ".join(one.starts[0]) for one in DIALECTS))
    raise UserError(f"{quoted(text)} launches no server that is known; known: {known}")


def _lexed(text: str) -> list[str]:
    return arguments.shell_words(text.replace("\\\n", " "), comments=True)


def _found(words: list[str], start: tuple[str, ...]) -> int | None:
    """The place at which a command begins; its first word is a program in any folder, or an image."""
    for at in range(len(words) - len(start) + 1):
        first = words[at].partition(":")[0] if "/" in start[0] else words[at].rpartition("/")[2]
        if first == start[0] and tuple(words[at + 1 : at + len(start)]) == start[1:]:
            return at
    return None


def _of_manifest(path: Path) -> list[str]:
    """The words of the first container in a YAML file that has a command or arguments."""
    import yaml

    try:
        documents = list(yaml.safe_load_all(data.read_text(path, data.MAX_YAML_BYTES)))
    except yaml.YAMLError as error:
        raise UserError(f"'{printable(path)}' is not valid YAML") from error
    for document in documents:
        for container in _mappings(document):
            words = [str(container.get("image", ""))]
            for name in ("entrypoint", "command", "args"):
                value = container.get(name, [])
                words += _lexed(value) if isinstance(value, str) else [str(one) for one in value or ()]
            joined = [part for word in words for part in (_lexed(word) if " " in word else [word])]
            if any(_found(joined, start) is not None for one in DIALECTS for start in one.starts):
                return joined
    raise UserError(f"'{printable(path)}' has no container that launches a known server")


def _mappings(node: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        yield node
    inner = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
    for one in inner:
        yield from _mappings(one)


def _launch(dialect: Dialect, words: list[str]) -> LaunchLine:
    model, switched, unread, flags = "", set[str](), list[str](), dict[str, str]()
    options: Options = {"engine": dialect.engine}
    for flag, value in _flags(words):
        name = flag.lstrip("-").replace("_", "-")
        option = dialect.names.get(name) or SPELLED.get(name)
        if not flag:
            model = model or value
        elif name in dialect.model:
            model = value
        elif name in dialect.switches:
            option, text = dialect.switches[name]
            options[option] = text
        elif option and option in OPTIONS and value:
            options |= {option: told} if (told := _in_our_words(option, value)) else {}
            flags[option] = flag
        elif not value:
            switched.add(name)
        elif name not in dialect.inert:
            unread.append(f"{flag} {value}")
    dialect.settled(options, switched)
    unread += [f"--{name}" for name in sorted(switched - dialect.inert)]
    if not model:
        raise UserError(f"the launch line of {dialect.engine} names no model")
    return LaunchLine(**_named(model, options), unread=tuple(unread), flags=flags)


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values; without a flag: a word of its own.  A flag before another one is a switch."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("&&", "||", ";", "|", "&", ">", "2>&1"):
            return
        if not re.match(r"--?[A-Za-z]", word):
            yield "", word
        elif "=" in word:
            flag, _, value = word.partition("=")
            yield flag, value
        else:
            has_value = bool(rest) and not re.match(r"--?[A-Za-z]|&&$|[|&;]$", rest[0])
            yield word, rest.pop(0) if has_value else ""


def _in_our_words(name: str, value: str) -> str:
    """The value of an option: bfloat16 is bf16, vLLM's 32k is 32,000 and its 32K 32,768; empty: as without it."""
    if name in ("dtype", "quantization", "kv_cache_dtype"):
        return FORMATS.get(value, value)
    size = re.fullmatch(r"(\d+)([kK])", value)
    return str(int(size[1]) * {"k": 1000, "K": 1024}[size[2]]) if name == "max_model_len" and size else value


def _named(model: str, options: Options) -> dict[str, Any]:
    """The model and its options; of a GGUF file that is not here, the model and format of its name."""
    if not model.endswith(".gguf") or data.user_path(model):
        return {"model": model, "options": options}
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", Path(model).stem)
    found = next((one for one in sorted(OF_GGUF, key=len, reverse=True) if stem.lower().endswith(one)), "")
    if not found:
        raise UserError(f"'{printable(model)}' is not here, and its name states no format; give a path, or a Hub id")
    return {"model": stem[: -len(found)].rstrip("-._"), "options": {**options, "quantization": found}}

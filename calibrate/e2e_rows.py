"""Parse rows of published figures into cases: names and numbers that `llmviewer.analyze` takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from llmviewer import models
from llmviewer.calibrate.cells import is_missing, size_of, text_of
from llmviewer.calibrate.layouts import Layout, layout_of
from llmviewer.core import data
from llmviewer.core.dtypes import DTYPES, Dtype
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Role
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode
from llmviewer.hardware import specs
from llmviewer.models import aliases
from llmviewer.models.model import Model
from llmviewer.serving.holding import Hold, Until
from llmviewer.timing import engine as engines
from llmviewer.timing import engine_backends
from llmviewer.timing.engine_memory import PINNED, split_version

#: Required columns, and allowed values of `metric`.
REQUEST_COLUMNS = ("device", "model", "engine", "input_len", "output_len", "metric", "value")
REQUEST_METRICS = ("ttft_ms", "tpot_ms", "decode_tok_s", "throughput_tok_s", "latency_ms")
#: Prefix of an engine's name in tables -> preset; the first match counts.
ENGINE_PRESETS: dict[str, str] = {
    "gpt-fast": "gpt-fast",
    "llama.cpp": "llama.cpp",
    "mlx": "mlx-lm",
    "deepspeed": "deepspeed-mii",
    "sglang": "sglang",
    "vllm ": "vllm",
    "trtllm": "trtllm",
    "tensorrt-llm 1": "trtllm",
    "tensorrt-llm": "trtllm-cpp",
    "torch.compile": "torch-compile",
    "torch": "torch-eager",
}
#: Version in an engine's name in tables.
VERSION = re.compile(r"\s(\d+(?:\.\d+)+)")
#: Weight dtype of a table -> --quantization; for 16 bits the checkpoint's own format.
QUANTIZATIONS = {
    "fp16": "none",
    "bf16": "none",
    "float16": "none",
    "bfloat16": "none",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "fp8-block": "fp8-block",
    "int8": "int8",
    "int4": "w4a16",
    "int4_wo": "w4a16",
    "int8_wo": "w8a16",
    "fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp4_moe": "mxfp4_moe",
    "q4_k_m": "q4_k_m",
    "q8_0": "q8_0",
}
#: Quantizations of 4 bits, which also narrow checkpoints of 8 bits (DeepSeek-R1-NVFP4); none narrows one of 4.
FOUR_BITS = ("nvfp4", "mxfp4", "w4a16", "q4_k_m")
#: Builds of llama.cpp that multiply prompts in 16 bit, before https://github.com/ggml-org/llama.cpp/pull/7860.
BUILDS_IN_16_BIT = re.compile(r"^llama\.cpp \((\w+ 20(1\d|2[0-3])|(January|February|March|April|May) 2024)\b")
#: Engine, part of the model's name, beginning of the chip's, and format of the weights, of runs in InferenceX with a
#: cache in FP8, which rows do not say: gptoss_fp4_b200_trt.sh, dsr1_fp8_h200_trt.sh, dsr1_fp8_b200.sh,
#: 70b_fp8_h200_slurm.sh, minimaxm2.5_fp8_h200.sh, kimik2.5_fp4_b200.sh and gptoss_fp4_b200.sh in
#: https://github.com/SemiAnalysisAI/InferenceX/tree/main/benchmarks.
FP8_CACHES = (
    ("trtllm", "", "", ""),
    ("sglang", "DeepSeek", "b200", ""),
    ("vllm", "Llama-3.1-70B", "", ""),
    ("vllm", "MiniMax-M2.5", "", ""),
    ("vllm", "Kimi-K2.5", "b200", "nvfp4"),
    ("vllm", "gpt-oss", "b200", ""),
)
#: Word in the note of runs of InferenceX, whose users begin together and send ten requests each, of lengths between 0.8
#: and 1 of the nominal ones: benchmark_serving.py and the scripts beside it in
#: https://github.com/SemiAnalysisAI/InferenceX/tree/main/utils/bench_serving.
INFERENCEX, REQUESTS_PER_USER, MEAN_OF_NOMINAL = "InferenceX", 10.0, 0.9
#: Engine, part of the model's name, beginning of the chip's, and how prompts are held back by its scripts there:
#: attention_dp_config of dsr1_fp4_b200_trt.sh and gptoss_fp4_b200_trt.sh (timeout_iters is 50 where it is not stated:
#: https://nvidia.github.io/TensorRT-LLM/llm-api/reference/AttentionDpConfig.html); batch_wait_timeout_iters of
#: 70b_fp8_h200_trt_slurm.sh, for prompts and answers of 1,024 tokens on fewer than eight devices;
#: SCHEDULER_RECV_INTERVAL of dsr1_fp4_b200.sh, dsr1_fp8_b200.sh, qwen3.5_fp8_b200.sh; 30 from
#: BUSY_USERS users on with a tensor group of eight.
HOLDS = (
    ("trtllm", "gpt-oss", "", Hold(steps=50, until=Until.RANKS)),
    ("trtllm", "", "", Hold(steps=60, until=Until.RANKS)),
    ("trtllm", "70B", "", Hold(steps=20, until=Until.FIRST)),
    ("sglang", "DeepSeek", "b200", Hold(steps=10, until=Until.POLL)),
    ("sglang", "Qwen3.5", "b200", Hold(steps=10, until=Until.POLL)),
)
BUSY_USERS, BUSY_STEPS = 16.0, 30
#: Engines whose benchmark feeds the same synthetic tokens to all sequences of a static batch, which then select the
#: same experts (Mixtral at batch 16 takes a third longer than at batch 1; with distinct prompts, three times as long).
IDENTICAL_PROMPT_ENGINES = ("trtllm-cpp", "deepspeed-mii")
#: Suffix of a checkpoint's name -> format of its weights.  FP8 checkpoints of model makers have a scale per block;
#: those of ONE_SCALE_OWNERS, converted afterwards, one per tensor or row.
CHECKPOINT_SUFFIXES = {"-fp8": "fp8-block", "-fp8-dynamic": "fp8", "-nvfp4": "nvfp4", "-fp4": "nvfp4", "-bf16": "none"}
ONE_SCALE_OWNERS = ("nvidia", "neuralmagic", "redhatai", "amd", "meta-llama")


@frozen
class RequestCase:
    """A run and the metric published for it.

    batch: concurrent sequences, or users under continuous batching; 0: as many as the KV cache has room for.
    version: of the engine, if its preset tells versions apart; empty: its newest.
    options: fields of Options and techniques.  token_budget: most tokens of a forward pass; 0: that of the preset.
    per_user: requests of each of the users, who begin together; infinite: for ever, so that this is not seen.
    hold: how prompts are held back.  backend: of llama.cpp's build; empty: the chip's default.
    Cases with the same `run` are evaluated together.
    """

    hardware: str
    model: str
    engine: str
    batching: str
    options: tuple[tuple[str, str], ...]
    batch: float
    input_len: float
    output_len: float
    metric: str
    version: str = ""
    token_budget: int = 0
    per_user: float = float("inf")
    hold: Hold | None = None
    backend: str = ""

    @property
    def preset(self) -> str:
        """The engine and its version, as --engine takes them."""
        return f"{self.engine}{PINNED}{self.version}" if self.version else self.engine

    @property
    def run(self) -> tuple[Any, ...]:
        """Everything except sizes and metric."""
        engine = (self.preset, self.backend, self.batching, self.options, self.token_budget)
        return (self.hardware, self.model, *engine, self.hold)

    @property
    def layout(self) -> Layout:
        """How the devices are divided."""
        given = dict(self.options)
        names = ("tensor", "pipeline", "data", "expert")
        return Layout(**{name: int(given.get(f"{name}_parallel_size", "1")) for name in names})


def case_of(row: Mapping[str, Any], device: str = "") -> RequestCase:
    """Case of a row, on its own device or on `device`.  Raises UserError if it cannot be predicted."""
    note = str(row.get("note") or "")
    engine = text_of(row, "preset") or preset_of(str(row["engine"]), note)
    if row["metric"] not in REQUEST_METRICS:
        raise unknown("metric", row["metric"], REQUEST_METRICS)
    hardware = device or str(row["device"])
    chip = specs.load(hardware)
    name, stored = checkpoint(str(row["model"]))
    weights = text_of(row, "quantization") or quantization_of(row.get("weight_dtype"), stored, name)
    weights = "w8a16" if (weights, engine) == ("int8", "gpt-fast") else weights  # its int8 is weight-only
    if weights in ("q4_k_m", "q8_0") and row["output_len"] == 0 and BUILDS_IN_16_BIT.match(str(row["engine"])):
        weights += "-a16"
    batching = _batching(row, note)
    layout = layout_of(row, note, has_experts=has_experts(name))
    options = {
        "quantization": weights,
        "kv_cache_dtype": cache_dtype_of(row, weights, engine, note),
        **layout.options(),
    }
    if text_of(row, "attention"):
        options["attention"] = text_of(row, "attention")
    if engine in IDENTICAL_PROMPT_ENGINES and batching == "static" and has_experts(name):
        options["expert_skew"] = "10"
    random = INFERENCEX in note and batching == "continuous"
    share = MEAN_OF_NOMINAL if random else 1.0
    prompt, output = (float(round(share * size_of(row, key))) for key in ("input_len", "output_len"))
    if prompt + output < 1:
        raise UserError(f"input_len {prompt:g} and output_len {output:g} are not a valid request")
    return RequestCase(
        hardware=hardware if data.user_path(hardware) else chip.name,
        model=name,
        engine=engine,
        batching=batching,
        options=tuple(options.items()),
        batch=size_of(row, "batch", 0.0),
        input_len=prompt,
        output_len=output,
        metric=str(row["metric"]),
        version=version_of(str(row["engine"]), engine) or BENCHED.get((engine, chip.generation), ""),
        token_budget=int(size_of(row, "max_num_batched_tokens", 0.0)),
        backend=engine_backends.spelled(text_of(row, "backend")),
        hold=_hold_of(row, engine, layout) if random else None,
        per_user=REQUESTS_PER_USER if random else 1.0 if is_burst(row, note) else float("inf"),
    )


#: Preset and generation of chips -> version of rows that state none, as their benchmark says
#: (https://github.com/argonne-lcf/LLM-Inference-Bench/blob/main/vLLM/MI300X/README.md).
BENCHED = {("vllm-v0", "cdna3"): "0.6.1"}


def preset_of(text: str, note: str = "") -> str:
    """Preset of an engine: `trtllm 1.2.0rc6` -> `trtllm`; vLLM without version on static batches -> `vllm-v0`."""
    word = text.lower().strip()
    if word.startswith("vllm") and (word == "vllm" and "serving" not in note):
        return "vllm-v0"
    if BUILDS_IN_16_BIT.match(text):
        return "llama.cpp-2024"
    for start, preset in ENGINE_PRESETS.items():
        if f"{word} ".startswith(start):
            found = VERSION.search(word)
            return split_version(f"{preset}{PINNED}{found[1]}")[0] if found else preset
    raise unknown("engine", text, sorted(set(ENGINE_PRESETS.values())))


def version_of(text: str, preset: str) -> str:
    """Version in an engine's name, if its preset tells versions apart; empty for one newer than those it knows."""
    found = VERSION.search(text)
    known = _load_engine(preset) if found and PINNED not in preset else None
    if found is None or known is None or not known.versions or known.memory_versions is None:
        return ""
    return "" if known.memory_versions.is_newer(found[1], preset) else found[1]


@lru_cache(maxsize=64)
def _load_engine(name: str) -> engines.Engine:
    """Load an engine preset, cached."""
    return engines.load(name)


def checkpoint(name: str) -> tuple[str, str]:
    """Known model name of a checkpoint, or the user's path, and the weight format stated in its name.

    Requantized checkpoints keep the model's name under another owner (`nvidia/Llama-3.3-70B-Instruct-FP8`), and so do
    folders on the machine of a benchmark (`/models/Llama-3.3-70B-Instruct`).
    """
    if data.user_path(name):
        return name, "none"
    last = name.rpartition("/")[2]
    known = last if not _is_known(name) and _is_known(last) else name
    loaded = load(known)
    found = aliases.resolve(known) if loaded.named_format else None
    stored = next((word for suffix, word in CHECKPOINT_SUFFIXES.items() if known.lower().endswith(suffix)), None)
    if stored == "fp8-block" and name.lower().startswith(ONE_SCALE_OWNERS):
        stored = "fp8"
    return (str(loaded.name), "none") if found is None or stored is None else (found.stem, stored)


def _is_known(name: str) -> bool:
    try:
        return bool(load(name))
    except UserError:
        return False


@lru_cache(maxsize=64)
def load(name: str) -> Model:
    """Load a model, cached."""
    return models.load(name)


def quantization_of(dtype: object, stored: str, model: str) -> str:
    """--quantization for a table's weight dtype; a checkpoint published with as narrow weights stays as it is."""
    word = "" if is_missing(dtype) else str(dtype).lower()
    if not word:
        return stored
    if word not in QUANTIZATIONS:
        raise unknown("weight_dtype", dtype, QUANTIZATIONS)
    quantization = stored if (word, stored) == ("fp8", "fp8-block") else QUANTIZATIONS[word]
    if quantization == "mxfp4_moe" or (quantization == "nvfp4" and _narrowest(model).name.startswith("int")):
        return quantization  # a GGUF file, and integers of 4 bits, are another checkpoint
    below = 6.0 if quantization in FOUR_BITS else 12.0
    return "none" if quantization != "none" and narrowest_bits(model) < below else quantization


def has_narrow_weights(name: str) -> bool:
    """Whether the checkpoint stores linear-layer weights in fewer than 12 bits."""
    return narrowest_bits(name) < 12.0


def narrowest_bits(name: str) -> float:
    """Fewest bits in which the checkpoint stores weights of linear layers."""
    return _narrowest(name).bits


@lru_cache(maxsize=256)
def _narrowest(name: str) -> Dtype:
    """The format of fewest bits in which the checkpoint stores weights of linear layers."""
    graph = load(name).graph(decode(1.0, 1.0))
    stored = (
        access.tensor.dtype
        for _, operator in graph
        if operator.kind is Kind.GEMM
        for access in operator.reads
        if access.tensor.role is Role.WEIGHT
    )
    return min(stored, key=lambda dtype: dtype.bits, default=DTYPES["fp16"])


@lru_cache(maxsize=256)
def has_experts(name: str) -> bool:
    """Whether the model routes tokens to experts."""
    return any(operator.name == "router" for _, operator in load(name).graph(decode(1.0, 1.0)))


def cache_dtype_of(row: Mapping[str, Any], weights: str, engine: str, note: str) -> str:
    """--kv-cache-dtype of a row; TensorRT-LLM's published fp8 and nvfp4 checkpoints also use an fp8 cache.

    Source of the latter: https://huggingface.co/gdubicki/Qwen3-32B-NVFP4 (the quantization config of NVIDIA's).
    """
    word = text_of(row, "kv_dtype").lower()
    if word:
        return "auto" if word in ("fp16", "bf16", "float16", "bfloat16", "auto") else word
    scripted = INFERENCEX in note and any(
        engine == name
        and model in str(row["model"])
        and str(row["device"]).startswith(chip)
        and weights.startswith(stored)
        for name, model, chip, stored in FP8_CACHES
    )
    return "fp8" if scripted or (weights in ("fp8", "nvfp4") and engine in ("trtllm", "trtllm-cpp")) else "auto"


def is_burst(row: Mapping[str, Any], note: str) -> bool:
    """Whether all requests of a run begin at once, and with answers of one length begin again together.

    First tokens of aiconfigurator's authors with SGLang on H100 are those of bursts within 8 %, with nothing fitted.
    """
    return "authors' own run" in note and str(row["engine"]).startswith("sglang") and row["device"] == "h100_sxm"


def _hold_of(row: Mapping[str, Any], engine: str, layout: Layout) -> Hold | None:
    """How the scripts of InferenceX's runs hold prompts back."""
    short = (size_of(row, "input_len"), size_of(row, "output_len")) == (1024.0, 1024.0)
    applies = {
        Until.RANKS: layout.data > 1,
        Until.FIRST: short and layout.devices < 8,
        Until.POLL: True,
    }
    for name, model, chip, hold in HOLDS:
        named = name == engine and model in str(row["model"]) and str(row["device"]).startswith(chip)
        if named and applies[hold.until]:
            busy = hold.until is Until.POLL and layout.tensor == 8 and size_of(row, "batch", 0.0) >= BUSY_USERS
            return replace(hold, steps=BUSY_STEPS) if busy else hold
    return None


def _batching(row: Mapping[str, Any], note: str) -> str:
    """--batching of a row: continuous, static or disaggregated with instances, as its column says, else its note."""
    stated = text_of(row, "batching")
    if stated:
        return stated if stated == "continuous" or stated.startswith("disaggregated") else "static"
    return "continuous" if "continuous batching" in note or "in-flight batching" in note else "static"

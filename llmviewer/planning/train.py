"""Fine-tuning: does a training step fit a device, and how long does it take?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.system import System
from llmviewer.analysis.training import Recipe, Trained, TrainingStep, trained_drafters, training_step
from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.workload import decode
from llmviewer.language.option import Kind, Option, taking
from llmviewer.serving.batching import STATIC
from llmviewer.techniques.options import RUN_OPTIONS

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import RunOptions

SCHEMA = "llmviewer.training/1"
#: Optimizer -> bytes of its state per trained weight.  AdamW has two moments in fp32, arXiv 1711.05101; in 8 bit,
#: arXiv 2110.02861 (its fp32 scale per 2,048 numbers is not counted); Lion has one, arXiv 2302.06675; SGD has none.
OPTIMIZERS = {"adamw": 8.0, "adamw-8bit": 2.0, "lion": 4.0, "lion-8bit": 1.0, "sgd": 0.0}
OWN = {
    "optimizer": Option(
        kind=Kind.WORD,
        choices=tuple(OPTIMIZERS),
        help="Optimizer: adamw, adamw-8bit, lion, lion-8bit, sgd; paged-... keeps its state on the host.",
    ),
    "recompute": Option(kind=Kind.TEXT, help="Share of the layers that run again before backward."),
}
#: Option of serving -> what a training step has in place of what it changes.
OF_SERVING = {
    **dict.fromkeys(
        ("kv_cache_dtype", "kv_block_size", "kv_reserve", "kv_evict", "prefix_cache", "cache_type_k", "cache_type_v"),
        "no KV cache",
    ),
    "kv_cache_free_gpu_memory_fraction": "no KV cache",
    **dict.fromkeys(
        ("max_num_batched_tokens", "logical_batch", "max_num_seqs", "max_model_len", "enforce_eager"),
        "one pass over the whole batch",
    ),
    "gpu_memory_utilization": "the whole memory",
    "early_exit": "all layers for every token",
    **dict.fromkeys(("hot_neurons", "gpu_layers", "n_cpu_moe", "override_tensor"), "all weights on the device"),
    **dict.fromkeys(("split_mode", "tensor_split", "main_gpu"), "devices by -tp"),
    "backend": "no build of llama.cpp",
}
#: Prefix of an optimizer whose state moves to the host in pages (QLoRA, arXiv 2305.14314), and suffix of one with
#: weights in fp32 beside the 16-bit ones (mixed precision, arXiv 1710.03740), with their bytes.
PAGED, MASTER, MASTER_BYTES = "paged-", "+master", 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training step on a device.  trained: what is trained, in words.  optimizer, recompute: as asked."""

    configuration: Configuration
    step: TrainingStep
    batch_size: int
    input_len: int
    trained: str
    optimizer: str
    recompute: float
    framework_bytes: float
    warnings: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> float:
        """Bytes on the device."""
        one = self.step
        return (
            one.weights_bytes + one.gradients_bytes + one.optimizer_bytes + one.activations_bytes + self.framework_bytes
        )

    @property
    def capacity_bytes(self) -> float:
        """Memory of the device [byte]."""
        return float(np.max(self.configuration.chip.memory_bytes))

    @property
    def fits(self) -> bool:
        """Whether the step fits the memory of the device."""
        return self.total_bytes <= self.capacity_bytes

    @property
    def holds(self) -> bool:
        """Whether it fits."""
        return self.fits

    def rows(self) -> list[dict[str, Any]]:
        """One row with all figures."""
        document = self.to_dict()
        step = document.pop("step")
        return [{**{name: value for name, value in document.items() if name not in ("schema", "warnings")}, **step}]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the batch per second of a step."""
        return self.batch_size * self.input_len / self.step.time_s

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "model": self.configuration.model.name,
            "hardware": self.configuration.chip.name,
            "devices": self.configuration.system.parallelism.devices,
            "batch_size": self.batch_size,
            "input_len": self.input_len,
            "trained": self.trained,
            "optimizer": self.optimizer,
            "recompute": self.recompute,
            "step": {**asdict(self.step), "time_s": self.step.time_s},
            "framework_bytes": self.framework_bytes,
            "total_bytes": self.total_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "tokens_per_s": self.tokens_per_s,
        }


@taking(RUN_OPTIONS)
def train(
    model: ModelName,
    hardware: ChipName,
    *,
    batch_size: int = 1,
    input_len: int = 512,
    optimizer: str = "adamw",
    recompute: float = 1.0,
    **options: Unpack[RunOptions],
) -> Training:
    """Memory and time of one training step.

    input_len: tokens of each sequence.  optimizer: adamw, adamw-8bit, lion, lion-8bit or sgd, with `paged-` before it
    for state on the host and `+master` behind it for weights in fp32 too.  recompute: share of the layers that are run
    again before their backward pass (activation checkpointing).  options: those of `analyze`; with `lora` only its
    adapters are trained, with `speculative` only the heads or the draft model, otherwise all weights.

    Raises UserError.
    """
    _check_options(options)
    chosen = configuration(model, hardware, **options)
    recipe, what = _recipe(chosen.system, arguments.word("optimizer", optimizer), _share(recompute))
    if recipe.trained is Trained.ALL and not chosen.system.drafters and _is_quantized(chosen):
        option = (
            "prune"
            if chosen.techniques["quantization"] == "none" and chosen.system.applies("prune")
            else "quantization"
        )
        stored = {"prune": "in a sparse format", "quantization": "in fewer than 16 bits"}[option]
        raise UserError(f"weights {stored} are not trained; add --lora, or remove --{option}")
    asked = request(batch_size, input_len, 1)
    sizes = (
        float(arguments.whole_number("batch_size", batch_size)),
        float(arguments.whole_number("input_len", input_len)),
    )
    return Training(
        configuration=chosen,
        step=training_step(chosen.model, chosen.system, sizes, recipe),
        batch_size=int(sizes[0]),
        input_len=int(sizes[1]),
        trained=what,
        optimizer=optimizer,
        recompute=recipe.recompute,
        framework_bytes=float(np.max(memory_of(chosen.model, chosen.system, asked, np.inf).framework_bytes)),
        warnings=chosen.warnings(asked),
    )


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for an option of serving that is stated."""
    for name, value in options.items():
        if name in OF_SERVING and value is not None:
            raise UserError(f"{name} is {quoted(value)}; a training step has {OF_SERVING[name]}; remove it")


def _recipe(system: System, optimizer: str, recompute: float) -> tuple[Recipe, str]:
    """How the step is trained, and what is trained in words."""
    name = optimizer.removeprefix(PAGED).removesuffix(MASTER)
    if name not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS, hint=f"also {PAGED}... and ...{MASTER}")
    adapters = system.applies("lora")
    _check(system, adapters=adapters)
    states = OPTIMIZERS[name] + MASTER_BYTES * optimizer.endswith(MASTER)
    trained, what = (Trained.ADAPTERS, "adapters of --lora") if adapters else (Trained.ALL, "all weights")
    if system.drafters:
        trained, what = Trained.ALL, ", ".join(one.draft.name for one in trained_drafters(system))
    return Recipe(
        trained=trained, state_bytes=states, on_host=float(optimizer.startswith(PAGED)), recompute=recompute
    ), what


def _check(system: System, *, adapters: bool) -> None:
    """Raise UserError for techniques that a training step does not have.  adapters: whether --lora is given."""
    parallelism = system.parallelism
    wrong = (
        (parallelism.pipeline > 1, "pipelines (--pipeline-parallel-size); allowed: -tp"),
        (parallelism.context > 1, "context parallelism (--context-parallel-size); allowed: -tp"),
        (
            parallelism.data > 1,
            "data parallelism (--data-parallel-size), which adds an exchange of gradients; allowed: one replica",
        ),
        (system.batching is not STATIC, "batching policies (--batching); allowed: --batch-size"),
        (
            system.generation.counts_passes,
            "branches (--branches), diffusion and non-autoregressive decoding (--speculative)",
        ),
        (
            system.scheme is not None and not trained_drafters(system),
            "speculation without a draft model or heads (--speculative)",
        ),
        (system.scheme is not None and adapters, "--lora beside --speculative: a step trains one of them; remove one"),
        (system.copies_beside or system.policy is not None, "--offload; allowed: an optimizer on the host (paged-...)"),
        (system.spatial, "--spatial"),
    )
    for asked, what in wrong:
        if asked:
            raise UserError(f"train does not know {what}")


def _is_quantized(chosen: Configuration) -> bool:
    """Whether a matrix of the model is stored in fewer than 16 bits per weight."""
    graph = chosen.system.prepared(chosen.model.graph(decode(1.0, 1.0)))
    return any(tensor.dtype.bits < 16.0 for tensor, _ in graph.stored_weights())


def _share(recompute: object) -> float:
    value = arguments.parse_number(str(recompute))
    if isinstance(value, str) or not 0.0 <= value <= 1.0:
        raise UserError(f"recompute is {quoted(recompute)}; allowed: a share of the layers from 0 to 1")
    return float(value)

"""Training: does a step fit its devices, how long does it take, and what does a run of N tokens cost?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from llmviewer.analysis.capacity import memory_of
from llmviewer.analysis.power_shares import board_watts, shares_of
from llmviewer.analysis.system import System
from llmviewer.analysis.training import Recipe, Trained, TrainingStep, trained_drafters, training_step
from llmviewer.analysis.training_layout import BORROWED, SPREAD80, SPREAD95, SUSTAINED, Layout, Offload
from llmviewer.api.calls import request
from llmviewer.api.configuration import Configuration, configuration
from llmviewer.core import arguments
from llmviewer.core.answer import Answer
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import decode
from llmviewer.hardware.prices import RENTED, Price
from llmviewer.language.grammar import Grammar, Number
from llmviewer.language.option import Kind, Option, taking
from llmviewer.planning.training_devices import Asked, layout_of, least_layout
from llmviewer.result.costs import Costs, given_prices, price_list
from llmviewer.result.result import LEAST_GAIN
from llmviewer.serving.batching import STATIC
from llmviewer.techniques.options import RUN_OPTIONS, WORKLOAD
from llmviewer.techniques.technique import Whole, called
from llmviewer.timing.roofline import ideal

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName, ModelName
    from llmviewer.api.keywords import TrainingOptions

SCHEMA = "llmviewer.training/1"
#: Entries of the document that are objects; a row has the figures of three of them.
OBJECTS = ("step", "run", "parallelism", "price", "least_layout", "second_stage")
#: Optimizer -> bytes of its state per trained weight.  AdamW has two moments in fp32, arXiv 1711.05101; in 8 bit,
#: arXiv 2110.02861 (its fp32 scale per 2,048 numbers is not counted); Lion has one, arXiv 2302.06675; SGD has none.
OPTIMIZERS = {"adamw": 8.0, "adamw-8bit": 2.0, "lion": 4.0, "lion-8bit": 1.0, "sgd": 0.0}
OWN = {
    "optimizer": Option(
        kind=Kind.WORD,
        default="adamw",
        choices=tuple(OPTIMIZERS),
        help="Optimizer: adamw, adamw-8bit, lion, lion-8bit, sgd; paged-... keeps its state on the host.",
    ),
    "recompute": Option(
        kind=Kind.TEXT,
        default=1.0,
        help="Share of the layers that run again before backward; selective: all but products.",
    ),
    "zero": Option(
        kind=Kind.WHOLE,
        default=0,
        least=0,
        help="What replicas (-dp) divide: 1 the optimizer, 2 gradients too, 3 weights too (FSDP).",
    ),
    "micro_batch_size": Option(
        kind=Kind.WHOLE, help="Sequences of one pass of a replica; default: all of its own, 1 in a pipeline."
    ),
    "virtual_stages": Option(
        kind=Kind.WHOLE, default=1, help="Parts of the layers on each pipeline stage (interleaved 1F1B)."
    ),
    "cpu_offload": Option(
        kind=Kind.WORD,
        default="none",
        choices=tuple(one.value for one in Offload),
        closed=True,
        help="What the host holds: the optimizer, which it runs, or parameters too.",
    ),
    "teacher": Option(kind=Kind.TEXT, help="A model that runs forward on the same tokens (distillation)."),
    "second_stage": Option(
        kind=Kind.TEXT, help="A stage after the first: batch=128,length=256,ratio=0.4 (its steps over the first's)."
    ),
    "tokens": Option(kind=Kind.NUMBER, help="Tokens of a whole run: 1e9 or 1b; its hours, dollars and kWh."),
    "price": Option(kind=Kind.TEXT, help="$ per device-hour: 2.10 or h100=2.10; default: the least known rent."),
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
#: Options that a teacher, in the formats of its checkpoint, does not share with its student.
OF_STUDENT = ("lora", "quantization", "prune", "model_set", "ignore_fields")
#: Prefix of an optimizer whose state moves to the host in pages (QLoRA, arXiv 2305.14314), and suffix of one with
#: weights in fp32 beside the 16-bit ones (mixed precision, arXiv 1710.03740), with their bytes.
PAGED, MASTER, MASTER_BYTES = "paged-", "+master", 4.0
#: Value of --recompute by which only operators without products run again.
SELECTIVE = "selective"


@frozen
class SecondStage:
    """A stage that trains the same weights on other sequences.  batch, length: its sequences.  ratio: its steps over
    those of the first stage."""

    batch: int
    length: int
    ratio: float


def second_stage(
    *,
    batch: Annotated[float, Whole("sequences of a step", 1, 1e9)],
    length: Annotated[float, Whole("tokens of each sequence", 1, 1e9)],
    ratio: Annotated[float, Number("its steps over those of the first stage", 1e-6, 1e6)],
) -> SecondStage:
    """The second stage by the parameters of --second-stage."""
    return SecondStage(batch=int(batch), length=int(length), ratio=ratio)


SECOND = Grammar.of(second_stage)


@frozen
class Run:
    """A run of N tokens on all devices, of both stages if there are two.  steps: of the first.  usd: None without a
    price.  kwh: with servers, None without board power."""

    tokens: float
    steps: float
    hours: float
    gpu_hours: float
    usd: float | None
    kwh: float | None


@frozen(repr=False)
class Training(Answer):
    """A training step.  batch_size: sequences of all replicas.  trained: what is trained, in words.  optimizer: as
    asked.  tokens: of the run, None if none is asked.  least: options of the least layout that fits, empty if the step
    fits or none does.  second, ratio: a second stage, and its steps over those of this one."""

    QUESTION: ClassVar[str] = "train"
    configuration: Configuration
    step: TrainingStep
    layout: Layout
    batch_size: int
    input_len: int
    trained: str
    optimizer: str
    recompute: float
    selective: bool
    teacher: str
    framework_bytes: float
    tokens: float | None = None
    price: Price | None = None
    least: Mapping[str, Any] = field(default_factory=dict)
    second: Training | None = None
    ratio: float = 0.0
    warnings: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> float:
        """Bytes on the fullest device."""
        return self.step.held_bytes + self.framework_bytes

    @property
    def capacity_bytes(self) -> float:
        """Memory of the device [byte]."""
        return float(np.max(self.configuration.chip.memory_bytes))

    @property
    def host_capacity_bytes(self) -> float:
        """A device's share of the memory of its host [byte]."""
        host = self.layout.host
        return np.inf if host is None or host.memory_bytes is None else host.memory_bytes / host.devices

    @property
    def fits(self) -> bool:
        """Whether the step fits the memory of the device, and what is offloaded that of its host; both stages do."""
        if self.second is not None and not self.second.fits:
            return False
        return self.total_bytes <= self.capacity_bytes and self.step.host_bytes <= self.host_capacity_bytes

    @property
    def holds(self) -> bool:
        """Whether it fits."""
        return self.fits

    @property
    def devices(self) -> int:
        """Number of all devices."""
        return self.configuration.system.parallelism.devices

    def rows(self) -> list[dict[str, Any]]:
        """One row with all figures."""
        document = self.to_dict()
        inner = {name: document.pop(name) or {} for name in OBJECTS}
        plain = {name: value for name, value in document.items() if name not in ("schema", "warnings")}
        return [{**plain, **inner["parallelism"], **inner["step"], **inner["run"]}]

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the batch per second of a step."""
        return self.batch_size * self.input_len / self.step.time_s

    def interval(self, percent: int = 80) -> tuple[float, float]:
        """Interval of `tokens_per_s` that holds 80 or 95 % of published steps [1/s]; itself on the ideal roofline."""
        spread = {80: SPREAD80, 95: SPREAD95}[percent]
        if self.configuration.system.efficiency is ideal:
            spread = 1.0
        return self.tokens_per_s / spread, self.tokens_per_s * spread

    @property
    def basis(self) -> str:
        """Whether the constants of training are fitted on this generation of chips or borrowed from another."""
        return "fitted" if self.configuration.chip.generation in SUSTAINED else f"borrowed from {BORROWED}"

    def utilization(self, flops: float) -> float:
        """Share of the dense 16-bit peak that some work of the busiest device in a step is [1]."""
        return flops / (self.step.time_s * float(np.max(self.configuration.chip.matrix_rate("bf16"))))

    @property
    def watts(self) -> float | None:
        """Mean power of a device with its share of the server [W]; None if its board power is unknown."""
        chip = self.configuration.chip
        if (shares := shares_of(chip)) is None:
            return None
        joules = float(np.max(shares.joules(chip, self.step.time_s, self.step.work_s)))
        return joules / self.step.time_s + shares.server * float(np.max(board_watts(chip)[0]))

    @property
    def run(self) -> Run | None:
        """The run of `tokens` tokens; None if none is asked."""
        if self.tokens is None:
            return None
        stages = [(self, 1.0)] + ([] if self.second is None else [(self.second, self.ratio)])
        steps = self.tokens / sum(one.batch_size * one.input_len * share for one, share in stages)
        hours = [steps * share * one.step.time_s / 3600.0 for one, share in stages]
        gpu_hours = sum(hours) * self.devices
        kw = [None if one.watts is None else one.watts / 1e3 * self.devices for one, _ in stages]
        return Run(
            tokens=self.tokens,
            steps=steps,
            hours=sum(hours),
            gpu_hours=gpu_hours,
            usd=None if self.price is None else gpu_hours * self.price.usd_per_hour,
            kwh=None if None in kw else sum(one * (each or 0.0) for one, each in zip(hours, kw, strict=True)),
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        run = self.run
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "model": self.configuration.model.name,
            "hardware": self.configuration.chip.name,
            "devices": self.devices,
            "batch_size": self.batch_size,
            "input_len": self.input_len,
            "trained": self.trained,
            "optimizer": self.optimizer,
            "recompute": self.recompute,
            "selective_recompute": self.selective,
            "parallelism": self._parallelism(),
            "teacher": self.teacher,
            "second_stage": self._second_stage(),
            "step": {**asdict(self.step), "time_s": self.step.time_s},
            "framework_bytes": self.framework_bytes,
            "total_bytes": self.total_bytes,
            "capacity_bytes": self.capacity_bytes,
            "fits": self.fits,
            "least_layout": dict(self.least) or None,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_interval80": self.interval(),
            "tokens_per_s_per_device": self.tokens_per_s / self.devices,
            "mfu": self.utilization(self.step.model_flops),
            "hfu": self.utilization(self.step.matmul_flops),
            "watts_per_device": self.watts,
            "price": None if self.price is None else self.price.to_dict(),
            "run": None if run is None else asdict(run),
        }

    def _parallelism(self) -> dict[str, Any]:
        """How the step is spread over devices."""
        parallelism, layout = self.configuration.system.parallelism, self.layout
        return {
            "tensor": parallelism.tensor,
            "pipeline": parallelism.pipeline,
            "data": parallelism.data,
            "expert": parallelism.expert,
            "zero": layout.zero,
            "virtual_stages": layout.virtual,
            "micro_batch_size": layout.micro_batch,
            "micro_batches": layout.micro_batches,
            "cpu_offload": layout.offload.value,
            "host": "" if layout.host is None else layout.host.name,
        }

    def _second_stage(self) -> dict[str, Any] | None:
        """Sizes, time and memory of the second stage."""
        if (one := self.second) is None:
            return None
        return {
            "batch_size": one.batch_size,
            "input_len": one.input_len,
            "ratio": self.ratio,
            "time_s": one.step.time_s,
            "total_bytes": one.total_bytes,
        }


#: Tokens of a replica's step below which a larger batch is tried, and the largest batch, as a multiple of the asked.
FEW_TOKENS, LARGEST_MULTIPLE = 4096, 64


def _larger_batch(found: Training, asked: Asked, tried: Callable[[Asked, Mapping[str, Any]], Training]) -> list[str]:
    """A line for a step of few tokens, beside a larger batch that fits and is faster per token."""
    replicas = found.configuration.system.parallelism.data
    if not found.fits or found.batch_size / replicas * asked.input_len >= FEW_TOKENS:
        return []
    best = found
    for multiple in (2**power for power in range(1, LARGEST_MULTIPLE.bit_length())):
        one = tried(replace(asked, batch_size=found.batch_size * multiple), {})
        if not one.fits or one.tokens_per_s <= best.tokens_per_s * LEAST_GAIN:
            break
        best = one
    if best is found:
        return []
    gain = best.tokens_per_s / found.tokens_per_s
    larger = f"--batch-size {best.batch_size} fits and trains {gain:.2f} times as many tokens/s"
    return [f"a step of {found.batch_size} x {asked.input_len} tokens is short: {larger}"]


@taking(OWN, RUN_OPTIONS)
def train(
    model: ModelName,
    hardware: ChipName,
    *,
    batch_size: int = 1,
    input_len: int = 512,
    **options: Unpack[TrainingOptions],
) -> Training:
    """Memory and time of one training step, and what a run of `tokens` tokens takes.

    batch_size: sequences of a step, of all replicas (1: one of each replica).  input_len: tokens of each sequence.
    optimizer: adamw, adamw-8bit, lion, lion-8bit or sgd, with `paged-` before it for state on the host and `+master`
    behind it for weights in fp32 too.  recompute: share of the layers that are run again before their backward pass
    (activation checkpointing), or `selective`.  zero: what replicas divide.  options: those of `analyze`; with `lora`
    only its adapters are trained, with `speculative` only the heads or the draft model, otherwise all weights.

    Raises UserError.
    """
    given: dict[str, Any] = {name: options.get(name, one.default) for name, one in OWN.items()}
    words = {name: given[name] if name == "recompute" else one.checked(name, given[name]) for name, one in OWN.items()}
    others = {name: value for name, value in options.items() if name not in OWN}
    asked = Asked(
        batch_size=WORKLOAD["batch_size"].checked("batch_size", batch_size),
        input_len=WORKLOAD["input_len"].checked("input_len", input_len),
        optimizer=words["optimizer"],
        recompute=_share(words["recompute"]),
        zero=_stage_of_zero(words["zero"]),
        micro=words["micro_batch_size"],
        virtual=words["virtual_stages"],
        offload=Offload(words["cpu_offload"]),
        teacher=words["teacher"] or "",
    )

    def tried(one: Asked, more: Mapping[str, Any]) -> Training:
        return _trained(model, hardware, one, {**others, **more})

    def fits(one: Asked, more: Mapping[str, Any]) -> bool:
        try:
            return tried(one, more).fits
        except UserError:  # such as more replicas than the model has experts
            return False

    after = None if not words["second_stage"] else called(second_stage, "--second-stage", SECOND, words["second_stage"])
    later = None if after is None else replace(asked, batch_size=after.batch, input_len=after.length)
    found = tried(asked, {})
    chip = found.configuration.chip.real
    prices = given_prices(words["price"], lambda: chip.name)
    costs = Costs(prices=price_list(RENTED, prices, chips={chip.name: chip}))
    return replace(
        found,
        tokens=words["tokens"],
        price=costs.price_of(chip),
        warnings=(*found.warnings, *costs.notes(chip), *_larger_batch(found, asked, tried)),
        least={} if found.fits else least_layout(asked, found.configuration.system, fits),
        second=None if later is None else tried(later, {}),
        ratio=0.0 if after is None else after.ratio,
    )


def _trained(model: ModelName, hardware: ChipName, asked: Asked, options: Mapping[str, Any]) -> Training:
    """The step of one layout."""
    _check_options(options)
    chosen = configuration(model, hardware, **options)
    recipe, what = _recipe(chosen.system, asked.optimizer, asked.recompute)
    if recipe.trained is Trained.ALL and not chosen.system.drafters and _is_quantized(chosen):
        option = (
            "prune"
            if chosen.techniques["quantization"] == "none" and chosen.system.applies("prune")
            else "quantization"
        )
        stored = {"prune": "in a sparse format", "quantization": "in fewer than 16 bits"}[option]
        stored_so = option == "quantization" and chosen.techniques["quantization"] == "none"
        way = "state --quantization bf16" if stored_so else f"remove --{option}"
        raise UserError(f"weights {stored} are not trained; add --lora, or {way}")
    layout, batch = layout_of(chosen.system, asked)
    of_replica = request(int(layout.micro_batch), max(asked.input_len - 1, 1), 1)
    alike = {name: value for name, value in options.items() if name not in OF_STUDENT}
    other = None if not asked.teacher else configuration(asked.teacher, hardware, **alike)
    if other is not None and chosen.system.scheme is not None:
        raise UserError("--teacher beside --speculative, whose heads learn from their model; remove one")
    return Training(
        configuration=chosen,
        step=training_step(
            chosen.model, chosen.system, float(asked.input_len), recipe, layout, None if other is None else other.model
        ),
        layout=layout,
        batch_size=batch,
        input_len=asked.input_len,
        trained=what,
        optimizer=asked.optimizer,
        recompute=recipe.recompute,
        selective=recipe.selective,
        teacher="" if other is None else other.model.name,
        framework_bytes=float(np.max(memory_of(chosen.model, chosen.system, of_replica, np.inf).framework_bytes)),
        warnings=chosen.warnings(of_replica, exchanging=chosen.system.parallelism.devices),
    )


def _stage_of_zero(zero: int) -> int:
    if zero > 3:
        raise UserError(f"zero is {zero}; allowed: 0, 1, 2, 3")
    return zero


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for an option of serving that is stated."""
    for name, value in options.items():
        if name in OF_SERVING and value is not None:
            raise UserError(f"{name} is {quoted(value)}; a training step has {OF_SERVING[name]}; remove it")


def _recipe(system: System, optimizer: str, recompute: tuple[float, bool]) -> tuple[Recipe, str]:
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
        trained=trained,
        state_bytes=states,
        on_host=float(optimizer.startswith(PAGED)),
        recompute=recompute[0],
        selective=recompute[1],
    ), what


def _check(system: System, *, adapters: bool) -> None:
    """Raise UserError for techniques that a training step does not have.  adapters: whether --lora is given."""
    parallelism = system.parallelism
    wrong = (
        (parallelism.context > 1, "context parallelism (--context-parallel-size); allowed: -tp, -pp, -dp"),
        (parallelism.microbatches > 1, "microbatches= of --pipeline-parallel-size; allowed: --micro-batch-size"),
        (system.split is not None, "devices that hold unlike shares; allowed: -tp, -pp, -dp"),
        (parallelism.pipeline > 1 and system.scheme is not None, "--speculative in a pipeline; allowed: -tp, -dp"),
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
        (
            system.copies_beside or system.policy is not None,
            "--offload; allowed: --cpu-offload, or an optimizer in pages (paged-...)",
        ),
        (system.spatial, "--spatial"),
    )
    for asked, what in wrong:
        if asked:
            raise UserError(f"train does not know {what}")


def _is_quantized(chosen: Configuration) -> bool:
    """Whether a matrix of the model is stored in fewer than 16 bits per weight."""
    graph = chosen.system.prepared(chosen.model.graph(decode(1.0, 1.0)))
    return any(tensor.dtype.bits < 16.0 for tensor, _ in graph.stored_weights())


def _share(recompute: object) -> tuple[float, bool]:
    """Share of the layers that run again, and whether operators without products run again in the others."""
    if recompute == SELECTIVE:
        return 0.0, True
    value = arguments.parse_number(str(recompute))
    if isinstance(value, str) or not 0.0 <= value <= 1.0:
        raise UserError(f"recompute is {quoted(recompute)}; allowed: a share of the layers from 0 to 1, or {SELECTIVE}")
    return float(value), False

"""Serving engines: the time they add to kernels (launch gaps, host work per step and sequence, sampling), by name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, fields, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer.core import data, files
from llmviewer.core.counts import Count, present
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Step
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.language.record import ABSENT, stated
from llmviewer.timing import engine_backends, engine_memory, engine_names, engine_work
from llmviewer.timing.engine_fit import NOT_OF_PASSES, OF_RUNS, Fitted, OfGeneration, OfVersion, Own, Residuals
from llmviewer.timing.engine_memory import (
    EngineMemory,
    FreeMemory,
    MemoryVersions,
    by_version,
    is_of,
    nearest_version,
    version_numbers,
)
from llmviewer.timing.engine_names import Named
from llmviewer.timing.engine_scope import OTHER_SHARE, Scope
from llmviewer.timing.engine_serving import AT_A_DESK, ENGINE, NOTHING, OF_DESKS, Serves
from llmviewer.timing.engine_work import Seconds, unbounded

FOLDER = engine_names.FOLDER
#: Name of the pass by which a preset states how its requests choose experts.
ENGINE_ROUTING = "engine_routing"
#: Launch times that runs without graphs imply over `uncompiled`: 35 and 68 of 50 us, docs/guide/calibration.md.
LAUNCH_RANGE = (0.7, 1.36)
#: Cells of a cache of windows are a multiple of this.
WINDOW_PADDING = 256.0
#: What lies beyond a user's engine file where none of it holds.
OTHER_GENERATION = "generation of chips"
#: What follows the name of an engine in its title.
GENERATION = re.compile(r",| (?=\(|V?\d|of |in |with |before )")
#: Generation -> the nearest that was measured, whose fields it takes if a preset has none of its own.
NEAREST_GENERATIONS = {
    "gaudi3": "gaudi2",
    "cdna4": "cdna3",
    "cdna": "gcn5",
    "rdna2": "rdna3",
    **dict.fromkeys(("zen2", "zen3", "zen5"), "zen4"),
    **dict.fromkeys(("raptor-lake", "arrow-lake", "sapphire-rapids", "granite-rapids"), "zen4"),
    **dict.fromkeys(("tpu-v4", "tpu-v5p", "tpu-v6e", "tpu-v7"), "tpu-v5e"),
}
#: Chip unlike others of its generation -> the one most like it that was measured.  M1 and M2 emulate bfloat16
#: (https://github.com/jundot/omlx/pull/3277), M5 has matrix units.
NEAREST_CHIPS = {
    **dict.fromkeys(("m1", "m1-pro"), "m1-max"),
    **dict.fromkeys(("m2", "m2-pro"), "m2-max"),
    "m2-ultra": "m1-ultra",
    **dict.fromkeys(("m5", "m5-pro"), "m5-max"),
}


class AtStart(Enum):
    """The behaviour of an engine at start-up where its KV cache does not hold one sequence of the longest context.

    REFUSES: it does not start.  SHORTENS: it starts, and serves shorter requests.  ALLOCATES: it allocates the cache of
    that context whatever its budget, and runs out of memory.
    """

    REFUSES = "refuses"
    SHORTENS = "shortens"
    ALLOCATES = "allocates"
    UNKNOWN = ""


def _start(value: Any) -> AtStart:
    """Behaviour at start-up as a preset states it."""
    return AtStart(record.choice("start", [way.value for way in AtStart])(value))


@frozen
class SmallChip:
    """Defaults of a server on chips with less memory than `below_gib`.

    tokens: most prompt tokens of a pass.  graphs: most sequences of a CUDA graph; group_graphs: from four devices on.
    """

    below_gib: float
    tokens: float
    graphs: float
    group_graphs: float


@frozen
class Engine(Fitted):
    """An engine preset: its kernels, limits, and the time that it adds to kernels.

    kernels: engine of its kernels, as named in profiles.  fusion, attention: values of the options of these names.
    scheduler: its policy (serving/scheduling.py); empty: it serves no requests.  max_num_batched_tokens: most prompt
    tokens of a pass.  max_num_seqs: most concurrent sequences.  graph_tokens: most tokens of a CUDA graph.
    graphs: passes that CUDA graphs hold: all, or decode (no prompts), of as many sequences instead of tokens, none of
    which has more than graph_context tokens.
    small_chips: limits of its server on chips with less memory, least first.
    late_from: version from which a user sees every token one step late, as its output is processed while the next step
    runs, but with speculation; empty: none.  late_source: where that stands.
    reserved: fraction of the output for which a sequence reserves KV cache when it starts.  free_fraction: of the
    memory that all else leaves, which its server's cache takes unless the user states a limit; 0.0: none.
    borrowed: family/variant -> engine whose kernels it runs instead of those of `kernels` (`gemm/fp8-block: trtllm`).
    unit_bytes, share: limits of its own matrix-vector kernel: weight bytes per unit and clock, and fraction of the
    bandwidth; unit_bytes 0: it has no such kernel.
    row_share: share of the time of reading weights by which each further token lengthens a pass of up to MAX_ROWS, in
    kernels that read those of dense products again for every token.
    unpacked_bytes: extra traffic per weight of fewer than 8 bits that is converted to 16 bit before larger products.
    integer_share: fraction of the chip's 8-bit peak that its own integer kernels reach in larger products with narrow
    weights, which then are not converted; 0.0: it has no such kernels.
    tile_columns: most columns of a tile of those kernels.  vector_experts: most tokens of a pass whose experts are read
    once for each of their tokens.
    divides: what it divides among several devices unless told otherwise: tensors of every layer, or layers.
    number_formats: values of options of number formats that are advised with it; empty: those of api/trials.py.
    flash_from: version from which attention is as stated; before, it is eager; empty: all are.  flash_source: where
    that stands.
    ungrouped: 1.0 if its decode attention reads a KV head once for each of its query heads, else 0.0.
    cache_write: 1.0 if a kernel of its own writes keys and values to the cache, 0.0 if rope or attention does.
    expert_skew: exponent of the popularity of experts in the requests that it serves; 0.0: uniform.
    gathers: most devices among which replicas that share experts gather the tokens of all of them and reduce-scatter
    the sums; among more each token's rows go to its experts.
    uncompiled: host time to launch a kernel with enforce_eager, where it is more than `eager` [us]; 0.0: it is not.
    mxfp8_inputs: generation of chips on which inputs of MXFP4 experts are quantized to MXFP8; empty: none.
    forced: values of options of number formats that are other formats or kernels to it than to others -> their names.
    without_units: class of narrow floats -> first version that multiplies weights stored in it with 16-bit inputs where
    a chip has no units of the class; empty: it refuses them.  Other classes are multiplied in the next wider one.
    accumulation: fp16 if its 16-bit products sum in fp16, which GeForce cards do twice as fast (llama.cpp:
    https://github.com/ggml-org/llama.cpp/pull/3370); empty: in fp32.
    generations: generation of chips, or name of a chip that is unlike others of its generation -> its own fields; with
    a backend that is not the default on them, also by maker, behind a slash: rdna3/vulkan, NVIDIA/vulkan.
    backends: generation of chips, or maker of others -> backends, the default first.  backend: as asked for; on a chip,
    the one that it runs with, "" where none is known.
    prompt_generations: generations of chips to whose runs the factor `prompt` was fitted; it holds on no others.
    versions: first version -> its own fields, which hold until the next first version.
    measured: versions whose runs it was fitted to; empty: those runs do not state theirs.
    own_slots: whether max_num_seqs is its own and not the user's, so that its slots share one cache.
    logical_batch: most tokens of a step, as the user or the program states it; None: its scheduler's.
    version: as the user asked for it; empty: not stated.  memory_versions: memory of its known versions, None: unknown.
    memory: memory of its version on the chip it runs on.  max_model_len: longest context; None: the model's.
    free_memory: how it fills a device without a profiling run; None: its budget is a fraction of the memory.
    start, start_source: what it does where the cache does not hold one sequence of that context, and where that stands.
    round_versions: first version -> host time of a round of speculation.  draft_us: host time of each pass, while its
    kernels run, if the engine is that of a draft.  serves: where it is taken without being stated.
    makers: of the chips that it runs on; none: of all.
    program: the program by whose name it was asked for; None: by its own.  own: the user's file that it was read from.
    beyond: what is otherwise than in that file, OTHER_GENERATION or the configuration; empty: nothing.
    """

    name: str
    title: str = ""
    kernels: str = "vllm"
    fusion: str = "none"
    attention: str = "flash"
    batching: str = ""
    scheduler: str = ""
    max_num_batched_tokens: float = float("inf")
    max_num_seqs: float = float("inf")
    graph_tokens: float = float("inf")
    graphs: str = field(default="all", metadata=stated(record.choice("graphs", ("all", "decode"))))
    graph_context: float = float("inf")
    small_chips: Sequence[SmallChip] = field(
        default=(), metadata=stated(record.listed(partial(record.read, SmallChip)))
    )
    late_from: str = field(default="", metadata=stated(engine_memory.a_version))
    late_source: str = ""
    reserved: float = 0.5
    free_fraction: float = 0.0
    borrowed: Mapping[str, str] = field(default_factory=dict)
    unit_bytes: float = 0.0
    share: float = 1.0
    row_share: float = 0.0
    unpacked_bytes: float = 0.0
    integer_share: float = 0.0
    tile_columns: float = 128.0
    vector_experts: float = 1.0
    divides: str = field(default="tensors", metadata=stated(record.choice("divides", ("tensors", "layers"))))
    number_formats: Mapping[str, Sequence[str]] = field(
        default_factory=dict, metadata=stated(record.mapped(record.listed()))
    )
    flash_from: str = field(default="", metadata=stated(engine_memory.a_version))
    flash_source: str = ""
    ungrouped: float = 0.0
    cache_write: float = 0.0
    expert_skew: float = 0.0
    gathers: float = 0.0
    uncompiled: float = 0.0
    mxfp8_inputs: str = ""
    forced: Mapping[str, str] = field(default_factory=dict, metadata=stated(record.mapped(record.filled)))
    without_units: Mapping[str, str] = field(
        default_factory=dict, metadata=stated(record.mapped(record.text, ("fp8", "fp4")))
    )
    accumulation: str = ""
    prompt_generations: Sequence[str] = ()
    generations: Mapping[str, OfGeneration] = field(
        default_factory=dict,
        metadata=stated(record.mapped(partial(record.read, OfGeneration, required=("constants",)))),
    )
    backends: Mapping[str, Sequence[str]] = field(default_factory=dict, metadata=stated(engine_backends.TABLE))
    backends_source: str = ""
    source: str = ""
    versions: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict, metadata=stated(by_version(partial(record.values, OfVersion, given=("factors",))))
    )
    measured: tuple[str, ...] = field(default=(), metadata=stated(record.listed(engine_memory.a_version)))
    own_slots: bool = field(default=True, metadata=ABSENT)
    backend: str = field(default="", metadata=ABSENT)
    logical_batch: float | None = field(default=None, metadata=ABSENT)
    version: str = field(default="", metadata=ABSENT)
    memory_versions: MemoryVersions | None = field(default=None, metadata=stated(engine_memory.MEMORY, "memory"))
    memory: EngineMemory | None = None
    max_model_len: float | None = field(default=None, metadata=ABSENT)
    free_memory: FreeMemory | None = field(
        default=None, metadata=stated(partial(record.read, engine_memory.FreeMemory))
    )
    start: AtStart = field(default=AtStart.UNKNOWN, metadata=stated(_start))
    start_source: str = ""
    round_versions: Mapping[str, engine_work.RoundCosts] = field(
        default_factory=dict, metadata=stated(by_version(engine_work.COSTS), "rounds")
    )
    draft_us: float = field(default=0.0, metadata=ABSENT)
    program: Named | None = field(default=None, metadata=ABSENT)
    makers: Sequence[str] = field(default=(), metadata=stated(record.listed(record.filled)))
    own: Own | None = field(default=None, metadata=ABSENT)
    beyond: str = field(default="", metadata=ABSENT)
    serves: Serves = field(default=NOTHING, metadata=stated(partial(record.read, Serves)))

    def forced_kernels(self, quantization: str) -> str:
        """A stated --quantization as the engine reads it; empty: the same as to others."""
        kept = self.program is None or self.program.formats
        return self.forced.get(quantization, "") if kept else ""

    @property
    def is_uncompiled(self) -> bool:
        """Whether a launch takes `uncompiled`, which no fit of its own gives."""
        return self.uncompiled > 0.0 and self.constants.get("eager") == self.uncompiled

    @property
    def product(self) -> str:
        """The name of the program without its version: `vLLM`, of its title."""
        return GENERATION.split(self.title)[0]

    @property
    def known_version(self) -> str:
        """Its version: the stated one, else the newest whose memory is known; "" where versions are not told apart."""
        return self.version or (self.memory_versions.newest if self.memory_versions else "")

    @property
    def asked(self) -> str:
        """The name by which it was asked for, with a version that was stated: vllm==0.19, ollama, mine.yaml."""
        if self.own:
            return self.own.name
        name = self.program.name if self.program else self.name
        return f"{name}{engine_memory.PINNED}{self.version}" if self.version else name

    @property
    def called(self) -> str:
        """Its name with its version in a sentence: vLLM 0.21, llama.cpp of May 2024, Ollama (llama.cpp of May 2024)."""
        own = self.title.partition(",")[0].partition(" (")[0]
        if self.known_version:
            own = f"{self.product} {self.known_version}"
        own += engine_backends.suffix(self.backend)
        if self.own:
            return f"{self.own.name} ({own})"
        if self.program is None:
            return own
        return f"{self.program.title} ({'nearest: ' if self.program.nearest else ''}{own})"

    @property
    def launch_range(self) -> tuple[float, float]:
        """Shortest and longest launches over those that are taken."""
        return LAUNCH_RANGE if self.is_uncompiled else (1.0, 1.0)

    @property
    def rounds(self) -> engine_work.RoundCosts:
        """Host time of a round of speculation in its version."""
        known = self.round_versions if self.source else {"0": engine_work.NO_HOST}
        return engine_work.chosen(known, self.known_version, self.name)

    def on(self, chip: Chip) -> Engine:
        """The engine with kernels of the chip's generation and memory of its version.

        Raises UserError for what is no version, and for a chip on which the program does not run.
        """
        engine_names.check_maker(self.name, self.product, self.makers, chip)
        if self.program:
            self.program.check(chip)
        if self.version:
            version_numbers(self.version, self.name)
        backend = engine_backends.chosen(self.backend, self._backends, chip, self.asked)
        kind = self.kind_on(chip, backend, self.generations)
        if lent := "/" in kind and self._generation(kind) is None:
            kind = kind_of(chip, self.generations)
        engine = replace(self.of_generation("" if self._outgrew(kind) else kind).of_version(), backend=backend)
        if lent:  # the times of another backend, whose errors say nothing about this one
            engine = replace(engine, error={}, residuals={}, scope={})
        if self.memory_versions is None:
            return engine
        memory, versions = self.memory_versions.on(chip, self.version, self.name), self.memory_versions
        if not versions.is_small(chip):
            return replace(engine, memory=memory)
        tokens = min(engine.max_num_batched_tokens, versions.small.get("tokens", np.inf))
        sequences = min(engine.max_num_seqs, versions.small.get("sequences", np.inf))
        return replace(engine, memory=memory, max_num_batched_tokens=tokens, max_num_seqs=sequences)

    def serving(self, chip: Chip, devices: float) -> Engine:
        """The engine with the defaults of its server on a group of so many of these chips."""
        memory_gib = float(np.max(chip.real.memory_bytes)) / 2.0**30
        small = next((one for one in self.small_chips if memory_gib < one.below_gib), None)
        if small is None:
            return self
        graphs = small.graphs if devices < 4.0 else small.group_graphs
        tokens = min(self.max_num_batched_tokens, small.tokens)
        return replace(self, graph_tokens=min(self.graph_tokens, graphs), max_num_batched_tokens=tokens)

    @property
    def _backends(self) -> Mapping[str, Sequence[str]]:
        """Generation or maker of chips -> backends, those of the program first."""
        return {**self.backends, **self.program.backends} if self.program else self.backends

    def name_on(self, chip: Chip) -> str:
        """Its name in tables, behind a slash the backend if that is not the usual one on the chip."""
        return f"{self.name}/{self.backend}" if "/" in self.kind_on(chip, self.backend, ()) else self.name

    def kind_on(self, chip: Chip, backend: str, known: Collection[str]) -> str:
        """The name of its fields on a chip with a backend, if that is not the usual one behind a slash.

        known: those that it has.  The usual one is the preset's, not a program's.
        """
        if not backend or backend in engine_backends.of_chip(self.backends, chip)[:1]:
            return kind_of(chip, known)
        return engine_backends.key_of(chip, backend, known)

    def backend_note(self, chip: Chip) -> str:
        """A line on what stands for a backend that was not measured on chips of this generation; empty: nothing."""
        kind = self.kind_on(chip, self.backend, self.generations)
        if "/" not in kind or kind in self.generations:
            return ""
        other = NEAREST_GENERATIONS.get(chip.generation, "")
        if self._generation(kind) is None:
            other = f"--backend {engine_backends.of_chip(self.backends, chip)[0]}"
        return f"--backend {self.backend} was not measured on {chip.generation}: times are those of {other}"

    @property
    def version_note(self) -> str:
        """Figures that the stated version does not change, and the nearest measured one; empty: nothing to say.

        Of a program that was not measured: what stands for it; of a user's file: where it does not serve.
        """
        if self.own:
            own = f"engine {self.own.name}: fitted on a chip of generation {self.own.generation}"
            return f"{own}; on others the constants are {self.own.base}'s" if self.beyond == OTHER_GENERATION else ""
        if not self.version:
            return self.program.note if self.program else ""
        memory, said = self.memory_versions, []
        if self.measured and not any(is_of(self.version, one) for one in self.measured):
            alike = [one for one in self.measured if replace(self, version=one).first_version == self.first_version]
            nearest = nearest_version(self.version, alike or self.measured)
            said.append(f"no run of version {self.version} was measured; the nearest that was is {nearest}")
        if memory is not None and (edge := memory.edge(self.version)):
            said.append(f"its memory is that of {edge}")
        if self.flash_from and not self.is_from(self.flash_from):
            said.append(f"attention is eager before {self.flash_from}")
        if memory is None and not (self.versions or said):
            known = f" ({', '.join(self.measured)} were measured)" if self.measured else ""
            said.append(f"its versions are priced alike{known}")
        return f"engine {self.name}: {'; '.join(said)}" if said else ""

    def of_server(self, chip: Chip, configuration: str) -> Engine:
        """The engine with constants of the user's file, if it was read from one.

        configuration: as of Own.  Another one takes OTHER_SHARE of the logarithm of a change; a chip of another
        generation keeps the preset's constants.
        """
        own = self.own
        if own is None:
            return self
        if chip.generation != own.generation:
            return replace(self, beyond=OTHER_GENERATION)
        known = configuration in own.configurations
        power = 1.0 if known else OTHER_SHARE

        def changed(value: float, measured: float | None) -> float:
            return value if measured is None else value * (measured / value) ** power

        factors = {name: changed(self.factors.get(name, 1.0), one) for name, one in own.factors.items()}
        return replace(
            self,
            beyond="" if known else "model, formats or layout",
            constants={name: changed(value, own.constants.get(name)) for name, value in self.constants.items()},
            factors={**self.factors, **factors},
            share=changed(self.share, own.share),
            integer_share=changed(self.integer_share, own.integer_share),
            error={**self.error, **own.error},
            residuals={**self.residuals, **own.residuals},
            scope={**self.scope, **own.scope},
        )

    def rates_of(self, chip: Chip) -> Chip:
        """The chip with the rates of this engine's products."""
        return chip.accumulating_in_fp16() if self.accumulation == "fp16" else chip

    def of_generation(self, generation: str) -> Engine:
        """The engine on chips of a generation: with its own values, or those of the one before without their errors."""
        own, found = self.generations.get(generation), self._generation(generation)
        if found is None:
            if generation in self.prompt_generations:
                return self
            return replace(self, factors={name: value for name, value in self.factors.items() if name != "prompt"})
        kept = ("before", "changed", "source", *(() if own else OF_RUNS))
        stated = {entry.name: getattr(found, entry.name) for entry in fields(found) if entry.name not in kept}
        return replace(self, **{name: value for name, value in stated.items() if value is not None})

    def _generation(self, generation: str) -> OfGeneration | None:
        """Fields on chips of a generation, and with a backend behind a slash: its own, or those of the one before."""
        kind, slash, backend = generation.partition("/")
        nearest = f"{NEAREST_GENERATIONS.get(kind, '')}{slash}{backend}"
        return self.generations.get(generation) or self.generations.get(nearest)

    def is_known_on(self, generation: str) -> bool:
        """Whether it serves chips of a generation, or its times were fitted to runs on them or on the nearest."""
        return generation in self.serves.generations or self._generation(generation) is not None

    def _outgrew(self, generation: str) -> bool:
        """Whether its version, the newest if not stated, runs other kernels than its fields of a generation are for."""
        found = self._generation(generation)
        return found is not None and self.is_from(found.before)

    def is_from(self, first: str) -> bool:
        """Whether its version, the newest if not stated, is `first` or later; False if `first` is empty."""
        if not first:
            return False
        return not self.known_version or version_numbers(self.known_version, self.name) >= version_numbers(first)

    @property
    def first_version(self) -> str:
        """First of the versions that share the constants of this one; empty: they are not told apart by version."""
        if not self.version:
            return next(reversed(list(self.versions)), "")
        asked = version_numbers(self.version, self.name)
        return next((one for one in reversed(list(self.versions)) if version_numbers(one, self.name) <= asked), "")

    def of_version(self) -> Engine:
        """The engine with constants of its version."""
        own = self.versions.get(self.first_version, {})
        errors = {name: own.get(name, {}) for name in OF_RUNS} if own.get("residuals") else {}
        return replace(self, constants={**self.constants, **own.get("constants", {})}, **errors) if own else self

    def terms(
        self, graph: Graph, step: Step, chip: Chip, seconds: Seconds, least: Seconds = unbounded
    ) -> tuple[tuple[str, Count], ...]:
        """Seconds that a forward pass takes in addition to its kernels, by name; terms that are zero are omitted.

        seconds: kinds -> time that kernels of these kinds take in the pass.  least: the same on the data sheet's
        roofline, which the engine's own kernels do not beat.
        """
        if self is KERNELS_ONLY:
            return ()
        named: dict[str, Count] = {}
        if self.constants:
            paid = engine_work.times_paid(graph, step)
            named = {
                name: value * 1e-6 * paid[name] for name, value in self.constants.items() if name not in NOT_OF_PASSES
            }
        many = np.where(step.tokens > self.graph_tokens, 1.0, 0.0)
        if "eager" in self.constants:
            outside_graphs = many
            if self.graphs == "decode":
                prompts = (step.tokens > step.sequences) & (step.logits <= step.sequences)
                beyond = (step.sequences > self.graph_tokens) | (step.longest > self.graph_context)
                outside_graphs = np.where(prompts | beyond, 1.0, 0.0)
            host = engine_work.launching_s(self.constants, paid) * outside_graphs
            named["host"] = np.maximum(host - seconds(tuple(Kind)), 0.0)
        reads = engine_work.reads_of_heads(graph, step) if self.ungrouped else None
        passes = {"prompt": many, "prompt_attention": np.where(step.tokens > step.sequences, 1.0, 0.0)}
        named.update(engine_work.own_kernels(self.factors, reads, seconds, least, passes))
        if self.unit_bytes:
            named |= self._own_products(graph, step, chip, seconds, named.pop("own gemm kernels", 0.0))
        if self.draft_us:
            named["drafting"] = np.maximum(self.draft_us * 1e-6 - seconds(tuple(Kind)), 0.0)
        return tuple((name, value) for name, value in named.items() if present(value))

    def _own_products(self, graph: Graph, step: Step, chip: Chip, seconds: Seconds, scaled: Count) -> dict[str, Count]:
        """Time by which its own products differ from kernels in profiles, by name.

        scaled: the same for products that run such kernels by a factor: of many tokens with 16-bit weights.
        """
        few = np.where(step.tokens <= engine_work.MAX_MATVEC_TOKENS, 1.0, 0.0)
        kernels = seconds((Kind.GEMM,))
        bandwidth = np.minimum(self.unit_bytes * engine_work.unit_clocks(chip), self.share * chip.bandwidth_bytes_per_s)
        own = {"own gemm kernels": scaled * (1.0 - few)}
        vector = engine_work.gemm_weight_bytes(graph) / bandwidth
        if self.integer_share:
            narrow, rate = engine_work.narrow_share(graph), self.integer_share * chip.matrix_rate("int8")
            integer = engine_work.IntegerKernels(
                rate=rate, bandwidth=bandwidth, tile=self.tile_columns, vector=self.vector_experts
            )
            products = integer.products_s(graph, step.tokens)
            own["own gemm kernels"] = (scaled * (1.0 - narrow) + products - narrow * kernels) * (1.0 - few)
            experts = engine_work.gemm_weight_bytes(graph, engine_work.is_narrow_expert) / bandwidth
            vector = vector - experts + integer.products_s(graph, step.tokens, routed=True)
        own["own matrix-vector kernels"] = (vector - kernels) * few
        if self.row_share:
            rows = self.row_share * (np.minimum(step.tokens, engine_work.MAX_ROWS) - 1.0)
            again = rows * engine_work.gemm_weight_bytes(graph, engine_work.is_of_all_tokens) / bandwidth
            longer = np.maximum(vector + again - kernels - own["own gemm kernels"], 0.0)
            own["own matrix-vector kernels"] = own["own matrix-vector kernels"] + again * few
            own["own gemm kernels"] = own["own gemm kernels"] + longer * (1.0 - few)
        unpacked = self.unpacked_bytes * engine_work.narrow_weights(graph) / chip.bandwidth_bytes_per_s
        return {**own, "unpacking weights": unpacked * (1.0 - few)}

    @property
    def request_s(self) -> float:
        """Host time of a request before its first token [s], without the steps by which tokens are late."""
        return self.constants.get("request", 0.0) * 1e-6

    @property
    def slot_context(self) -> float | None:
        """The longest context of one request: of slots that share the engine's evenly, that of a slot; None: unknown.

        They do where the user states their number: https://github.com/ggml-org/llama.cpp/pull/17997 (--kv-unified), and
        n_ctx_seq of https://github.com/ggml-org/llama.cpp/blob/master/src/llama-context.cpp
        """
        slots = self.max_num_seqs if self.start is AtStart.ALLOCATES and not self.own_slots else np.inf
        whole = self.max_model_len
        return whole if whole is None or np.isinf(slots) else whole / max(slots, 1.0)

    @property
    def allocated_tokens(self) -> float:
        """Tokens of KV cache that it allocates at start-up, of all slots together; 0.0: as many as requests need."""
        return (self.max_model_len or 0.0) if self.start is AtStart.ALLOCATES else 0.0

    @property
    def streams(self) -> float:
        """Caches of their own among which the allocated tokens are divided: of slots that the user states, else one."""
        return 1.0 if self.own_slots or np.isinf(self.max_num_seqs) else max(self.max_num_seqs, 1.0)

    def window_cells(self, window: float) -> float:
        """Most cells of a layer with a window in one cache: windows of its slots and a micro-batch, padded to 256.

        https://github.com/ggml-org/llama.cpp/blob/master/src/llama-kv-cache-iswa.cpp
        """
        if self.program is not None and self.program.whole_windows:
            return np.inf
        sharing = self.max_num_seqs if self.own_slots and np.isfinite(self.max_num_seqs) else 1.0
        return float(np.ceil((window * sharing + self.max_num_batched_tokens) / WINDOW_PADDING) * WINDOW_PADDING)

    @property
    def late_steps(self) -> float:
        """Steps by which a user sees a token late."""
        return 1.0 if self.is_from(self.late_from) else 0.0

    def without_graphs(self) -> Engine:
        """The engine with enforce_eager: its host launches every kernel of every pass, from modules in Python."""
        eager = replace(self, graph_tokens=0.0)
        if self.uncompiled <= self.constants.get("eager", 0.0):
            return eager
        return replace(eager, constants={**self.constants, "eager": self.uncompiled})

    def without_step_terms(self, *, of_model: bool = False) -> Engine:
        """The engine for a draft's pass within the target's step: terms paid once per step are removed.

        of_model: the draft is a model of its own, no head of the target.
        """
        if self is KERNELS_ONLY:
            return self
        kept = {name: value for name, value in self.constants.items() if name not in engine_work.TERMS_PER_STEP}
        inside = replace(self, constants=kept, draft_us=self.rounds.draft)
        if not (of_model and self.rounds.launched):
            return inside
        factors = {name: value for name, value in self.factors.items() if name != "prompt"}
        return replace(inside, graph_tokens=0.0, factors=factors)

    def residuals_of(self, metrics: Sequence[str], origin: str) -> Residuals | None:
        """Residuals of the first of these metrics that the preset was fitted on.

        origin: origin of the kernels, as of Calibrated.origin.
        """
        own = self.versions.get(self.first_version, {})
        for metric in metrics:
            if origin in self.residuals.get(metric, {}):
                scope = self.scope.get(metric, {}).get(origin, Scope())
                mine = self.own is not None and self.beyond != OTHER_GENERATION and metric in self.own.residuals
                of_version = mine or not own.get("constants") or bool(own.get("residuals"))
                return Residuals(metric, tuple(self.residuals[metric][origin]), scope, of_version)
        return None


#: No engine, only kernels.  TensorRT-LLM's block-scaled products, as vLLM's were timed with their host launch.
KERNELS_ONLY = Engine(
    name="kernels",
    title="kernels only, one after another",
    borrowed={"gemm/fp8-block": "trtllm"},
    without_units={"fp8": "0", "fp4": "0"},
)
#: Names that engines have elsewhere -> preset.
ELSEWHERE = {
    "tensorrt": "trtllm",
    **dict.fromkeys(("transformers", "huggingface", "hf"), "torch-eager"),
}


def kind_of(chip: Chip, known: Collection[str]) -> str:
    """The name of a chip, or of the one most like it, if it is known by itself; else its generation."""
    names = (chip.name, NEAREST_CHIPS.get(chip.name, chip.name))
    return next((name for name in names if name in known), chip.generation)


def names() -> tuple[str, ...]:
    """Names of all engine presets."""
    return ("kernels", *data.stems(FOLDER))


def accepted() -> tuple[str, ...]:
    """Names that --engine takes without a version: presets, and programs that one stands for."""
    return (*names(), *engine_names.named())


#: Presets and user's files that were read.
PRESETS: files.CacheOfFiles[Engine] = files.CacheOfFiles()
OWN: files.CacheOfFiles[Own] = files.CacheOfFiles()


def load(text: str) -> Engine:
    """An engine preset by name, or by name and version (`vllm==0.19`), by that of a program, or by a user's file.

    Raises UserError for an unknown name, and for a file that is none of `calibrate engine`.
    """
    if data.is_path(text):
        return _of_file(text)
    typed, version = engine_memory.split_version(text)
    name = typed.lower()
    if name == KERNELS_ONLY.name and not version:
        return KERNELS_ONLY
    if name not in names():
        program = engine_names.named().get(name)
        if program is None:
            hint = f"{', '.join(accepted())}, or a file of `llmviewer calibrate engine`"
            raise unknown("engine", typed, accepted(), elsewhere=ELSEWHERE, hint=hint)
        preset = load(program.preset_of(version))
        most = program.max_num_batched_tokens or preset.max_num_batched_tokens
        slots, logical = program.max_num_seqs or preset.max_num_seqs, program.logical_batch or preset.logical_batch
        return replace(preset, program=program, max_num_batched_tokens=most, max_num_seqs=slots, logical_batch=logical)
    path = data.folder(FOLDER) / f"{name}.yaml"
    found = replace(PRESETS.get(name, lambda: parse(name, data.read_yaml(path))), version=version)
    return found if found.is_from(found.flash_from) or not found.flash_from else replace(found, attention="eager")


def of_a_server(chip: Chip) -> str:
    """The engine of a server on a chip where none is stated: vLLM, or llama.cpp on chips that it alone is known for."""
    if chip.generation in OF_DESKS:
        return AT_A_DESK
    return next((name for name in (ENGINE, AT_A_DESK) if load(name).is_known_on(chip.generation)), ENGINE)


def _of_file(text: str) -> Engine:
    """The preset of a user's file (`calibrate engine`), with that file.  Raises UserError."""
    files.refuse_named(text)
    path = Path(text).expanduser()
    beside = {"rows": record.mapped(record.NUMBER), "files": record.listed(record.filled)}
    own = OWN.get(
        str(path.resolve()), lambda: record.read(Own, data.read_yaml(path), f"engine {text}", beside=beside, name=text)
    )
    if data.is_path(own.base):
        raise UserError(f"engine {text}: base: expected the name of a preset, got {quoted(own.base)}")
    return replace(load(own.base), own=replace(own, name=text))


def preset_and_version(text: str) -> tuple[str, str]:
    """Preset and version of what --engine names, as of `split_version`; of a user's file, those of its base."""
    return engine_memory.split_version(load(text).own.base if data.is_path(text) else text)  # type: ignore[union-attr]


def parse(name: str, content: Mapping[str, Any]) -> Engine:
    """An engine preset from the content of its file.  Raises UserError for an unknown key or a value of wrong type."""
    needed, beside = ("title", "kernels", "constants", "source"), {"rows": record.mapped(record.NUMBER)}
    return record.read(Engine, content, f"engine {name}", beside=beside, required=needed, name=name)

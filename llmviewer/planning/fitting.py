"""Models that run on a chip with a context: of each the widest format that fits and is fast enough.

Weights that alone exceed the memory are told by counts of parameters; every other model is answered at one point as by
`analyze`: one request whose prompt and answer fill the context.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from llmviewer.analysis.limits import largest_sizes
from llmviewer.api import build, devices
from llmviewer.api.calls import request
from llmviewer.api.configuration import on_devices
from llmviewer.api.trials import SIZES, run_line
from llmviewer.core import arguments
from llmviewer.core.answer import Answer
from llmviewer.core.errors import UserError, quoted
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph, Tensor, as_built
from llmviewer.core.workload import decode
from llmviewer.hardware import names
from llmviewer.hardware.chip import Chip
from llmviewer.hardware.hypothetical import figure_of
from llmviewer.language.option import Kind, Option, taking
from llmviewer.models.config import ABSENT_CONTEXT
from llmviewer.models.file_names import OF_MXFP4
from llmviewer.models.model import Model
from llmviewer.planning.accuracy import Risk, risk
from llmviewer.result.result import Result
from llmviewer.result.stages import request_at, value_at
from llmviewer.techniques.options import OPTIONS, RUN_OPTIONS, with_bits
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.timing import engine as engines
from llmviewer.timing.engine_serving import AT_A_DESK, ON_A_MAC, usual

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.calls import ChipName
    from llmviewer.api.keywords import RunOptions

SCHEMA = "llmviewer.fit/1"
#: Tokens of the answer at the end of the context.
ANSWER = 128
#: Formats of files of llama.cpp, the widest first.  Q2_K and narrower cost more than half of the perplexity again
#: (accuracy.yaml): they are tried where --quantization names them.
GGUF = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m")
#: Formats of a server where the checkpoint has 16 bit, the widest first: its own, 8 and 4 bits.
AS_STORED, FP8, W8A16, W4A16 = "none", "fp8", "w8a16", "w4a16"
#: Known models that nobody chats with: published without a chat or instruct form of the same network, or embedders.
NOT_FOR_CHAT = (
    "bloom", "bloom-7b1", "gpt-j-6b", "gpt-neox-20b", "gpt2", "gpt2-xl", "llama-13b", "llama-30b", "llama-65b",
    "llama-7b", "mamba-130m", "mamba-2.8b", "minitron-4b", "minitron-8b", "opt-1.3b", "opt-125m", "opt-13b",
    "opt-175b", "opt-30b", "opt-350m", "opt-6.7b", "opt-66b", "phi-1.5", "phi-2", "pythia-1.4b", "pythia-12b",
    "qwen3-embedding-0.6b", "qwen3-embedding-4b", "starcoder", "starcoder2-15b", "starcoder2-3b",
)  # fmt: skip
#: Options with which a device stores fewer bytes than its share of all weights.
SHRINKING = ("hot_neurons", "low_rank", "matformer", "offload", "prune", "spatial")
#: Kinds of reasons why a model is left out.
MEMORY, SHORT, SLOW, REFUSED = "memory", "context", "speed", "engine"
#: Tokens beyond all windows of attention.
LONG = 2.0**20
#: The longest context among the largest sizes.
LONGEST = "max_context_len"
_LIST = {"type": ["string", "array"], "items": {"type": "string"}}
OWN = {
    "context": Option(
        kind=Kind.WHOLE, default=8192, least=4, help="Tokens that the KV cache has to hold: 32k (k = 1024)."
    ),
    "min_speed": Option(kind=Kind.NUMBER, help="Least tokens per second of the answer: 20."),
    "models": Option(
        kind=Kind.TEXT,
        aliases=("--model",),
        help="Models to try, comma-separated: names or paths; default: known ones for chat.",
        json=_LIST,
    ),
    "quantization": replace(
        OPTIONS["quantization"],
        default=None,
        group="",
        aliases=(*OPTIONS["quantization"].aliases, "--formats"),
        help="Formats to try in this order, comma-separated: q8_0,q4_k_m; default: those of the engine, widest first.",
        json=_LIST,
    ),
    "engine": replace(
        OPTIONS["engine"], default=None, group="", help="Serving engine; default: the one that usually serves the chip."
    ),
    "top": Option(kind=Kind.WHOLE, default=20, help="Models to show, the largest first."),
}


@frozen(slots=False, eq=False)  # no slots: the longest context is kept
class FittingModel:
    """A model that runs, in one format.  also: known models with the same network.  line: words of the run."""

    name: str
    also: tuple[str, ...]
    format: str
    result: Result
    line: Mapping[str, tuple[str, ...]]

    @property
    def model(self) -> Model:
        """The model with its counts of parameters."""
        return self.result.analysis.model

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the answer per second of one user, at the full context."""
        return 1.0 / float(self.result.tpot_s)

    @cached_property
    def max_context(self) -> int | None:
        """Longest context that fits, up to the model's own; None where neither limits it."""
        a = self.result.analysis
        asked = (a.model, a.system, request_at(a, 0), self.result.token_budget, a.memory, (LONGEST,))
        most = min(largest_sizes(*asked)[LONGEST], a.model.max_context)
        return int(most) if most < ABSENT_CONTEXT else None

    @property
    def risk(self) -> Risk:
        """The known cost of the format in quality."""
        return risk("quantization", self.format)

    @property
    def command(self) -> str:
        """The command that answers this model alone."""
        return shlex.join(["llmviewer", "analyze", *(word for part in self.line.values() for word in part)])

    def to_dict(self) -> dict[str, Any]:
        """The figures of the model, in SI units."""
        memory, quality = self.result.analysis.memory, self.risk
        return {
            "model": self.name,
            "also": list(self.also),
            "parameters": self.model.parameters,
            "active_parameters": self.model.active_parameters,
            "engine": self.result.analysis.system.engine.name if self.result.efficiency != "ideal" else None,
            "quantization": self.format,
            "tokens_per_s": self.tokens_per_s,
            "tpot_s": float(self.result.tpot_s),
            "tpot_interval80_s": self.result.tpot_interval80(),
            "ttft_s": float(self.result.ttft_s),
            "total_bytes": float(value_at(memory.total_bytes, 0)),
            "budget_bytes": float(value_at(memory.budget_bytes, 0)),
            "max_context": self.max_context,
            "perplexity_increase": quality.perplexity_increase,
            "risk": quality.text,
            "source": quality.source or None,
            "command": self.command,
            "warnings": list(self.result.warnings),
        }


@frozen
class LeftOut:
    """A model that does not run.  kind: MEMORY, SHORT, SLOW or REFUSED.  text: the reason in a clause.

    error: that refuses it.
    """

    model: str
    kind: str
    text: str
    error: UserError | None = None


@frozen(repr=False)
class Fitting(Answer):
    """Models that run on a chip, the largest first.

    found: all of them.  top: how many are shown.  input_len, output_len: of the request that fills the context.
    """

    QUESTION: ClassVar[str] = "fit"
    hardware: str
    devices: int
    input_len: int
    output_len: int
    min_speed: float | None
    found: tuple[FittingModel, ...]
    left_out: tuple[LeftOut, ...]
    top: int
    notes: tuple[str, ...] = ()

    @property
    def context(self) -> int:
        """Tokens of the prompt and the answer."""
        return self.input_len + self.output_len

    @property
    def shown(self) -> tuple[FittingModel, ...]:
        """The first `top` of them."""
        return self.found[: self.top]

    @property
    def holds(self) -> bool:
        """Whether any model runs."""
        return bool(self.found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes of the search, and warnings that all models shown have in common."""
        first, *others = [one.result.warnings for one in self.shown] or [()]
        return (*self.notes, *(text for text in first if all(text in more for more in others)))

    def rows(self) -> list[dict[str, Any]]:
        """One row per model shown."""
        lists = ("also", "warnings", "tpot_interval80_s")
        return [{name: value for name, value in one.to_dict().items() if name not in lists} for one in self.shown]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "hardware": self.hardware,
            "devices": self.devices,
            "context": self.context,
            "input_len": self.input_len,
            "output_len": self.output_len,
            "min_speed": self.min_speed,
            "order": "parameters",
            "fitting": len(self.found),
            "models": [one.to_dict() for one in self.shown],
            "left_out": [{"model": one.model, "kind": one.kind, "reason": one.text} for one in self.left_out],
        }


#: A model, its name, and other names of the same network.
Candidate: TypeAlias = tuple[Model, str, tuple[str, ...]]


@frozen
class Search:
    """A chip, the lengths of a request and the options of every run.

    hardware: as it was given; a number before it (2x3090) is laid out by each engine itself.  devices: that share the
    model.
    engines: those to try, the usual one first; None: kernels alone.  formats: as stated; empty: those of the engine.
    room_bytes: most bytes that all devices hold; infinite where options change what they store.
    """

    chip: Chip
    hardware: Any
    devices: int
    input_len: int
    output_len: int
    options: Mapping[str, Any]
    engines: tuple[str | None, ...]
    formats: tuple[str, ...] = ()
    min_speed: float | None = None
    room_bytes: float = math.inf

    @property
    def is_sum(self) -> bool:
        """Whether several devices, or one and its host, are named."""
        return isinstance(self.hardware, str) and len(names.listed(self.hardware)) > 1

    def answers(self, models: Sequence[Candidate]) -> tuple[list[FittingModel | LeftOut], tuple[str, ...]]:
        """Models that run and do not, and notes; by kernels alone, as `analyze`, where no engine runs any.

        Raises UserError where all are refused.
        """
        tried = [self.answer(*one) for one in models]
        errors = [one.error for one in tried if isinstance(one, LeftOut) and one.error]
        kept = [one for one in tried if isinstance(one, FittingModel) or not (one.error or one.kind == SHORT)]
        if kept or not errors:
            return tried, ()
        if self.engines == (None,) or "engine" in self.options:
            raise errors[0]
        alone, notes = replace(self, engines=(None,)).answers(models)
        return alone, (f"{errors[0].marked}: kernels alone are timed", *notes)

    def answer(self, model: Model, name: str, also: tuple[str, ...]) -> FittingModel | LeftOut:
        """The model in its widest format that fits and is fast enough, or why it does not run."""
        if model.max_context < self.input_len + self.output_len:
            return LeftOut(model=name, kind=SHORT, text=f"its longest context is {model.max_context:,.0f} tokens")
        reasons: list[FittingModel | LeftOut] = []
        for engine in self.engines:
            refusal = self.refusal(engine, model, Graph(blocks=()))
            error = UserError(refusal)
            if not refusal:
                found, refused = self._of_engine(engine, model, name, also)
                if found is not None:
                    reasons.append(found)
                if refused is None:
                    break
                error = refused
            reasons.append(LeftOut(model=name, kind=REFUSED, text=error.marked, error=error))
        runs = (one for one in reasons if isinstance(one, FittingModel))
        return next(runs, next((one for one in reasons if isinstance(one, LeftOut) and not one.error), reasons[0]))

    def _of_engine(
        self, engine: str | None, model: Model, name: str, also: tuple[str, ...]
    ) -> tuple[FittingModel | LeftOut | None, UserError | None]:
        """The model as an engine serves it or why it is not fast or small enough, and the refusal of a format."""
        reason, refusal, workload = None, None, request(1, self.input_len, self.output_len)
        for text in self.formats or tuple(formats_of(engine, model, self.chip)):
            needed = weight_floor(model, text)
            if needed > self.room_bytes:
                reason = LeftOut(model=name, kind=MEMORY, text=f"weights of {needed / 2**30:.1f} GiB{_in(text)}")
                continue
            words = {**self.options, "quantization": text, **({"engine": engine} if engine else {})}
            try:
                result = on_devices(model, self.hardware, **words).answer(workload)
                fits = result.runs
                if refused := self.refusal(engine, model, result.analysis.whole_graph) if fits else "":
                    raise UserError(refused)
            except UserError as error:
                refusal = refusal or error
                continue
            found = self._judged(
                FittingModel(name=name, also=also, format=text, result=result, line=self._line(name, words))
            )
            if isinstance(found, FittingModel):
                return found, None
            reason = found
        return reason, refusal

    def _judged(self, one: FittingModel) -> FittingModel | LeftOut:
        """A model that was answered, or why it is not small or fast enough."""
        memory = one.result.analysis.memory
        total, budget = (float(value_at(size, 0)) / 2**30 for size in (memory.total_bytes, memory.budget_bytes))
        if not one.result.runs:
            text = f"{total:.1f} GiB of a budget of {budget:.1f} GiB{_in(one.format)}"
            return LeftOut(model=one.name, kind=MEMORY, text=text)
        if self.min_speed is not None and one.tokens_per_s < self.min_speed:
            return LeftOut(model=one.name, kind=SLOW, text=f"{one.tokens_per_s:.3g} tokens/s{_in(one.format)}")
        return one

    def _line(self, name: str, words: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        sizes = {"input_len": self.input_len, "output_len": self.output_len}
        return run_line(name, self.hardware, {**words, **sizes}, {**SIZES, "quantization": AS_STORED})

    def refusal(self, engine: str | None, model: Model, graph: Graph) -> str:
        """Why an engine that is not stated does not run a model with these options; "" where it does.

        graph: of the model in its stored formats; without blocks, formats are not looked at.
        """
        if engine is None or "engine" in self.options:
            return ""
        preset, techniques = engines.load(engine), build.options_of(self.options).techniques
        stated = {name: text for name, text in techniques.items() if text != OPTIONS[name].default}
        return preset.serves.refusal(preset.called, model.architecture, graph, stated)


def formats_of(engine: str | None, model: Model, chip: Chip) -> Iterator[str]:
    """Formats that an engine serves a model in, the widest first; none that stores more than the checkpoint does."""
    named = None if engine in (None, engines.KERNELS_ONLY.name) else engines.load(engine).name
    if (named or usual(chip)[0]).partition("==")[0] == AT_A_DESK:
        known: Sequence[str] = GGUF
        stored = () if model.checkpoint is as_built else tuple(_stored(model))  # 16 bit is wider than all
        if any(tensor.dtype.name == "mxfp4" for tensor, _ in stored):
            known = (OF_MXFP4,)
        elif stored:
            known = [name for name in known if weight_floor(model, name) < _bytes(stored)]
        yield from known or (AS_STORED,)
        return
    yield AS_STORED
    if named == ON_A_MAC and model.checkpoint is as_built:
        yield from engines.load(named).number_formats["quantization"]
    elif model.checkpoint is as_built:
        yield from (FP8 if FP8 in chip.matrix_flops_per_s else W8A16, W4A16)


def weight_floor(model: Model, text: str) -> float:
    """Bytes that the weights of a model take in a format at least; 0 for settings by layer and budgets of bits."""
    try:
        scheme = parse_scheme(text)
    except UserError:
        return 0.0
    if scheme.weights is None:
        return _bytes(_stored(model))
    parts = (scheme.weights, scheme.embedding, scheme.head, scheme.experts)
    return model.parameters * min(one.bytes for one in parts if one is not None)


def _stored(model: Model) -> Iterable[tuple[Tensor, float]]:
    return model.graph(decode(1.0, 0.0)).stored_weights()


def _bytes(stored: Iterable[tuple[Tensor, float]]) -> float:
    return float(sum(tensor.elements * tensor.dtype.bytes * layers for tensor, layers in stored))


def _in(text: str) -> str:
    return "" if text == AS_STORED else f" in {text}"


@taking(RUN_OPTIONS, {name: one for name, one in OWN.items() if name in OPTIONS})
def fit(
    hardware: ChipName,
    *,
    context: int | str = OWN["context"].default,
    min_speed: float | str | None = None,
    models: str | Sequence[str] | None = None,
    top: int | str = OWN["top"].default,
    **options: Unpack[RunOptions],
) -> Fitting:
    """Models that run on a chip with a context, the largest first, each in the widest format that fits.

    context: tokens that the KV cache holds.  min_speed: least tokens per second of the answer.  models: names or paths
    of those to try; default: every known model that people chat with.  quantization: formats to try, in this order.
    top: models to show.  options: those of `analyze`; without an engine the usual one of the chip serves.

    Raises UserError.
    """
    tokens = OWN["context"].checked("context", context)
    answer = min(ANSWER, tokens // 2)
    speed = None if min_speed is None else OWN["min_speed"].checked("min_speed", min_speed)
    options = with_bits(options)  # type: ignore[assignment]
    words = {name: value for name, value in options.items() if name != "quantization" and value is not None}
    program = engines.load(str(words.get("engine") or engines.KERNELS_ONLY.name)).program
    if program is not None and program.offloads:  # its own context is another one, and would put layers on the host
        words = {"max_model_len": tokens, "gpu_layers": "all", **words}
    search = _search(
        hardware,
        words,
        input_len=tokens - answer,
        output_len=answer,
        formats=_listed("quantization", options.get("quantization")),
        min_speed=speed,
    )
    tried, notes = search.answers(tuple(_models(_listed("models", models), words, tokens)))
    found = [one for one in tried if isinstance(one, FittingModel)]
    found.sort(key=lambda one: (-one.model.parameters, -one.tokens_per_s, one.name))
    return Fitting(
        hardware=search.hardware if search.is_sum else search.chip.name,
        devices=search.devices,
        input_len=search.input_len,
        output_len=search.output_len,
        min_speed=speed,
        found=tuple(found),
        left_out=tuple(one for one in tried if isinstance(one, LeftOut)),
        notes=notes,
        top=OWN["top"].checked("top", top),
    )


def _search(hardware: Any, words: Mapping[str, Any], formats: tuple[str, ...], **more: Any) -> Search:
    """The search on a chip, whose memory bounds the weights unless options change what a device stores."""
    several, rest, words = devices.stated(hardware, words)
    if several is not None:
        return _search_of_several(several, hardware, words, formats, **more)
    name, laid_out, count = build.with_devices(rest, words)
    chip, options = build.chip_of(name), build.options_of(laid_out)
    if (replicas := options.techniques.get("data_parallel_size", "1")) != "1":
        raise UserError(f"--data-parallel-size is {quoted(replicas)}; fit asks for one request, of one replica")
    if options.model_set != OPTIONS["model_set"].default:
        raise UserError(f"--model-set is {quoted(options.model_set)}; fit tries models as their configs are")
    for text in formats:
        build.system(chip, build.options_of({**words, "quantization": text}))  # so that each is refused by name
    tried: tuple[str | None, ...] = (words.get("engine"),)
    if words.get("engine") is None and options.efficiency != "ideal":
        serving = (name for name in usual(chip) if chip.generation in engines.load(name).serves.generations)
        tried = tuple(serving) or tried
    system = build.system(chip, options)
    build.check_devices(name, count, system.parallelism.devices)
    room = float(figure_of(system.chip, "capacity") or math.inf) * float(system.parallelism.devices)
    shrinks = any(options.techniques.get(name, OPTIONS[name].default) != OPTIONS[name].default for name in SHRINKING)
    if shrinks or options.gpu_layers != OPTIONS["gpu_layers"].default:
        room = math.inf
    return Search(
        chip=chip, hardware=hardware, devices=int(system.parallelism.devices), options=words, engines=tried,
        formats=formats, room_bytes=room, **more,
    )  # fmt: skip


def _search_of_several(
    several: devices.Devices, hardware: Any, words: Mapping[str, Any], formats: tuple[str, ...], **more: Any
) -> Search:
    """The search on unlike devices, by an engine that divides layers among them."""
    devices.check_engine(hardware, words)
    return Search(
        chip=several.chips[0], hardware=hardware, devices=len(several.chips), options=words,
        engines=(words.get("engine", AT_A_DESK),), formats=formats,
        room_bytes=sum(float(figure_of(chip, "capacity") or math.inf) for chip in several.chips), **more,
    )  # fmt: skip


def _listed(name: str, value: str | float | Sequence[str] | None) -> tuple[str, ...]:
    """The words of a list, or of a text with commas; empty if none is given."""
    if value is None:
        return ()
    words = value.split(",") if isinstance(value, str) else arguments.words(name, value)
    found = tuple(word.strip() for word in words)
    if not all(found):
        raise UserError(f"{name} has an empty value; give names with commas between them")
    return found


def _models(stated: Sequence[str], words: Mapping[str, Any], context: int) -> Iterator[Candidate]:
    """Models to try, their names, and other names of the same network.  stated: all of them, as they are.

    A network has the last name by the alphabet, which is that of its latest release, of those that have the context.
    """
    options = build.options_of(words)
    if stated:
        yield from ((build.model_of(name, options), name, ()) for name in stated)
        return
    same: dict[Any, list[tuple[str, Model]]] = {}
    for name in (name for name in build.list_models() if name not in NOT_FOR_CHAT):
        model = build.model_of(name, options)
        if not model.is_encoder and model.encoder is None:
            key = (model.architecture, model.hidden, model.parameters, model.dtype.name)
            same.setdefault(key, []).append((name, model))
    for alike in same.values():
        by_work: dict[float, list[tuple[str, Model]]] = {}
        for name, model in alike:
            by_work.setdefault(_work(model) if len(alike) > 1 else 0.0, []).append((name, model))
        for group in by_work.values():
            name, model = max(group, key=lambda one: (min(one[1].max_context, context), one[0]))
            yield model, name, tuple(other for other, _ in group if other != name)


def _work(model: Model) -> float:
    """Work of a token after a long context, in which experts and windows of attention differ [FLOP]."""
    return float(sum(operator.flops * block.repeats for block, operator in model.graph(decode(1.0, LONG))))

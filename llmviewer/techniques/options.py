"""Options of a run, each declared once; the command line, the Python signatures and docs/options.md read them here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.techniques.panels import Panel, panel_of
from llmviewer.techniques.registry import TECHNIQUES


class ValueKind(Enum):
    """Type of an option's value; the enum's value is what `--help` calls it."""

    WHOLE = "INTEGER"
    FRACTION = "FLOAT"
    WORD = "TEXT"
    WORDS = "WORDS"
    SWITCH = "BOOLEAN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Declaration of one option.

    group: workload, run or technique.  least: smallest whole number.  array: Python callers may pass a sequence, one
    value per point.  choices: known values; `closed` refuses others.  aliases: further spellings on the command line,
    after vLLM's names.  separator: between several values in sweeps and comparisons; "" where only one is allowed.
    panel: where `--help` shows it.  repeated: the command line takes it several times.
    """

    kind: ValueKind
    default: Any
    help: str
    group: str = "run"
    least: int = 1
    array: bool = False
    choices: tuple[str, ...] = ()
    closed: bool = False
    aliases: tuple[str, ...] = ()
    separator: str = ""
    panel: Panel = Panel.KERNELS
    repeated: bool = False

    def spellings(self, name: str) -> tuple[str, ...]:
        """Spellings on the command line, the main one first; an option that is repeated is named in the singular."""
        singular = name.removesuffix("s") if self.kind is ValueKind.WORDS else name
        return ("--" + singular.replace("_", "-"), *self.aliases)

    def checked(self, name: str, value: object) -> Any:
        """The value of a single point.  Raises UserError for a wrong type, a value out of range or not allowed."""
        if value is None and self.default is None:
            return None
        if self.kind is ValueKind.WHOLE:
            return arguments.whole_number(name, value, minimum=self.least)
        if self.kind is ValueKind.FRACTION:
            return arguments.fraction(name, value)
        if self.kind is ValueKind.WORDS:
            return arguments.words(name, value)
        if self.kind is ValueKind.SWITCH:
            return arguments.switch(name, value)
        return arguments.word(name, value, self.choices if self.closed else ())


def _declared(declaration: Declaration) -> Any:
    """Field of `Options` with its declaration."""
    return field(default=declaration.default, metadata={"option": declaration})


def _word(default: str, summary: str, **more: Any) -> Any:
    return _declared(Declaration(kind=ValueKind.WORD, default=default, help=summary, **more))


def _limit(summary: str) -> Any:
    """Field of a whole number that an engine has unless the user sets it."""
    return _declared(Declaration(kind=ValueKind.WHOLE, default=None, help=summary, panel=Panel.MEMORY))


#: Options that only an engine has.
ENGINE_OPTIONS = ("max_num_seqs", "max_model_len", "enforce_eager")


@dataclass(frozen=True, slots=True, kw_only=True)
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
        "Serving engine, with calibrated: kernels (none), vllm, vllm==0.19, trtllm ...",
        separator=",",
        panel=Panel.COMMON,
    )
    profile: str = _word("", "A profile of your own, from `llmviewer calibrate fit`.")
    gpu_memory_utilization: float = _declared(
        Declaration(
            kind=ValueKind.FRACTION,
            default=0.9,
            help="Fraction of the memory that an engine may use, 0 to 1.",
            panel=Panel.MEMORY,
        )
    )
    max_num_batched_tokens: int | None = _declared(
        Declaration(
            kind=ValueKind.WHOLE,
            default=None,
            help="Most prompt tokens of one prefill pass; 0 = no limit; default: the engine's.",
            least=0,
            panel=Panel.GENERATION,
        )
    )
    max_num_seqs: int | None = _limit("Most sequences that the engine runs concurrently; default: the engine's.")
    max_model_len: int | None = _limit("Longest context that the engine serves; default: the model's.")
    enforce_eager: bool = _declared(
        Declaration(
            kind=ValueKind.SWITCH,
            default=False,
            help="The engine captures no CUDA graphs.",
            panel=Panel.MEMORY,
        )
    )
    ignore_fields: tuple[str, ...] = _declared(
        Declaration(
            kind=ValueKind.WORDS,
            default=(),
            help="Ignore this unknown field of the config.",
            panel=Panel.OUTPUT,
        )
    )
    trace_model: bool = _declared(
        Declaration(
            kind=ValueKind.SWITCH,
            default=False,
            help="Read the model from a traced pass of transformers' own class (extra `trace`).",
            panel=Panel.OUTPUT,
        )
    )
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


def _size(default: int, summary: str, *aliases: str) -> Declaration:
    return Declaration(
        kind=ValueKind.WHOLE,
        default=default,
        help=summary,
        group="workload",
        array=True,
        aliases=aliases,
        panel=Panel.COMMON,
    )


#: Sizes of the workload.
WORKLOAD: dict[str, Declaration] = {
    "batch_size": _size(1, "Sequences in the batch.", "--batch"),
    "input_len": _size(1024, "Prompt tokens of each sequence: 1024, 4k (k = 1024).", "--random-input-len"),
    "output_len": _size(128, "Tokens each sequence generates.", "--random-output-len"),
}
#: Fields of `Options`.
RUN: dict[str, Declaration] = {
    entry.name: entry.metadata["option"] for entry in fields(Options) if "option" in entry.metadata
}
#: Every option of a run by name; techniques come last, in the order of application.
OPTIONS: dict[str, Declaration] = {
    **WORKLOAD,
    **RUN,
    **{
        name: Declaration(
            kind=ValueKind.WORD,
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

"""Techniques: changes of the system that runs a model, with formula, source and example; parsing of their options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from enum import IntEnum, auto
from functools import partial
from inspect import getdoc
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.arguments import parse_size
from llmviewer.core.errors import UserError, naming, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Pass
from llmviewer.hardware.chip import Chip
from llmviewer.language.grammar import Grammar, Number, RefusedError
from llmviewer.models.model import Model
from llmviewer.serving.generation import Generation, GenerationScheme

#: A whole number, which may be written as a size: 4k.
Whole = partial(Number, whole=True, number=parse_size)
P = ParamSpec("P")
R = TypeVar("R")
#: The effect of a technique: most add a graph pass, others change the KV cache, the devices or the generation.
Change: TypeAlias = Callable[[System], System]


def unchanged(system: System) -> System:
    """The system as it is: the change by an option whose value changes nothing."""
    return system


@frozen
class Technique:
    """An entry of the registry.

    kind: compression, sparsity, fusion, attention, kv cache, parallelism, spatial ...  summary: one sentence.
    parameters: name within the option's value -> meaning.  formula: the counts or times it changes.  source: where the
    formula is published.  example: a complete command line.  make: value of the option -> change; raises UserError for
    bad values, and the change raises it for impossible combinations.
    """

    name: str
    kind: str
    summary: str
    formula: str
    source: str
    example: str
    make: Callable[[str], Change]
    parameters: Mapping[str, str] = field(default_factory=dict)


@frozen
class Declared(Technique, Generic[P, R]):
    """A technique declared by a function: its signature is the grammar of the option, its docstring the summary.

    function: it makes a change, or what a change is made of, from the parameters.
    """

    function: Callable[P, R]
    grammar: Grammar

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function with typed parameters."""
        return self.function(*args, **kwargs)


def technique(
    name: str, *, kind: str, formula: str, source: str, example: str, where: str = ""
) -> Callable[[Callable[P, Change]], Declared[P, Change]]:
    """Declare the technique of an option by a function of its parameters.

    where: the option as errors name it, if it has another name.  A parameter `typed` without a form gets the text of
    the option as it was typed.
    """
    where = where or f"--{name.replace('_', '-')}"

    def declare(function: Callable[P, Change]) -> Declared[P, Change]:
        grammar = Grammar.of(function)

        def make(text: str) -> Change:
            return called(function, where, grammar, text)

        return declared(function, grammar, make, name=name, kind=kind, formula=formula, source=source, example=example)

    return declare


def declared(
    function: Callable[P, R], grammar: Grammar, make: Callable[[str], Change], *, example: str, **words: str
) -> Declared[P, R]:
    """The technique of a function.  example: words after `llmviewer analyze`.  words: name, kind, formula, source."""
    summary = " ".join((getdoc(function) or "").partition("\n\n")[0].split())
    words["example"] = f"llmviewer analyze {example}"
    return Declared(function=function, grammar=grammar, make=make, summary=summary, parameters=grammar.help(), **words)


def called(function: Callable[..., R], where: str, grammar: Grammar, text: str) -> R:
    """The result of a function for the text of its parameters.  where: the option, which errors name."""
    arguments = read(where, grammar, text)
    if "typed" in function.__annotations__:
        arguments["typed"] = text
    with naming(where):
        return function(**arguments)


def read(where: str, grammar: Grammar, text: str) -> dict[str, Any]:
    """The arguments in a text.  where: the option.  Raises UserError."""
    with refusing(where):
        return grammar.read(text)


@contextmanager
def refusing(where: str) -> Iterator[None]:
    """Make what a grammar refuses an error that names the option, what is allowed and the nearest match."""
    try:
        with naming(where):
            yield
    except RefusedError as refused:
        name, word = refused.subject, refused.word
        if word is None:
            separator = "," if " " in where else " "  # `where` may end in a method's name: --speculative self
            words = where if f" {name}=" in where else f"{where}{separator}{name}=..."
            raise UserError(f"{where}: {name} is missing; write {words} ({refused.allowed})") from None
        if name == "parameter":
            raise unknown(f"parameter of {where}", word, refused.known) from None
        if refused.known:
            raise unknown(f"value of {name}", word, refused.known, where=where) from None
        raise UserError(f"{where}: {name} is {quoted(word)}; {refused.allowed}") from None
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


class SharedBy(IntEnum):
    """Draft models that a technique applies to in addition to the target, from most to none.

    ENGINE: all draft models, because they run in the same engine.  WEIGHTS: draft models that use weights of the
    target: it changes how these are stored or which of them run.  LAYERS: draft models that run all layers of the
    target, because the technique depends on their number.  TARGET: none.
    """

    ENGINE = auto()
    WEIGHTS = auto()
    LAYERS = auto()
    TARGET = auto()


@frozen(kw_only=False)
class TechniqueOption:
    """Command-line option of a technique.

    entry: module within `llmviewer.techniques`, or `module:NAME`, of its Technique; NAME is TECHNIQUE by default.
    help: one line.  off: the value that disables it.  default: its value if not given.  aliases: further spellings.
    separator: between several values of a sweep; `;` where one value may contain commas.  repeated: the command line
    takes it several times, each with values of its own.
    """

    entry: str
    shared_by: SharedBy
    help: str
    off: str = "none"
    default: str = "none"
    aliases: tuple[str, ...] = ()
    separator: str = ","
    repeated: bool = False


def add_pass(name: str, make: Callable[[Chip], Pass], caveat: str = "") -> Change:
    """A change that adds a graph pass, listed under `name`.  caveat: what results assume with it."""
    applied = AppliedTechnique(name=name, make=make, caveat=caveat)
    return lambda system: replace(system, passes=(*system.passes, applied))


def change_kv_cache(name: str, **fields: float | bool) -> Change:
    """A change of fields of KvCache, listed under `name`; operators are unchanged."""

    def change(system: System) -> System:
        cache = replace(system.kv_cache, **fields)  # type: ignore[arg-type]
        return replace(system, kv_cache=cache).listing(name)

    return change


def change_generation(
    name: str,
    make: Callable[[Model], Generation],
    candidates: Sequence[GenerationScheme] = (),
    alone: str = "",
) -> Change:
    """A change of how tokens are generated, listed under `name`.

    candidates: alternatives to `make`, of which every point uses the fastest; empty for none.  alone: as in
    GenerationScheme.
    """

    def change(system: System) -> System:
        if system.scheme is not None:
            raise UserError(f"{name} and {system.scheme.name} both change how tokens are generated; remove one")
        scheme = GenerationScheme(name=name, make=make, candidates=tuple(candidates), alone=alone)
        return replace(system, scheme=scheme).listing(name)

    return change

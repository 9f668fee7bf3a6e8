"""What a technique is: a change of the system a model runs on, and what to say of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from llmviewer.analysis.system import AppliedTechnique, System
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.ir import Pass, as_built
from llmviewer.hardware.chip import Chip
from llmviewer.models.model import Model
from llmviewer.serving.generation import Generation, GenerationScheme

#: What a technique does: most add a pass, some say how memory is kept or how many devices share the work.
Change: TypeAlias = Callable[[System], System]


@dataclass(frozen=True, slots=True, kw_only=True)
class Technique:
    """An entry of the registry.

    kind: compression, sparsity, fusion, attention, kv cache, parallelism, spatial ...  summary: a sentence.
    parameters: what may stand in the option's text -> what it means.  formula, source: what it changes, and where that
    is written.  example: a complete command line.  make: the option's text -> the change; raises UserError for bad
    values, and the change itself for a combination that cannot be.
    """

    name: str
    kind: str
    summary: str
    formula: str
    source: str
    example: str
    make: Callable[[str], Change]
    parameters: Mapping[str, str] = field(default_factory=dict)


def adding(name: str, make: Callable[[Chip], Pass]) -> Change:
    """The change that adds a pass, listed under `name`."""
    return lambda system: replace(system, passes=(*system.passes, AppliedTechnique(name=name, make=make)))


def keeping(name: str, **fields: float | bool) -> Change:
    """The change of how the cache is kept (fields of KvCache), listed under `name`; operators stay as they are."""

    def change(system: System) -> System:
        cache = replace(system.kv_cache, **fields)  # type: ignore[arg-type]
        return replace(
            system, kv_cache=cache, passes=(*system.passes, AppliedTechnique(name=name, make=lambda _: as_built))
        )

    return change


def generating(name: str, make: Callable[[Model], Generation], candidates: Sequence[GenerationScheme] = ()) -> Change:
    """The change of how tokens are generated, listed under `name`.  candidates: of which every point takes the best."""

    def change(system: System) -> System:
        if system.scheme is not None:
            raise UserError(f"{name} and {system.scheme.name} both say how tokens are generated; leave out one")
        scheme = GenerationScheme(name=name, make=make, candidates=tuple(candidates))
        return replace(
            system, scheme=scheme, passes=(*system.passes, AppliedTechnique(name=name, make=lambda _: as_built))
        )

    return change


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One `name=number` of a technique's option.

    default: None where it must be given.  low, high: bounds, both included; whole: only whole numbers.
    """

    name: str
    default: float | None = None
    low: float = 0.0
    high: float = 1e9
    whole: bool = False

    def read(self, text: str, where: str) -> float:
        """The number, checked."""
        kind = "a whole number" if self.whole else "a number"
        allowed = f"allowed: {kind} from {self.low:g} to {self.high:,.10g}"
        try:
            number = float(text)
        except ValueError:
            raise UserError(f"{where}: {self.name} is {quoted(text)}; {allowed}") from None
        if not self.low <= number <= self.high or (self.whole and number != int(number)):
            raise UserError(f"{where}: {self.name} is {quoted(text)}; {allowed}")
        return number

    def of(self, given: Mapping[str, str], where: str) -> float:
        """The number that is given under this name, or the default."""
        if self.name in given:
            return self.read(given[self.name], where)
        if self.default is None:
            after = "," if " " in where else " "  # a method's name comes before its parameters
            raise UserError(f"{where}: {self.name} is missing; write {where}{after}{self.name}=...")
        return self.default


def named(where: str, text: str, known: Collection[str], first: str = "") -> dict[str, str]:
    """`16,adapters=4` -> {"rank": "16", "adapters": "4"} for `first` rank: what the first piece may be without a name.

    where: the option, as messages call it (`--lora`).  known: allowed names.
    """
    given: dict[str, str] = {}
    for at, part in enumerate(piece.strip() for piece in text.split(",") if text.strip()):
        if not part:
            raise UserError(f"{where}: {quoted(text)} has nothing between two commas")
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and at == 0 and first:
            name, value = first, part
        if name not in known:
            raise unknown(f"parameter of {where}", name, known)
        if not equals and name != first:
            raise UserError(f"{where}: {name} needs a value; write {name}=...")
        if name in given:
            raise UserError(f"{where}: {name} is given twice")
        given[name] = value
    return given


def numbers(where: str, text: str, parameters: tuple[Parameter, ...]) -> Mapping[str, float]:
    """`16,adapters=4` -> {"rank": 16.0, "adapters": 4.0}, defaults filled in.

    The first parameter may be given without its name.  where: the option, as messages call it (`--lora`).
    """
    known = {parameter.name: parameter for parameter in parameters}
    given = named(where, text, known, parameters[0].name)
    return {name: parameter.of(given, where) for name, parameter in known.items()}

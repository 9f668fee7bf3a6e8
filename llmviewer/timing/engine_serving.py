"""The chips, models, number formats and options with which an engine serves, and which engine is taken where none is.

One rule holds for every answer without a stated engine: in a server vLLM; at a desk (Apple, Ryzen AI, and chips whose
computer is a desktop) llama.cpp first, of which the published runs on such chips are; and where the first of the two
does not run something, by what its preset says, the other, or MLX LM on a Mac.  `simulate` and `size`, which ask for a
server, take vLLM on cards of desktops too (engine.of_a_server).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph, Role
from llmviewer.core.kinds import Kind
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.language.record import stated

#: Engine of a server, that of a desk, and that of Macs for formats that the latter does not have.
ENGINE, AT_A_DESK, ON_A_MAC = "vllm", "llama.cpp", "mlx-lm"
#: Beginning of the names of hosts that are desktops (hardware_specs/hosts), and generations of chips that share the
#: memory of a computer at a desk.
DESKTOP, OF_DESKS = "desktop", ("apple", "rdna3.5")
#: Options that state the chip, its wires and the requests, and those whose formats the graph shows: of every engine.
OF_EVERY_ENGINE = ("set", "power_limit", "link", "network", "expert_skew", "quantization", "kv_cache_dtype")


def usual(chip: Chip) -> tuple[str, ...]:
    """The engines that may serve a chip, the usual one first."""
    if chip.maker == "Apple":
        return AT_A_DESK, ON_A_MAC
    at_a_desk = chip.generation in OF_DESKS or chip.default_host.startswith(DESKTOP)
    return (AT_A_DESK, ENGINE) if at_a_desk else (ENGINE, AT_A_DESK)


@frozen
class Serves:
    """The work that an engine takes, by its own pages.

    generations: of chips.  without: architectures and products (`int4 by int8`) that it does not run.
    formats: role of tensors -> names of their number formats before a dash.  options: of a run that it has -> first
    words of their values; none: any.
    """

    generations: Sequence[str]
    without: Sequence[str] = ()
    formats: Mapping[str, Sequence[str]] = field(
        metadata=stated(record.mapped(record.listed(), [role.value for role in Role]))
    )
    options: Mapping[str, Sequence[str]]
    source: str

    def refusal(self, called: str, architecture: str, graph: Graph, options: Mapping[str, str]) -> str:
        """Why the engine does not run a model so; "" where it does.

        called: the engine in the sentence.  graph: of the whole model in its stored formats.  options: texts of the
        options that differ from their defaults.
        """
        if architecture in self.without:
            return f"{called} does not run {architecture}"
        for name, text in options.items():  # first, because copies of offloaded tensors have formats of their own
            word = text.partition(",")[0].partition("=")[0]
            words = (word,) if name in OF_EVERY_ENGINE else self.options.get(name)
            if words is None or (words and word not in words):
                return f"the preset of {called} does not cover --{name.replace('_', '-')} {text}"
        if pair := next((one for one in _products(graph) if one in self.without), ""):
            return f"{called} has no kernels for products of {pair}"
        for role, formats in _formats(graph).items():
            if unknown := sorted(one for one in formats if one.partition("-")[0] not in self.formats.get(role, ())):
                return f"{called} has no kernels for {role}s in {unknown[0]}"
        return ""


#: Of an engine that is taken only where it is stated.
NOTHING = Serves(generations=(), formats={}, options={}, source="")


def _formats(graph: Graph) -> dict[str, set[str]]:
    """Role of tensors -> names of their number formats; copies count bytes."""
    found: dict[str, set[str]] = {}
    for operator in (one for _, one in graph if one.kind is not Kind.COPY):
        for access in (*operator.reads, *operator.writes):
            found.setdefault(access.tensor.role.value, set()).add(access.tensor.dtype.name)
    return found


def _products(graph: Graph) -> Iterator[str]:
    """Number formats of weights and of the inputs that they are multiplied by: `int4 by int8`."""
    for _, operator in graph:
        if operator.kind is Kind.GEMM:
            read = {access.tensor.role: access.tensor.dtype.name.partition("-")[0] for access in operator.reads}
            yield f"{read.get(Role.WEIGHT)} by {read.get(Role.ACTIVATION)}"

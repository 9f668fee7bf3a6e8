"""Names of programs that are no presets: those that run a preset's code, and those to which one is the nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from llmviewer.core import data, files
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.language.record import stated
from llmviewer.timing import engine_backends

FOLDER = "calibrate/engines"


@frozen
class Named:
    """A program by its name in --engine.  preset: whose kernels and times it takes.

    nearest: why this preset is the nearest to a program that nobody here measured; empty: the program runs its code.
    makers: of the chips that it runs on; none: those of the preset.  max_num_batched_tokens: most prompt tokens of a
    pass by default, where they are not the preset's.  same_versions, formats: whether its versions, and what it means
    by the names of formats, are those of the preset.
    max_num_seqs, logical_batch: requests that it answers at once and tokens of a step by default, where they are not
    the preset's; slots_source: where that stands.  contexts: its default context, as pairs of the GPU memory from which
    it holds [GiB] and tokens, ascending; it and a stated context are of each slot.  offloads: whether layers that do
    not fit are on the host by default.  whole_windows: whether layers with a window allocate the whole context.
    backends: as of the preset, where they are others.
    """

    name: str
    preset: str
    title: str
    source: str
    nearest: str = ""
    makers: Sequence[str] = field(default=(), metadata=stated(record.listed(record.filled)))
    max_num_batched_tokens: float | None = None
    max_num_seqs: float | None = None
    logical_batch: float | None = None
    slots_source: str = ""
    contexts: Sequence[Sequence[float]] = field(default=(), metadata=stated(record.listed(record.numbers(2))))
    context_source: str = ""
    offloads: bool = False
    whole_windows: bool = False
    same_versions: bool = False
    formats: bool = False
    backends: Mapping[str, Sequence[str]] = field(default_factory=dict, metadata=stated(engine_backends.TABLE))
    backends_source: str = ""

    def check(self, chip: Chip) -> None:
        """Raise UserError if the program does not run on the chip."""
        check_maker(self.name, self.title, self.makers, chip)

    def preset_of(self, version: str) -> str:
        """The preset as --engine names it, with the version of the program.  Raises UserError if it has its own."""
        if version and not self.same_versions:
            raise UserError(f"engine {self.name}=={version}: its versions are not told apart; give {self.name} alone")
        return f"{self.preset}=={version}" if version else self.preset

    def default_context(self, memory_bytes: float) -> float | None:
        """Tokens of its default context on GPUs with so much memory together [byte]; None where it has none."""
        tiers = [tokens for least_gib, tokens in self.contexts if memory_bytes >= least_gib * 2.0**30]
        return tiers[-1] if tiers else None

    def allocation_note(self, context: float | None, slots: float, longest: float) -> str:
        """The note of an answer on the default context that it allocates, "" for another one.

        longest: context of the model.
        """
        if context not in {min(tokens, longest) for _, tokens in self.contexts}:
            return ""
        tiers = ", ".join(f"{tokens:,.0f} from {least:g} GiB on" for least, tokens in self.contexts[1:])
        shared = "1 slot (-np)" if slots == 1.0 or slots == float("inf") else f"each of {slots:.0f} slots"
        return (
            f"engine {self.name}: a context of {context:,.0f} tokens is allocated for {shared}; default "
            f"{self.contexts[0][1]:,.0f}, {tiers} of GPU memory; -c states another"
        )

    @property
    def note(self) -> str:
        """The note of an answer on a program that nobody here measured; "" for one that runs the preset's code."""
        if not self.nearest:
            return ""
        return f"engine {self.name}: {self.title} was not measured here; nearest is {self.preset}: {self.nearest}"


def check_maker(name: str, title: str, makers: Sequence[str], chip: Chip) -> None:
    """Raise UserError if an engine or program runs on chips of other makers; none given: on those of all."""
    if makers and chip.maker not in makers:
        known = " and ".join(makers)
        raise UserError(f"engine {name}: {title} runs on chips of {known}, {chip.name} is of {chip.maker}")


_NAMES: files.CacheOfFiles[Mapping[str, Named]] = files.CacheOfFiles()


def named() -> Mapping[str, Named]:
    """Every such program by its name."""
    path = data.folder(FOLDER) / data.ALIASES

    def read() -> Mapping[str, Named]:
        content = data.read_yaml(path)
        return {
            name: record.read(Named, entry, f"{data.ALIASES}: {name}", name=name) for name, entry in content.items()
        }

    return _NAMES.get(str(path), read)

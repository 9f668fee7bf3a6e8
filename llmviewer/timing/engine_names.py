"""Names of programs that are no presets: those that run a preset's code, and those to which one is the nearest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llmviewer.core import data, files
from llmviewer.core.errors import UserError
from llmviewer.hardware.chip import Chip
from llmviewer.language import record
from llmviewer.language.record import stated

FOLDER = "calibrate/engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A program by its name in --engine.  preset: whose kernels and times it takes.

    nearest: why this preset is the nearest to a program that nobody here measured; empty: the program runs its code.
    makers: of the chips that it runs on; none: those of the preset.  max_num_batched_tokens: most prompt tokens of a
    pass by default, where they are not the preset's.  same_versions: whether its versions are those of the preset.
    max_num_seqs, logical_batch: requests that it answers at once and tokens of a step by default, where they are not
    the preset's; slots_source: where that stands.
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
    same_versions: bool = False

    def check(self, chip: Chip) -> None:
        """Raise UserError if the program does not run on the chip."""
        check_maker(self.name, self.title, self.makers, chip)

    def preset_of(self, version: str) -> str:
        """The preset as --engine names it, with the version of the program.  Raises UserError if it has its own."""
        if version and not self.same_versions:
            raise UserError(f"engine {self.name}=={version}: its versions are not told apart; give {self.name} alone")
        return f"{self.preset}=={version}" if version else self.preset

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

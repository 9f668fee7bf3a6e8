"""The calibrated efficiency: what kernels of this kind were measured to reach, and how far off that may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError, shown, unknown
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip
from llmviewer.ops.attention import AttentionShape
from llmviewer.timing import profile as profiles
from llmviewer.timing.efficiency import Rates
from llmviewer.timing.kernels import attention, attention_decode, attention_prefill
from llmviewer.timing.kernels.cross_generation import carried
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.kernels.family import Family
from llmviewer.timing.profile import Fit, Profile
from llmviewer.timing.regimes import REGIMES, outside, regime_of
from llmviewer.timing.roofline import Timing

#: Whose kernels the constants are of.
BASES = ("measured", "other engine", "transferred", "transferred afar", "assumed")
#: Chips of one generation run the same programs: an engine's own kernels of another of them are nearer than another
#: engine's of this very chip (docs/calibration.md: decode attention on an H200).
BASES_OF_A_GENERATION = ("measured", "transferred")
#: How far off that puts a whole fit: half the 80 % interval of log(measured / predicted), by BASES, by family.  Engines
#: differ as the README of the measured tables says (products 3 to 6 %, attention 15 to 30 %); products of an H100 by
#: constants of an A100 and the other way round miss by 12 to 24 %; the rest is what we aim at.
SHIFTS: dict[str, tuple[float, ...]] = {
    "gemm": (0.0, 0.05, 0.08, 0.22, 0.5),
    "attention_prefill": (0.0, 0.18, 0.15, 0.35, 0.6),
    "attention_decode": (0.0, 0.18, 0.15, 0.35, 0.6),
    "collective": (0.0, 0.2, 0.1, 0.3, 0.7),
}
SHIFTS_OF_OTHERS = (0.0, 0.1, 0.1, 0.25, 0.6)
#: Half the 95 % interval over half the 80 % one, of a normal distribution; in the order of QUANTILES.
SIGNS = np.array([-1.0, -1.0, 1.0, 1.0])[:, None]
BEYOND_80 = (1.53, 1.0, 1.0, 1.53)
#: Ends the names of engines whose kernels a host launched one by one: they serve only whoever asks for them.
HOST_TIMED = ("-host", "-eager")
#: Constants are written in five digits; a bound may be rounded past itself.
ROUNDED = 1e-4
#: Residuals used where a fit had no held-out row of a regime: QUANTILES of measured / predicted.
UNKNOWN_SPREAD = (0.5, 0.7, 1.4, 2.0)
#: The same of copies and of what a host runs, which are priced by data sheets: a guess.
UNTIMED = (1.0, 1.0, 1.6, 2.5)
#: (profile, family, variants) -> (variant, engine) of its fits, nearest first.
Kept = Callable[[Profile, str, Iterable[str]], Iterator[tuple[str, str]]]
UNTIMED_NOTE = f"copies and what the host runs: rates of data sheets, up to {UNTIMED[-1]:g} times as slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The constants an operator gets, and where they come from: one of BASES, and the profile's chip."""

    fit: Fit
    basis: str
    chip: str

    @property
    def shift(self) -> float:
        """Half an 80 % interval of log(measured / predicted) for coming from elsewhere."""
        return SHIFTS.get(self.fit.family, SHIFTS_OF_OTHERS)[BASES.index(self.basis)]

    def described(self) -> dict[str, Any]:
        """As results print it: basis, whose constants, and their error on rows that they were not fitted on."""
        error = dict(self.fit.error.get("all", {}))
        return {"basis": self.basis, "chip": self.chip, "fit": self.fit.key, "error": error}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibrated:
    """Efficiency from profiles, the chip's own first.  engine: whose kernels, where several were measured.

    borrowed: family/variant -> the engine whose kernels of it run instead.  given: of the sources those that a caller
    brings, which come first whoever's kernels they hold.
    """

    sources: tuple[Profile, ...]
    engine: str = "vllm"
    borrowed: Mapping[str, str] = field(default_factory=dict)
    chip: str = ""
    generation: str = ""
    given: int = 0
    known: dict[str, Found] = field(default_factory=dict)

    def __call__(self, operator: Operator, chip: Chip) -> Rates:
        """Attainable rates of an operator."""
        names = families_of(operator)
        constants = [self.found(name, operator).fit.constants for name in names]
        if len(names) == 1:
            return FAMILIES[names[0]].rates(operator, chip, constants[0])
        prompts, steps = constants
        return attention.rates(operator, chip, (attention_prefill.part, prompts), (attention_decode.part, steps))

    def found(self, family: str, operator: Operator) -> Found:
        """The constants of a family for an operator; looked up once per variant."""
        variant = FAMILIES[family].variant(operator)
        key = f"{family}/{variant}"
        if key not in self.known:
            lender = replace(self, engine=self.borrowed.get(key, self.engine))
            self.known[key] = lender._search(family, variant)
        return self.known[key]

    def basis(self, operator: Operator) -> Found:
        """The constants of the first family of an operator: what its interval is named after."""
        return self.found(families_of(operator)[0], operator)

    def _search(self, family: str, variant: str) -> Found:
        same = (variant, *FAMILIES[family].twins.get(variant, ()))
        for source, kept in self._asked():
            near = self._basis(source)
            for name, engine in kept(source, family, same):
                basis = "other engine" if near == "measured" and engine not in self._names else near
                return self._taken(source, f"{family}/{name}/{engine}", basis)
        for names in (FAMILIES[family].nearest.get(variant, ()), None):
            for source in self.sources:
                for name, engine in self._kept(source, family, source.variants(family) if names is None else names):
                    return self._taken(source, f"{family}/{name}/{engine}", "assumed")
        if FAMILIES[family].unmeasured:
            return Found(fit=unmeasured(FAMILIES[family]), basis="assumed", chip=self.chip)
        raise UserError(f"no profile has constants for {family}; --efficiency ideal needs none")

    def _asked(self) -> Iterator[tuple[Profile, Kept]]:
        """Whom to ask and for which of its kernels: what is given, then this engine's own of a generation, then all."""
        yield from ((source, self._kept) for source in self.sources[: self.given])
        yield from ((source, self._own) for source in self.sources if self._basis(source) in BASES_OF_A_GENERATION)
        yield from ((source, self._kept) for source in self.sources)

    @property
    def _names(self) -> tuple[str, str]:
        """This engine; `sglang` for a kernel of `sglang-triton` that nobody timed."""
        return self.engine, self.engine.partition("-")[0]

    def _basis(self, source: Profile) -> str:
        if source.chip == self.chip:
            return "measured"
        if source.generation == self.generation:
            return "transferred"
        return "transferred afar" if self.generation in profiles.GPUS else "assumed"

    def _kept(self, source: Profile, family: str, variants: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(variant, engine) of a profile's fits, this engine's own before others of a variant."""
        for variant in variants:
            engines = tuple(source.engines(family, variant))
            yield from self._own(source, family, (variant,))
            yield from ((variant, engine) for engine in engines if not engine.endswith(HOST_TIMED))

    def _own(self, source: Profile, family: str, variants: Iterable[str]) -> Iterator[tuple[str, str]]:
        """The same of this engine alone."""
        for variant in variants:
            yield from ((variant, own) for own in self._names if f"{family}/{variant}/{own}" in source)

    def _taken(self, source: Profile, key: str, basis: str) -> Found:
        fit = source.fit(key)
        _check(fit, source)
        if source.chip != self.chip:
            fit = replace(fit, constants=carried(fit.constants, fit.family, source.chip, self.generation))
        return Found(fit=fit, basis=basis, chip=source.chip)

    @property
    def profile(self) -> str:
        """The file whose constants come first."""
        return self.sources[0].path

    @property
    def fitted(self) -> bool:
        """Whether kernels of this very chip were measured."""
        return any(source.chip == self.chip for source in self.sources)

    def sentence(self) -> str:
        """Where times come from, in one line."""
        own = sorted({found.basis for found in self.known.values() if found.chip == self.chip})
        lent = sorted({found.chip for found in self.known.values() if found.chip != self.chip})
        words = [f"kernels measured on {self.chip}"] if own else []
        if lent:
            words.append(f"{'others ' if own else 'kernels '}transferred from {', '.join(lent)}, intervals wider")
        return ", ".join(words)

    def assumptions(self) -> list[str]:
        """Kernels nobody measured, and whose constants they got."""
        if self.known and all(found.basis == BASES[-1] for found in self.known.values()):
            lenders = ", ".join(sorted({found.chip for found in self.known.values()} - {self.chip}))
            return [
                f"kernels: none of such a chip ({self.chip}) were measured; constants of {lenders}, intervals far wider"
            ]
        return [
            f"{key}: no fit, constants of {found.fit.key} ({found.chip})"
            for key, found in self.known.items()
            if found.basis == BASES[-1]
        ]

    def interval(self, operator: Operator, chip: Chip, timing: Timing) -> Array:
        """Ratios to the predicted time, shape (4, points): the bounds of the 95 and 80 % intervals (QUANTILES)."""
        if not operator.is_kernel:
            return np.array(UNTIMED)[:, None] * np.ones(np.size(timing.time_s))
        names = families_of(operator)
        bounds = [self.spread(name, operator, chip, timing) for name in names]
        spread = bounds[0]
        for other in bounds[1:]:
            spread = np.where(_decodes(operator) * np.ones(spread.shape[1]) > 0.0, other, spread)
        return spread

    def spread(self, family: str, operator: Operator, chip: Chip, timing: Timing) -> Array:
        """The same of one family, whichever an operator would take."""
        found = self.found(family, operator)
        regime = regime_of(timing)
        spread = np.ones((len(profiles.QUANTILES), regime.size))
        for at, name in enumerate(REGIMES):
            known = np.array(found.fit.residuals.get(name, found.fit.residuals.get("all", UNKNOWN_SPREAD)))
            spread = np.where(regime == at, known[:, None], spread)
        logs = np.log(spread)
        middle = (logs[1] + logs[2]) / 2.0
        # rows scatter, and apart from that the whole fit may be off: their squares add
        half = np.hypot(logs - middle, found.shift * np.array(BEYOND_80)[:, None])
        ratios: Array = np.exp(
            middle + SIGNS * half * outside(found.fit.range, FAMILIES[family].covers(operator, chip))
        )
        return ratios


def _check(fit: Fit, source: Profile) -> None:
    """Raise for a fit of other formulas than ours, or of constants that no fit gives."""
    known = {constant.name: constant for constant in FAMILIES[fit.family].constants}
    where = f"'{shown(source.path)}': {fit.key}"
    again = "this llmviewer needs them: fit again (`llmviewer calibrate fit`)"
    if missing := [name for name in known if name not in fit.constants]:
        raise UserError(f"{where} lacks {', '.join(missing)}; {again}")
    for name, value in fit.constants.items():
        if name not in known:
            raise unknown(f"constant of {fit.key}", name, known, where=f"'{shown(source.path)}'")
        low, high = known[name].low, known[name].high
        if not low * (1.0 - ROUNDED) <= value <= high * (1.0 + ROUNDED):
            raise UserError(f"{where}: constants.{name} is {value:g}; allowed: {low:g} to {high:g}")


def _known_families(own: Profile) -> None:
    """Raise for fits that nothing would ever read."""
    for key in own.texts:
        if key.partition("/")[0] not in FAMILIES:
            raise unknown("kernel family", key.partition("/")[0], FAMILIES, where=f"'{shown(own.path)}'")


def unmeasured(family: Family) -> Fit:
    """The constants that nobody fitted: those a fit would begin with, of unknown spread."""
    return Fit(
        family=family.name, variant="any", engine="none", constants=family.starting(), range={}, residuals={}
    )  # fmt: skip


def _decodes(operator: Operator) -> Count:
    """1.0 where an attention kernel answers a few queries of each sequence over its cache."""
    shape = operator.shape
    if not isinstance(shape, AttentionShape):
        return 0.0
    all_do: Any = True
    for group in shape.groups:
        all_do = all_do & attention.decodes(group)
    return np.where(all_do, 1.0, 0.0)


def calibrated(
    chip: Chip, engine: str = "vllm", own: Profile | None = None, borrowed: Mapping[str, str] | None = None
) -> Calibrated:
    """The efficiency of a chip's kernels: from `own`, the shipped profile, or those of the nearest chips."""
    found = profiles.sources(chip)
    if own is not None:
        _known_families(own)
    return Calibrated(
        sources=found if own is None else (own, *found),
        given=0 if own is None else 1,
        engine=engine,
        borrowed=borrowed or {},
        chip=chip.name,
        generation=chip.generation,
    )

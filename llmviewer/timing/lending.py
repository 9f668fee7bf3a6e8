"""Who lends constants to whom: all fits that may serve a kernel, ranked by their origin, which widens its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from llmviewer.core.frozen import frozen
from llmviewer.timing import profile as profiles
from llmviewer.timing import scaling
from llmviewer.timing.kernels.families import FAMILIES
from llmviewer.timing.kernels.family import Constants
from llmviewer.timing.profile import WIDTH_OVER_80, Profile
from llmviewer.timing.scaling import TORCH, Ratios

#: Published efficiencies by generation, aggregated from the kernel tables of aiconfigurator
#: (https://github.com/ai-dynamo/aiconfigurator, Apache-2.0): causal FLOP of prefill over the bf16 peak at 512, 1k, 2k,
#: 4k, 8k, 16k tokens on H100 .17 .28 .43 .53 .59 .61, A100 .24 .36 .46 .52 .55 .57 (FlashAttention-2 there); a decode
#: kernel takes t0 + bytes / bandwidth x k with t0 11.7 us and k 1.09 on H100, 15 us and 1.46 on A100.
_BEFORE_HOPPER = {
    "attention_prefill": {"compute": 0.75, "tile": 2.0},
    "attention_decode": {"floor": 1.4, "memory": 0.82},
}
#: 300 to 500 of 1307 TFLOP/s on an MI300X, Triton to AITER (https://midiareshadi.github.io/blog/attn-dsl-bench/).
_CDNA = {"attention_prefill": {"compute": 0.42}, "attention_decode": {"floor": 1.3, "memory": 0.85}}
#: Generation of the target chip -> factors on constants of an H100's fits: family -> constant -> factor.
FACTORS_FROM_HOPPER: dict[str, Mapping[str, Mapping[str, float]]] = {
    "turing": _BEFORE_HOPPER,
    "volta": _BEFORE_HOPPER,
    "cdna2": _CDNA,
    "cdna3": _CDNA,
    "cdna4": _CDNA,
}
#: Generation and family -> the donor that is nearer than the order of DONORS says.  Decode attention of a GA102 draws
#: on GDDR6 like an L40S; an A100's units share more than twice the bandwidth.  SGLang's steps of Qwen2.5-14B on an A40
#: (https://github.com/zksainx/pipeweave), of which reading the cache is a sixth, are off by 1 % instead of 5 %.
NEARER = {("ampere-ga10x", "attention_decode"): "l40s", ("ampere-ga10x", "experts"): "l40s"}
#: Operands reach the tiles of CDNA 4 little faster than those of CDNA 3, while its 16-bit peak per unit and clock is
#: twice as high: block-scaled products of aiter, which have rows of both, find 137 and 189 FLOP per byte.
FEED_OF_CDNA3 = {"gemm": {"balance": 0.73}}
#: Chip that lends -> generation that borrows -> the same.
FACTORS: dict[str, Mapping[str, Mapping[str, Mapping[str, float]]]] = {
    "h100-sxm": FACTORS_FROM_HOPPER,
    "mi355x": {"cdna3": FEED_OF_CDNA3},
}
#: Constants that are fractions of a data-sheet rate; factors never raise them above 1.
FRACTIONS = ("compute", "memory", "special")


def factors_of(fitted_on: str, generation: str, family: str) -> Mapping[str, float]:
    """Factors on the constants of a family that a chip lends to a generation, by name of the constant."""
    return FACTORS.get(fitted_on, {}).get(generation, {}).get(family, {})


def adapt_constants(constants: Constants, family: str, fitted_on: str, generation: str) -> Constants:
    """The constants, adapted to another box and to kernels of another generation.  fitted_on: name of a chip."""
    if of_box := FAMILIES[family].of_box:
        starts = FAMILIES[family].start_values()
        constants = {**constants, **{name: starts[name] for name in of_box}}
    factors = factors_of(fitted_on, generation, family)
    if not factors:
        return constants
    changed = {name: constants[name] * factor for name, factor in factors.items() if name in constants}
    return {**constants, **{name: min(value, 1.0) if name in FRACTIONS else value for name, value in changed.items()}}


#: Origins of constants: fitted on this chip and engine; on another chip of the generation, and of another; guessed.
MEASURED, TRANSFERRED, AFAR, ASSUMED = "measured", "transferred", "transferred afar", "assumed"
OTHER_ENGINE = "other engine"
#: Transferred, times what torch's kernels, as the user timed them, take on this chip over what they take on the other.
SCALED, SCALED_AFAR = "scaled", "scaled afar"
#: All origins, nearest first; two words where both the chip and the engine are others.  Chips of a generation run the
#: same programs, so an engine's own kernels on another of them are nearer than another engine's kernels on this chip.
BASES = (
    MEASURED, TRANSFERRED, SCALED, SCALED_AFAR, OTHER_ENGINE, f"{TRANSFERRED}, {OTHER_ENGINE}", AFAR,
    f"{AFAR}, {OTHER_ENGINE}", ASSUMED,
)  # fmt: skip
#: Those of other generations of chips, or of none.
FAR_BASES = (SCALED_AFAR, *BASES[6:])
#: Origin of a fit -> that of the same fit, scaled.
SCALED_FROM = {MEASURED: SCALED, TRANSFERRED: SCALED, AFAR: SCALED_AFAR}
#: Family -> error of a whole fit from another engine, transferred, transferred afar and assumed: half the 80 % interval
#: of log(measured / predicted); "" for families without a row of their own.  They are the least widths with which the
#: intervals hold 80 % of the measured rows of docs/guide/calibration.md, all chips alike, if each is predicted by
#: another engine's fits of the chip, or as if it had no profile (`calibrate validate --lent`): transferred between H100
#: and H200; afar to A100, B200, L40S and RTX PRO 6000; assumed to Arc Pro B60, and by kernels of other formats, but
#: never narrower than the other origins.  For norms and other streaming kernels rows of two engines exist of
#: conversions alone; their 0.5 is a guess.
_ERRORS = {
    "gemm": (0.40, 0.05, 0.29, 0.90),
    "attention_prefill": (0.50, 0.04, 0.30, 1.35),
    "attention_decode": (0.63, 0.03, 0.38, 1.55),
    "collective": (0.86, 0.05, 0.32, 0.95),
    "experts": (0.49, 0.14, 0.41, 0.70),
    "": (0.50, 0.11, 0.45, 0.70),
}
#: (family, basis) -> error of a whole fit.  Two words are independent errors: unless listed here, their squares add.
FIT_ERRORS: dict[tuple[str, str], float] = {
    (family, basis): error
    for family, errors in _ERRORS.items()
    for basis, error in zip((MEASURED, OTHER_ENGINE, TRANSFERRED, AFAR, ASSUMED), (0.0, *errors), strict=True)
}
#: The same of an engine's fits scaled by torch's; families without one are not scaled.  From another generation: the
#: least width with which the interval of every pair of A100 (rows of vidur and aiconfigurator) and H100 or H200, either
#: way, holds 80 % (docs/own_profile.py).  Within one: how far torch's ratios of H100 and H200 (rows of this project,
#: docs/evidence/validation.md) are from 1, where those of engines are 1: products 0.02 to 0.07, prefill 0.02 to 0.07,
#: decode 0.05 to 0.14, conversions 0.10.
FIT_ERRORS |= {
    ("gemm", SCALED): 0.06, ("gemm", SCALED_AFAR): 0.23, ("attention_prefill", SCALED): 0.07,
    ("attention_decode", SCALED): 0.13, ("streaming", SCALED): 0.12,
}  # fmt: skip
#: Generation -> share of the error of an assumed fit that its chips leave: all of 163 published rates of decode of MLX
#: LM on 11 of Apple's chips lay inside intervals of the kernels with 1; 8 of 10 need 0.4 to 0.6 in thirds of sources
#: (sources of engines/mlx-lm.yaml).
ASSUMED_SHARE = {"apple": 0.5}
#: Engines whose kernels serve no other: torch's own norms and chains of kernels are unlike those of serving engines.
OWN_USE_ONLY = TORCH
#: Family -> library whose kernels all serving engines call on the chips that it is for.  SGLang's images for ROCm and
#: vLLM with VLLM_ROCM_USE_AITER=1 run aiter's products, of each shape in its tables the kernel that was timed
#: (https://rocm.docs.amd.com/projects/ai-ecosystem/en/latest/inference/sglang.html,
#: https://rocm.docs.amd.com/projects/ai-ecosystem/en/latest/optimization/vllm-v1-optimization.html).  vLLM without it,
#: the default, and 16-bit products run those of hipBLASLt: in two recorded steps of an MI300X nine products take 0.95
#: to 1.51 of what the constants of an MI355X say, 1.18 in the median.  Fused experts of engines sort rows besides, and
#: are another engine's kernels.
LIBRARIES = {"gemm": "aiter"}
#: Suffixes of engines whose fits serve no other engine: kernels that the host launched one by one, kernels of vLLM
#: before 0.8 that read one element at a time, as no engine's kernels do since, kernels that were timed untuned, and
#: norms that vLLM runs only where it compiles none.
UNLENT_SUFFIXES = ("-host", "-eager", "-v0", "-untuned", "-custom")


def fit_error(family: str, basis: str) -> float:
    """Error of a whole fit of this basis: half the 80 % interval of log(measured / predicted)."""
    if (family, basis) in FIT_ERRORS:
        return FIT_ERRORS[family, basis]
    return math.hypot(*(FIT_ERRORS.get((family, word), FIT_ERRORS.get(("", word), 0.0)) for word in basis.split(", ")))


@frozen
class Kernel:
    """A kernel in search of constants: its family, variant and engine, and the chip that runs it.

    users: number of leading profiles that the user supplied.
    strict: only equal kernels may serve it, no substitutes.
    borrowed: the preset names the engine, whose kernel on any chip is nearer than another's.
    limits: quantities that the engine's usual kernel was never timed with, and their values: another kernel serves.
    lender: chip of that usual kernel.
    """

    family: str
    variant: str
    engine: str
    chip: str
    generation: str
    users: int = 0
    strict: bool = False
    borrowed: bool = False
    limits: tuple[tuple[str, float], ...] = ()
    lender: str = ""

    def basis(self, source: Profile, engine: str) -> str:
        """Origin of constants of an engine in a profile, in words of BASES."""
        if source.chip == self.chip:
            return MEASURED if self.runs(engine) else OTHER_ENGINE
        near = source.generation == self.generation
        if not near and self.generation not in profiles.GPU_GENERATIONS:
            return ASSUMED
        return (TRANSFERRED if near else AFAR) + ("" if self.runs(engine) else f", {OTHER_ENGINE}")

    def runs(self, engine: str) -> bool:
        """Whether an engine's kernels are this engine's; torch's engines differ only in kernels that they name.

        Beyond the limits of its usual kernel an engine runs its other ones.
        """
        if engine == LIBRARIES.get(self.family):
            return _base(self.engine) != OWN_USE_ONLY
        second = bool(self.limits) and _base(engine) == self.engine and not engine.endswith(UNLENT_SUFFIXES)
        return second or engine == self.engine or engine == OWN_USE_ONLY == _base(self.engine)

    def is_near(self, loan: Loan) -> bool:
        """Whether a fit is of the generation, or of the usual kernel's chip, and has rows up to the limits."""
        known = loan.source.fit(loan.key).range
        reached = all(name in known and value <= known[name][1] for name, value in self.limits)
        near = loan.basis not in FAR_BASES or loan.source.chip == self.lender
        return reached and (near or bool(FAMILIES[self.family].of_box))  # more devices are farther than other chips

    def takes(self, engine: str) -> bool:
        """Whether kernels of an engine may serve this one; those of UNLENT_SUFFIXES serve no other."""
        return self.runs(engine) or not engine.endswith(UNLENT_SUFFIXES)

    @property
    def equals(self) -> tuple[str, ...]:
        """Kinds of fit (family/variant) of the same performance, nearest first."""
        return self._kinds((self.variant, *FAMILIES[self.family].equivalents.get(self.variant, ())))

    @property
    def substitutes(self) -> tuple[str, ...]:
        """Kinds of fit that stand for the kernel where no equal one was measured, nearest first."""
        return self._kinds(FAMILIES[self.family].substitutes.get(self.variant, ()))

    def _kinds(self, variants: Iterable[str]) -> tuple[str, ...]:
        """Kinds of variants of the family; names with a slash are kinds already."""
        return tuple(name if "/" in name else f"{self.family}/{name}" for name in variants)


@frozen(kw_only=False)
class Loan:
    """A fit that may serve a kernel, where it stands, and its basis for that kernel.

    passed_over: the user's fit of an equal kernel that is no nearer than this one, in words.
    ratios: what the user's torch kernels say of its chip.  refuted: error of the unscaled fit that they contradict.
    """

    source: Profile
    key: str
    basis: str
    passed_over: str = ""
    ratios: Ratios | None = None
    refuted: float | None = None

    @property
    def error(self) -> float:
        """Error of the whole fit for this basis."""
        return fit_error(self.key.partition("/")[0], self.basis)

    @property
    def differs(self) -> bool:
        """Whether torch's ratios are outside the 95 % interval of both errors: a card unlike others of its kind."""
        transferred = fit_error(self.key.partition("/")[0], TRANSFERRED)
        limit = math.hypot(transferred, self.error) * float(WIDTH_OVER_80[-1, 0])
        return self.ratios is not None and any(abs(math.log(ratio)) > limit for _, ratio in self.ratios.by_regime)


def _base(engine: str) -> str:
    """The engine without the suffix of one of its kernels: `sglang` of `sglang-triton`."""
    return engine.partition("-")[0]


def serves(source: Profile, engine: str) -> bool:
    """Whether a profile has kernels other than torch's, or the engine is torch."""
    return _base(engine) == OWN_USE_ONLY or any(_base(key.rpartition("/")[2]) != OWN_USE_ONLY for key in source.texts)


def nearest(sources: tuple[Profile, ...], kernel: Kernel) -> Loan | None:
    """The fit of the nearest origin (BASES), or None if no profile has the family.

    The user's fits come first, unless their origin widens the interval more than that of a shipped fit.  Torch's serve
    another engine only if no fit of an equal kernel or of a substitute exists, and then as a guess; so do other kernels
    of the family.  A user's of torch do better only on chips of no generation that engines were measured on.
    An engine's fit from elsewhere is scaled by torch's here where that is nearer, or where torch's contradict it.
    Between equals the nearer chip comes first, then the nearer variant and engine; an engine's second kernel
    (`sglang-triton`) after usual kernels.  With limits: the nearest of the generation that was timed up to them.
    """
    every = _ranked(sources, kernel)
    if not (kernel.users or kernel.limits):  # the usual case, for which one loan is made of dozens
        first = min(every, key=lambda found: found[0], default=None)
        return None if first is None else Loan(*first[1])
    ranked = [(rank, Loan(*of)) for rank, of in sorted(every, key=lambda found: found[0])]
    if kernel.limits:
        ranked = [found for found in ranked if kernel.is_near(found[1])]
    users = [found for found in ranked if found[1].source in sources[: kernel.users]]
    shipped = [found for found in ranked if found[1].source not in sources[: kernel.users]]
    if not users or not shipped:
        return next((loan for _, loan in ranked), None)
    (own_rank, own), (rank, other) = users[0], _as_torch_says(shipped)
    if (*own_rank[:2], own.error) <= (*rank[:2], other.error):
        return own
    if other.ratios is not None:
        return other
    is_equal = own.key.rpartition("/")[0] in kernel.equals
    return replace(other, passed_over=f"{own.key} ({own.basis}, ±{own.error:.0%})" if is_equal else "")


def _as_torch_says(ranked: list[tuple[tuple[float, ...], Loan]]) -> tuple[tuple[float, ...], Loan]:
    """The first loan, scaled if torch's ratios contradict it."""
    rank, first = ranked[0]
    scaled = (loan for _, loan in ranked if loan.ratios and (loan.source, loan.key) == (first.source, first.key))
    twin = next(scaled, None)
    if twin is None or twin is first or not twin.differs:
        return rank, first
    return rank, replace(twin, refuted=first.error)


def _lends_torch(kernel: Kernel) -> bool:
    """Whether a user's torch kernels may serve the engine: on chips of no generation that an engine was measured on.

    Elsewhere torch's kernels are farther from an engine's than another engine's on another generation: as attention of
    an H100, 40 to 55 % off in the mean where those of an A100 are 23 to 27 % off.
    """
    return kernel.users > 0 and kernel.generation not in profiles.GPU_GENERATIONS


@lru_cache(maxsize=4096)
def _offers(source: Profile, kernel: Kernel) -> tuple[tuple[str, str, int, bool, bool, tuple[float, ...]], ...]:
    """Kind, engine, tier, whether of torch alone, whether the kernel's own, and nearness of every fit that may serve.

    kernel: without what it is of a chip, so that chips share the offers.
    """
    equals, substitutes = kernel.equals, kernel.substitutes
    engines, found = (kernel.engine, _base(kernel.engine)), []
    for place, (kind, engine) in enumerate(_fits(source, kernel, equals)):
        if not kernel.takes(engine) or (kernel.strict and kind not in equals):
            continue
        tier = 0 if kind in equals else 1 + _place(kind, substitutes)
        of_torch = _base(engine) == OWN_USE_ONLY != _base(kernel.engine)
        nearness = (_place(kind, equals), _place(engine, engines), engine != _base(engine), place)
        found.append((kind, engine, tier, of_torch, kernel.runs(engine), nearness))
    return tuple(found)


def _ranked(
    sources: tuple[Profile, ...], kernel: Kernel
) -> Iterator[tuple[tuple[float, ...], tuple[Profile, str, str, str, Ratios | None]]]:
    """Every fit that may serve the kernel: its rank, of which the lowest serves, and the fields of its loan."""
    nearer = NEARER.get((kernel.generation, kernel.family))
    anywhere = replace(kernel, chip="", generation="", users=0, lender="")
    for at, source in enumerate(sources):
        users = at < kernel.users
        for kind, engine, tier, of_torch, runs, nearness in _offers(source, anywhere):
            unlent = of_torch and not (users and _lends_torch(kernel))
            basis = ASSUMED if tier or unlent else kernel.basis(source, engine)
            rank = (
                unlent and kernel.engine != OWN_USE_ONLY,
                tier,
                BASES.index(basis),
                kernel.borrowed and not runs,
                -1 if source.chip == nearer else at,
                *nearness,
            )
            yield rank, (source, f"{kind}/{engine}", basis, "", None)
            basis = "" if users or _base(engine) == OWN_USE_ONLY else SCALED_FROM.get(basis, "")
            if (kernel.family, basis) in FIT_ERRORS and (found := _ratios(sources, kernel, kind, source.chip)):
                rank = (*rank[:2], BASES.index(basis), *rank[3:])
                yield rank, (source, f"{kind}/{engine}", basis, "", found)


def _ratios(sources: tuple[Profile, ...], kernel: Kernel, kind: str, chip: str) -> Ratios | None:
    """The ratios that the user's profiles of this very chip state of torch's kernels beside those of another."""
    own = (profile for profile in sources[: kernel.users] if profile.chip == kernel.chip)
    return next(filter(None, (scaling.ratios(profile, kind, chip) for profile in own)), None)


def _fits(source: Profile, kernel: Kernel, equals: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Kind and engine of the fits of a kernel's family, and of equal kernels of other families."""
    for family in dict.fromkeys((kernel.family, *(kind.partition("/")[0] for kind in equals))):
        for variant, engine in source.fits_of(family):
            if family == kernel.family or f"{family}/{variant}" in equals:
                yield f"{family}/{variant}", engine


def _place(word: str, order: tuple[str, ...]) -> int:
    return order.index(word) if word in order else len(order)

"""Calibrated efficiency: rates that measured kernels reach, and intervals for the prediction error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from llmviewer.core.counts import Array, Count
from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Operator
from llmviewer.hardware.chip import Chip, Host
from llmviewer.timing import profile as profiles
from llmviewer.timing.kernels import attention, attention_decode, attention_prefill
from llmviewer.timing.kernels.families import FAMILIES, families_of
from llmviewer.timing.kernels.family import Family
from llmviewer.timing.lending import ASSUMED, ASSUMED_SHARE, Kernel, Loan, adapt_constants, fit_error, nearest, serves
from llmviewer.timing.profile import SIGNS, WIDTH_OVER_80, Fit, Profile
from llmviewer.timing.roofline import Rates, Timing
from llmviewer.timing.scaling import scaled

#: Constants are written with five digits, so rounding may move them past a bound by this fraction.
ROUNDING = 1e-4


def check_fit(fit: Fit, source: Profile) -> None:
    """Raise UserError if constants are missing, unknown or out of bounds for the formula of their family."""
    known = {constant.name: constant for constant in FAMILIES[fit.family].constants}
    where = f"'{printable(source.path)}': {fit.key}"
    hint = "this version of llmviewer needs them; run `llmviewer calibrate fit` again"
    if missing := [name for name, one in known.items() if name not in fit.constants and not one.later]:
        raise UserError(f"{where} lacks {', '.join(missing)}; {hint}")
    for name, value in fit.constants.items():
        if name not in known:
            raise unknown(f"constant of {fit.key}", name, known, where=f"'{printable(source.path)}'")
        low, high = known[name].low, known[name].high
        if not low * (1.0 - ROUNDING) <= value <= high * (1.0 + ROUNDING):
            raise UserError(f"{where}: constants.{name} is {value:g}; allowed: {low:g} to {high:g}")


def check_families(own: Profile) -> None:
    """Raise UserError for fits of an unknown kernel family."""
    for key in own.texts:
        if key.partition("/")[0] not in FAMILIES:
            raise unknown("kernel family", key.partition("/")[0], FAMILIES, where=f"'{printable(own.path)}'")


#: Kernels shorter than this are bound by launch and latency instead of the roofline [s].
SHORT_S = 20e-6
REGIMES = ("short", "memory", "compute")


def regime_of(timing: Timing) -> npt.NDArray[np.intp]:
    """Index into REGIMES per point."""
    seconds = dict(timing.resources)
    work = np.maximum(seconds.get("compute", 0.0), 0.0)
    computing = work > seconds.get("memory", 0.0)
    return np.atleast_1d(np.where(timing.time_s < SHORT_S, 0, np.where(computing, 2, 1)))


def interval_factor(fitted: Mapping[str, tuple[float, float]], quantities: Mapping[str, Count]) -> Count:
    """Factor on the width of intervals: 1 inside the fitted range, plus 0.5 for every factor of two beyond it."""
    excess: Count = 0.0
    for name, value in quantities.items():
        if name not in fitted:
            continue
        low, high = fitted[name]
        number = np.where(value > 0.0, np.maximum(value, 1e-9), high)  # a pass without this work is exact
        excess = excess + np.maximum(np.log2(number / high), 0.0) + np.maximum(np.log2(max(low, 1e-9) / number), 0.0)
    return 1.0 + 0.5 * excess


#: From page-locked memory: 25.1 GB/s of an A100 (of 31.5, https://github.com/NVIDIA/nvbandwidth/issues/42), 25 GB/s
#: (https://github.com/ZaidQureshi/bam/issues/54), 12 GB/s of PCIe 3.0 (of 15.75, CUDA C++ Best Practices Guide,
#: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#pinned-memory), 52.8 GB/s of an H100 (of 63,
#: https://github.com/NVIDIA/nvbandwidth/issues/24).
PINNED_SHARE = 0.8
#: From pageable memory, which the driver copies to a page-locked buffer first: 5 to 6 GB/s where page-locked memory
#: gave 11 to 12 (https://github.com/rapidsai/dask-cuda/pull/98).
PAGEABLE_SHARE = PINNED_SHARE * 5.5 / 11.5
#: Of the memory of a host: STREAM gives 378 GB/s of 460.8 with 12 channels of DDR5-4800, and 189 of 204.8 with 8 of
#: DDR4-3200 (Micron, https://www.ctimes.com.tw/DispNews-cn.asp?o=2211231820AR); a desktop reads 46 of 51.2 GB/s
#: (https://guru3d.com/review/g-skill-tridentz-royal-ddr4-3200-mhz-review/page-10).  Their mean.
MEMORY_SHARE = 0.88
#: Of the matrix units of a CPU (Intel AMX): 21.3 TFLOP/s of one Xeon Platinum 8452Y (36 cores x 1024 FLOP x 2.0 GHz) in
#: kernels made for experts on the host (https://lmsys.org/blog/2025-10-22-KTransformers, machine:
#: https://github.com/sgl-project/sglang/issues/11425).  PyTorch's reach a quarter of that.
AMX_SHARE = 21.3 / 73.7

#: Of the memory where a CPU multiplies weights, and time [s] for which device and host wait for each other at a copy
#: between them.  Of ten figures with experts on the host, 8.7 to 49.6 tokens/s, predictions are 14 % off in the median,
#: without the two 86 %: https://github.com/kvcache-ai/ktransformers (DeepseekR1_V3_tutorial.md, issue 314),
#: https://github.com/AlexsJones/llmfit/pull/755, 775 and 778, https://gokawiil.com/article/74814.
WEIGHT_SHARE, WAIT_S = 0.62, 125e-6
#: Rates of two sockets over those of one, each with a copy of the weights, and the share of the CPU's rate that
#: products reach with the few rows of an expert in a prompt: DeepSeek-V3 on one and two Xeon 6454S, 8.73 and 12.2
#: tokens/s in decode and 54.2 and 82.9 in prompts
#: (https://github.com/kvcache-ai/ktransformers, DeepseekR1_V3_tutorial.md).
TWO_SOCKETS, FEW_ROWS_SHARE = 1.57, 0.5
#: Sources of the shares by field of `Host`.
SOURCES = {
    "link_share": "share of the link that copies from page-locked memory reach "
    "(https://github.com/NVIDIA/nvbandwidth/issues/42); from pageable memory half of that "
    "(https://github.com/rapidsai/dask-cuda/pull/98)",
    "memory_share": "share of the memory's rate that STREAM reaches "
    "(Micron, https://www.ctimes.com.tw/DispNews-cn.asp?o=2211231820AR)",
    "matrix_share": "share of AMX that kernels for experts reach (https://lmsys.org/blog/2025-10-22-KTransformers), "
    "of vector units otherwise, with few rows of each expert "
    "(https://github.com/kvcache-ai/ktransformers, DeepseekR1_V3_tutorial.md)",
    "weight_share": "share of the memory's rate at which a CPU multiplies weights "
    "(https://github.com/kvcache-ai/ktransformers, DeepseekR1_V3_tutorial.md)",
    "wait_s": "time for which device and host wait for each other at a copy "
    "(https://github.com/AlexsJones/llmfit/pull/755)",
}


def attainable(host: Host, *, pinned: bool = True, experts: bool = False) -> Host:
    """The host with the shares of its rates that are reached.

    pinned: copies read page-locked memory.  experts: it computes routed experts, with few rows of each.

    A CPU without matrix units reaches its rate in fp32, as it multiplies quantized weights in integers, at several
    times that rate: llamafile's kernels for 4 bits reach 2.7 TFLOP/s of a Ryzen 9 7950X, which has 2.3
    (https://github.com/mozilla-ai/llamafile/pull/435).
    """
    of_rows = FEW_ROWS_SHARE if experts else 1.0
    of_sockets = TWO_SOCKETS / 2.0 if host.sockets > 1 else 1.0
    return replace(
        host,
        link_share=PINNED_SHARE if pinned else PAGEABLE_SHARE,
        memory_share=MEMORY_SHARE * of_sockets,
        matrix_share=(AMX_SHARE if host.cpu and has_amx(host.cpu) else 1.0) * of_sockets * of_rows,
        weight_share=WEIGHT_SHARE * of_sockets,
        wait_s=WAIT_S,
    )


def has_amx(cpu: Chip) -> bool:
    """True if a CPU multiplies by matrix units, which have no fp32."""
    return "fp32" not in cpu.matrix_flops_per_s


#: Residuals where a fit had no held-out row of a regime: QUANTILES of measured / predicted.
DEFAULT_RESIDUALS = (0.5, 0.7, 1.4, 2.0)
#: Residuals of copies and host operators, whose rates come from data sheets and a share of them: a guess.
UNMEASURED_RESIDUALS = (0.8, 0.95, 1.6, 2.5)
UNMEASURED_NOTE = (
    f"copies reach {PINNED_SHARE:g} of the link's rate if their memory is pinned; operators on the host "
    f"{MEMORY_SHARE:g} of its memory's, products {WEIGHT_SHARE:g}; "
    f"real times may be up to {UNMEASURED_RESIDUALS[-1]:g} times as long"
)


@frozen(slots=False)
class SelectedFit:
    """The fit selected for an operator, its basis (lending.BASES), the chip it was measured on, its profile's path.

    passed_over: the user's fit that is no nearer, in words.  scaled: what the user's torch kernels changed, in words.
    share: of the error of its basis that the chip's generation leaves.  box_error: what another box adds to it.
    """

    fit: Fit
    basis: str
    chip: str
    path: str = ""
    passed_over: str = ""
    scaled: str = ""
    share: float = 1.0
    box_error: float = 0.0

    @property
    def fit_error(self) -> float:
        """Error of the whole fit for this basis: half the 80 % interval of log(measured / predicted)."""
        return float(np.hypot(fit_error(self.fit.family, self.basis) * self.share, self.box_error))

    @cached_property
    def spreads(self) -> tuple[Array, Array]:
        """Logarithms of measured / predicted by regime: the middle, and the bounds of QUANTILES from there."""
        known = self.fit.residuals
        logs = np.log([known.get(name, known.get("all", DEFAULT_RESIDUALS)) for name in REGIMES]).T
        middle = (logs[1] + logs[2]) / 2.0
        # the scatter of rows and the error of the whole fit are independent: their squares add
        return middle, SIGNS * np.hypot(logs - middle, self.fit_error * WIDTH_OVER_80)

    def to_dict(self) -> dict[str, Any]:
        """JSON object with basis, chip and key of the fit, and its error on held-out rows."""
        error = dict(self.fit.error.get("all", {}))
        return {"basis": self.basis, "chip": self.chip, "fit": self.fit.key, "error": error}


@frozen(eq=False)
class Calibrated:
    """Efficiency from profiles, the chip's own first.  engine: preferred engine, where several were measured.

    borrowed: family/variant -> engine whose kernels are used instead.  user_profiles: number of leading sources that
    the user supplied; these come first unless they would widen the interval.  selected: cache of select_fit.  launch,
    latency: factors of the fixed time of a kernel and of the latency of a message, for hypothetical chips.
    """

    sources: tuple[Profile, ...]
    engine: str = "vllm"
    borrowed: Mapping[str, str] = field(default_factory=dict)
    chip: str = ""
    generation: str = ""
    maker: str = ""
    user_profiles: int = 0
    selected: dict[str, SelectedFit] = field(default_factory=dict)
    launch: float = 1.0
    latency: float = 1.0

    def __call__(self, operator: Operator, chip: Chip) -> Rates:
        """Attainable rates of an operator."""
        rates = self._rates(operator, chip)
        return rates if self.launch == self.latency == 1.0 else rates.with_times(self.launch, self.latency)

    def _rates(self, operator: Operator, chip: Chip) -> Rates:
        names = families_of(operator)
        fits = [self.select_fit(name, operator).fit for name in names]
        if len(fits) == 1:
            return FAMILIES[fits[0].family].rates(operator, chip, fits[0].constants)
        prefill, decode = (fit.constants for fit in fits)
        return attention.rates(
            operator, chip, (attention_prefill.group_time, prefill), (attention_decode.group_time, decode)
        )

    def select_fit(self, family: str, operator: Operator) -> SelectedFit:
        """The fit of a family for an operator, cached per variant.

        Where the operator is beyond the limits of the fitted kernel (wider heads than it was ever timed with), that of
        an equal kernel of the generation, this engine's or another's, which was timed so far.
        """
        variant = FAMILIES[family].variant(operator)
        key = f"{family}/{variant}"
        if key not in self.selected:
            self.selected[key] = self._shared(self._search(family, variant))
        found = self.selected[key]
        beyond = _beyond(FAMILIES[family].limits(operator), found.fit)
        if not beyond:
            return found
        wide = "/".join((key, *(f"{value:g}" for _, value in beyond)))
        if wide not in self.selected:
            other = self._own_family(family, variant, strict=True, limits=beyond, lender=found.chip)
            if other is not None:
                self.selected[wide] = self._shared(other)
        return self.selected.get(wide, found)

    def _shared(self, found: SelectedFit) -> SelectedFit:
        """The fit with the share of its error that a guess for a chip of this generation has."""
        return replace(found, share=ASSUMED_SHARE.get(self.generation, 1.0)) if found.basis == ASSUMED else found

    def primary_fit(self, operator: Operator) -> SelectedFit:
        """The fit of an operator's first family, under which interval errors are grouped."""
        return self.select_fit(families_of(operator)[0], operator)

    def fit_in(self, operator: Operator, at: Callable[[Count], float]) -> SelectedFit:
        """The fit of an operator in the passes of a stage: attention that decodes is of another family.

        at: a count of all passes -> that of the stage.
        """
        names = families_of(operator)
        return self.select_fit(names[-1 if at(attention.decode_mask(operator)) > 0.0 else 0], operator)

    def _search(self, family: str, variant: str) -> SelectedFit:
        fit = self._own_family(family, variant) or self._last_resort(family, variant)
        if fit is not None:
            return fit
        if FAMILIES[family].unmeasured:
            return SelectedFit(fit=start_fit(FAMILIES[family]), basis=ASSUMED, chip=self.chip)
        raise UserError(f"no profile has constants for {family}; --efficiency ideal needs none")

    def _own_family(self, family: str, variant: str, **options: Any) -> SelectedFit | None:
        """The nearest fit of a family for a variant.  options: further fields of the kernel in search of it."""
        kind = f"{family}/{variant}"
        measured = any(source.chip == self.chip for source in self.sources)  # other chips of a generation share loans
        kernel = Kernel(
            family=family, variant=variant, engine=self.borrowed.get(kind, self.engine), borrowed=kind in self.borrowed,
            chip=self.chip if measured else "", generation=self.generation, users=self.user_profiles, **options,
        )  # fmt: skip
        return _lent(self.sources, kernel)

    def _last_resort(self, family: str, variant: str) -> SelectedFit | None:
        """The fit of another family that stands for one without any."""
        kinds = (kind.split("/") for kind in FAMILIES[family].last_resorts.get(variant, ()))
        found = next(filter(None, (self._own_family(*kind, strict=True) for kind in kinds)), None)
        return None if found is None else replace(found, basis=ASSUMED)

    @property
    def profile(self) -> str:
        """Path of the profile that is searched first."""
        return self.sources[0].path

    @property
    def own_power(self) -> Mapping[str, float]:
        """Shares of the board power that the user's profile has of this chip; empty if it has none."""
        own = self.sources[0]
        return own.power if self.user_profiles and own.chip == self.chip else {}

    @property
    def fitted(self) -> bool:
        """Whether kernels that serve the engine were measured on this chip; torch's alone serve others as a stopgap.

        Without attention, as of a library of products, a step is mostly that of other chips.
        """
        own = [source for source in self.sources if source.chip == self.chip and source.fits_of("attention_decode")]
        near = [source for source in self.sources if source.generation == self.generation]
        usual = [source for source in near if serves(source, self.engine)]
        return bool(own) and (not usual or any(source in usual for source in own))

    @property
    def origin(self) -> str:
        """Origin of the kernels, by which presets keep their residuals.

        `fitted`: measured on this chip; `transferred`: on other chips of the maker; `afar`: on those of another maker.
        """
        if self.fitted:
            return "fitted"
        return "transferred" if self.maker == profiles.MEASURED_MAKER else "afar"

    @property
    def idle_profile(self) -> tuple[str, ...]:
        """A line for a profile of the user none of whose fits was selected for the operators so far."""
        used = {self.profile if found.scaled else found.path for found in self.selected.values()}
        if not (self.user_profiles and used) or self.profile in used:
            return ()
        return (f"--profile {printable(self.profile, 4096)}: none of its fits serves this configuration, not used",)

    def assumptions(self) -> list[str]:
        """Kernels without a fit in the user's profile or on any similar chip, and the constants used for them."""
        if self.selected and all(found.basis == ASSUMED for found in self.selected.values()):
            donors = ", ".join(sorted({found.chip for found in self.selected.values()} - {self.chip}))
            return [
                *self.idle_profile,
                f"kernels: not measured on {self.chip} or a similar chip; constants of {donors}, intervals much wider",
            ]
        shipped = {key: one for key, one in self.selected.items() if self.user_profiles and one.path != self.profile}
        path = printable(self.profile, 4096)
        lacking = [key for key, found in shipped.items() if not (found.passed_over or found.scaled)]
        own = [f"kernels without a fit in {path}: constants of shipped profiles for {', '.join(lacking)}"]
        wider = [
            f"{key}: {found.fit.key} ({found.basis}, {found.chip}, ±{found.fit_error:.0%}); of {path}, "
            f"{found.passed_over} is no nearer"
            for key, found in shipped.items()
            if found.passed_over
        ]
        moved = [f"{key}: {found.scaled} (of {path})" for key, found in shipped.items() if found.scaled]
        return [*self.idle_profile, *own[: len(lacking)], *wider, *moved] + [
            f"{key}: not measured; constants of {found.fit.key} ({found.chip})"
            for key, found in self.selected.items()
            if found.basis == ASSUMED
        ]

    def interval(self, operator: Operator, chip: Chip, timing: Timing) -> Array:
        """Bounds of the 95 and 80 % intervals (QUANTILES) over the predicted time, shape (4, points)."""
        if not operator.is_kernel:
            return np.array(UNMEASURED_RESIDUALS)[:, None] * np.ones(np.size(timing.time_s))
        names = families_of(operator)
        bounds = [self.family_interval(name, operator, chip, timing) for name in names]
        spread = bounds[0]
        for other in bounds[1:]:
            spread = np.where(attention.decode_mask(operator) * np.ones_like(spread[0]) > 0.0, other, spread)
        return spread

    def family_interval(self, family: str, operator: Operator, chip: Chip, timing: Timing) -> Array:
        """Bounds as of `interval`, but with the fit of a given family."""
        found = self.select_fit(family, operator)
        middle, half = found.spreads
        quantities = FAMILIES[found.fit.family].quantities(operator, chip)
        regime = regime_of(timing)
        width = np.choose(regime, half.T[:, :, None]) * interval_factor(found.fit.range, quantities)
        ratios: Array = np.exp(np.choose(regime, middle) + width)
        return ratios


@lru_cache(maxsize=1024)
def _lent(sources: tuple[Profile, ...], kernel: Kernel) -> SelectedFit | None:
    """The nearest fit for a kernel, adapted to its chip; None if no profile has the family."""
    loan = nearest(sources, kernel)
    if loan is None:
        return None
    source, fit = loan.source, loan.source.fit(loan.key)
    check_fit(fit, source)
    own, box_error = fit.constants, 0.0
    if source.chip != kernel.chip:
        own = adapt_constants(own, fit.family, source.chip, kernel.generation)
        box_error = FAMILIES[fit.family].box_error(fit.variant)
    if loan.ratios is not None:
        own = scaled(own, fit.family, loan.ratios)
    return SelectedFit(
        fit=replace(fit, constants=MappingProxyType(dict(own))), basis=loan.basis, chip=source.chip,
        path=source.path, passed_over=loan.passed_over, scaled=_scaling(loan), box_error=box_error,
    )  # fmt: skip


def _scaling(loan: Loan) -> str:
    """A fit that torch's kernels scaled, in words, and by how much that widens its interval."""
    if loan.ratios is None:
        return ""
    wider = "" if loan.refuted is None else f" instead of ±{loan.refuted:.0%}, as cards of one kind differ by less"
    return f"{loan.key} of {loan.source.chip} scaled, as {loan.ratios}: ±{loan.error:.0%}{wider}"


def _beyond(limits: Mapping[str, Count], fit: Fit) -> tuple[tuple[str, float], ...]:
    """The limits that an operator exceeds: quantities above the fitted range, and their largest values."""
    known = ((name, float(np.max(value))) for name, value in limits.items() if name in fit.range)
    return tuple((name, value) for name, value in known if value > fit.range[name][1])


def start_fit(family: Family) -> Fit:
    """Start constants with unknown spread, for a family that was never measured."""
    return Fit(
        family=family.name, variant="any", engine="none", constants=family.start_values(), range={}, residuals={}
    )  # fmt: skip


def calibrated(
    chip: Chip,
    engine: str = "vllm",
    own: Profile | None = None,
    borrowed: Mapping[str, str] | None = None,
    *,
    lent: bool = False,
) -> Calibrated:
    """The efficiency of a chip's kernels: from `own`, the chip's shipped profile, and those of its donors, in order.

    lent: the chip's shipped profile is not used, as if it had none.
    """
    found = tuple(source for source in profiles.sources(chip) if not (lent and source.chip == chip.name))
    if own is not None:
        check_families(own)
        for key in own.texts:  # also those that serve no kernel here
            check_fit(own.fit(key), own)
    return Calibrated(
        sources=found if own is None else (own, *found),
        user_profiles=0 if own is None else 1,
        engine=engine,
        borrowed=borrowed or {},
        chip=chip.name,
        generation=chip.generation,
        maker=chip.maker,
    )

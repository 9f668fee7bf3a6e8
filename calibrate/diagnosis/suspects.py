"""Likely causes of lost time, by the parts of the difference and the names of kernels, each with a remedy to try."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmviewer.calibrate.diagnosis import parts as names
from llmviewer.calibrate.diagnosis.comparison import BESIDE, Comparison, OperatorTimes
from llmviewer.calibrate.diagnosis.parts import Part
from llmviewer.calibrate.diagnosis.patterns import kind_of
from llmviewer.calibrate.diagnosis.slots import OTHER_MODELS, PREPARE, SAMPLING

#: Suspects that are listed, and the least share of the measured time that one takes.
MOST, LEAST = 5, 0.01
#: Kernels of 16-bit matrix products, and of 8-bit ones, by their names.
HALF = re.compile(r"_BBS_|_HHS_|_HHH_|bf16bf16|f16f16|bf16_bf16|_tst_|hgemm|__nv_bfloat16|bf16xbf16(?!x)|bfloat16")
EIGHT_BIT = re.compile(r"(?i)fp8|e4m3|f8f8|_qqtst|w8a8|i8i8|int8|_F8|a8w8")
#: Attention that runs anywhere, and slower than kernels written for one generation of chips.
PORTABLE = re.compile(
    r"unified_attention|_fwd_grouped_kernel|_fwd_kernel|paged_attention_v[12]|flash_fwd_splitkv_kernel"
)
#: Formats of matrix products below 16 bit.
NARROW = ("fp8", "int8", "fp4", "fp6", "int4")
#: Share of kernels linked to a launch of their own above which the host launches them one by one.
SINGLY = 0.5
#: Kind of kernels that nobody predicted -> what to try; LAUNCHED_BY for others.
OPTIONS_OF = {
    "lora": "state the adapters of the run (--lora)",
    "quantize": "state the number format of the run (--quantization)",
    "dequantize": "kernels that multiply packed weights (Marlin, Machete)",
}
LAUNCHED_BY = "find the operator of the framework that launches them"
TASKS = {
    PREPARE: ("the inputs of a pass", "options of scheduling"),
    SAMPLING: ("sampling", "options of sampling"),
    OTHER_MODELS: ("another model in the same pass (encoder, draft)", "record a pass without it"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One likely cause with the seconds per pass that it explains, and what to try."""

    text: str
    amount_s: float
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """Everything that rules look at."""

    found: Comparison
    parts: tuple[Part, ...]


def suspects_of(case: Case) -> list[Suspect]:
    """The suspects with the largest amounts, at most MOST."""
    least = LEAST * case.found.measured_s
    found = [one for rule in RULES for one in rule(case) if one.amount_s >= least]
    return sorted(found, key=lambda one: -one.amount_s)[:MOST]


def _slow_operators(case: Case) -> Iterator[Suspect]:
    """Operators beyond their interval, with the first remedy that their kernels' names suggest."""
    for part in case.parts:
        if part.kind not in (names.OPERATOR, names.COMMUNICATION) or not part.outside or part.amount_s <= 0.0:
            continue
        one = case.found.operators[part.name]
        times = one.measured_s / one.predicted_s if one.predicted_s else float("inf")
        text = f"{part.name} takes {times:.2g} x its predicted time, above the 80 % interval"
        yield Suspect(text=text, amount_s=part.amount_s, remedy=_remedy(case, one))


def _remedy(case: Case, one: OperatorTimes) -> str:
    kernels = " ".join(one.kernels)
    if one.kind == "collective":
        return "check the link (nvidia-smi topo -m, nvidia-smi nvlink -s) and whether the engine's own all-reduce is on"
    if _falls_back(one):
        return f"{one.dtype} was expected and 16-bit kernels ran: look for the fallback in the engine's log"
    if one.kind == "attention" and PORTABLE.search(kernels):
        return f"another attention backend of the engine: {next(iter(one.longest))[:40]} runs on every chip"
    if any(kind_of(name) == "dequantize" for name in one.kernels):
        return "kernels that multiply packed weights (Marlin, Machete): these are unpacked before a plain product"
    return _measuring(case, one)


def _measuring(case: Case, one: OperatorTimes) -> str:
    """The remedy for kernels whose names suggest none: measurements on this chip, or what to do with them."""
    if not case.found.phases:
        return "look at the clock and power of its samples, then llmviewer calibrate fit, which learns from them"
    if one.borrowed:
        return f"llmviewer calibrate run on this chip: the prediction has constants of {one.borrowed} and may be wrong"
    return "measure this kernel here (llmviewer calibrate run), or run another version of the engine"


def _falls_back(one: OperatorTimes) -> bool:
    """Whether 16-bit kernels run an operator of which 8-bit or 4-bit ones are predicted."""
    kernels = " ".join(name for name in one.kernels if kind_of(name) in ("matmul", "experts"))
    return one.dtype in NARROW and bool(HALF.search(kernels)) and not EIGHT_BIT.search(kernels)


def _launches(case: Case) -> Iterator[Suspect]:
    """Gaps between kernels that the host launches one by one, or between graphs."""
    amount = sum(part.amount_s for part in case.parts if part.name == names.WITHIN)
    if case.found.linked > SINGLY:
        text = "the host launches kernels one by one and the device waits for it"
        remedy = "CUDA graphs: remove --enforce-eager, or raise the largest captured batch size"
    else:
        text, remedy = "the device is idle between kernels of a pass", "look at what runs on the host meanwhile"
    yield Suspect(text=f"{text} ({amount * 1e3:.3g} ms)", amount_s=amount, remedy=remedy)


def _between(case: Case) -> Iterator[Suspect]:
    """Time of the host from one pass to the next beyond what the engine's preset predicts."""
    amount = sum(part.amount_s for part in case.parts if part.name == names.BETWEEN)
    text = f"the host takes {case.found.between_s * 1e3:.3g} ms from one pass to the next"
    remedy = "asynchronous scheduling, a faster CPU core, fewer stop conditions, or detokenization in another process"
    yield Suspect(text=text, amount_s=amount, remedy=remedy)


def _extra_kernels(case: Case) -> Iterator[Suspect]:
    """Kernels that no operator predicts, by kind, and those that the engine runs beside the model."""
    kinds: dict[str, dict[str, float]] = {}
    for where, seconds in case.found.unplanned.items():
        kinds.setdefault(where.partition(" beside ")[0], {})[where] = seconds
    for kind, places in kinds.items():
        longest, *others = sorted(places, key=lambda where: -places[where])
        more = f" and {len(others)} other operators" if others else ""
        text = f"kernels that the prediction does not have: {longest}{more}, such as {_example(case, longest)}"
        yield Suspect(text=text, amount_s=sum(places.values()), remedy=OPTIONS_OF.get(kind, LAUNCHED_BY))
    for name in BESIDE:
        one = case.found.operators[name]
        example = next(iter(one.kernels), "")[:60]
        task, remedy = TASKS[name]
        yield Suspect(text=f"kernels for {task}, such as {example}", amount_s=one.measured_s, remedy=remedy)


def _example(case: Case, where: str) -> str:
    """The longest kernel of a kind, of those beside an operator if that is named."""
    wanted, _, beside = where.partition(" beside ")
    runs = [
        (seconds, name)
        for (name, kind, operator), (_, seconds) in case.found.runs.items()
        if (kind, operator) == (wanted, beside)
    ]
    return max(runs)[1][:60] if runs else wanted


def _unmatched(case: Case) -> Iterator[Suspect]:
    """Kernels whose names no pattern knows or that stand where no operator is."""
    unmatched = case.found.unmatched
    if unmatched:
        text = f"kernels that could not be matched, most of all {max(unmatched, key=lambda name: unmatched[name])[:60]}"
        remedy = "check that model, options and engine are those of the run"
        yield Suspect(text=text, amount_s=case.found.unmatched_s, remedy=remedy)


def _other_work(case: Case) -> Iterator[Suspect]:
    """Other requests or lengths than the user states."""
    for part in case.parts:
        if part.name == names.OTHER_WORK:
            text = "the recorded passes have more work than stated"
            remedy = "compare with the requests and lengths of the recording: leave out --batch-size and --input-len"
            yield Suspect(text=text, amount_s=part.amount_s, remedy=remedy)


RULES: tuple[Callable[[Case], Iterator[Suspect]], ...] = (
    _slow_operators,
    _launches,
    _between,
    _extra_kernels,
    _unmatched,
    _other_work,
)

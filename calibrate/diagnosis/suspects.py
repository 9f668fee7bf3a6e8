"""Likely causes of lost time, by the parts of the difference and names of kernels, each with its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.diagnosis import parts as names
from llmviewer.calibrate.diagnosis.assignment import of_unfused_attention
from llmviewer.calibrate.diagnosis.doubts import CHIP, MODEL, Doubt
from llmviewer.calibrate.diagnosis.parts import Part, longest_wait
from llmviewer.calibrate.diagnosis.slots import COMMUNICATION, OTHER_MODELS, PREPARE, SAMPLING, kind_of
from llmviewer.calibrate.diagnosis.times import BESIDE, MARKS, Comparison, OperatorTimes
from llmviewer.calibrate.diagnosis.wording import short, told
from llmviewer.core.frozen import frozen

#: Kernels of 16-bit matrix products, and of 8-bit ones, by their names.
HALF = re.compile(r"_BBS_|_HHS_|_HHH_|bf16bf16|f16f16|bf16_bf16|_tst_|hgemm|__nv_bfloat16|bf16xbf16(?!x)|bfloat16")
EIGHT_BIT = re.compile(r"(?i)fp8|e4m3|f8f8|_qqtst|w8a8|i8i8|int8|_F8|a8w8")
#: Attention that runs anywhere, and slower than kernels written for one generation of chips.
PORTABLE = re.compile(
    r"unified_attention|_fwd_grouped_kernel|\b_fwd_kernel|paged_attention_v[12]|flash_fwd_splitkv_kernel"
)
#: Formats of matrix products below 16 bit.
NARROW = ("fp8", "int8", "fp4", "fp6", "int4")
#: Kernels that run an operator over those that are predicted, and its time over the predicted one, from which on the
#: number of kernels is to blame.
MANY, SLOW = 3.0, 2.0
#: Share of kernels linked to a launch of their own above which the host launches them one by one.
SINGLY = 0.5
UNFUSED = "attention on an unfused backend, which runs scores, softmax and values as kernels of their own"
FUSED_BACKEND = "an attention backend of one kernel (FlashAttention, FlashInfer; attn_implementation in transformers)"
FASTER_HOST = "a faster CPU core, less work of the framework between operators, or more tokens in a pass"


def too_many(one: OperatorTimes, passes: int) -> str:
    """Number of kernels of an operator in words if far more run than are predicted, else empty."""
    runs = sum(one.kernels.values()) / passes
    many = one.runs and runs >= MANY * one.runs and one.measured_s >= SLOW * one.predicted_s
    return f"{runs:,.0f} kernels where {one.runs:,.0f} are predicted" if many else ""


def is_unfused(one: OperatorTimes) -> bool:
    """Whether kernels of an unfused backend run attention that is predicted as one kernel."""
    return one.kind == "attention" and of_unfused_attention(one.kernels)


def of_operator(found: Comparison, one: OperatorTimes) -> str:
    """The first remedy that names of the kernels of an operator suggest."""
    if one.kind == "collective":
        return "check the link (nvidia-smi topo -m, nvidia-smi nvlink -s) and whether the engine's own all-reduce is on"
    if _falls_back(one):
        return f"{one.dtype} was expected and 16-bit kernels ran: look for the fallback in the engine's log"
    if backend := _other_backend(one):
        return backend
    if found.phases and too_many(one, found.passes):
        return "one kernel that does the work of all (a newer build, fused operators of the engine, torch.compile)"
    return _measuring(found, one)


def _other_backend(one: OperatorTimes) -> str:
    """Another attention backend, for an unfused one or one that runs on every chip; empty for other kernels."""
    if is_unfused(one):
        return FUSED_BACKEND
    if one.kind == "attention" and PORTABLE.search(" ".join(one.kernels)):
        return f"another attention backend of the engine: {next(iter(one.longest))[:40]} runs on every chip"
    return ""


def _measuring(found: Comparison, one: OperatorTimes) -> str:
    """The remedy for kernels whose names suggest none: measurements on this chip, or what to do with them."""
    if not found.phases:
        return "look at the clock and power of its samples, then llmviewer calibrate fit, which learns from them"
    if one.borrowed:
        return f"llmviewer calibrate run on this chip: the prediction has constants of {one.borrowed} and may be wrong"
    return "measure this kernel here (llmviewer calibrate run), or run another version of the engine"


def _falls_back(one: OperatorTimes) -> bool:
    """Whether 16-bit kernels run an operator of which 8-bit or 4-bit ones are predicted."""
    kernels = " ".join(name for name in one.kernels if kind_of(name) in ("matmul", "experts"))
    return one.dtype in NARROW and bool(HALF.search(kernels)) and not EIGHT_BIT.search(kernels)


def of_waiting(found: Comparison, chosen: Configuration, *, on_host: bool) -> tuple[str, str]:
    """Why the device is idle within passes, and what to try.  on_host: operators on the processor were recorded."""
    longest = longest_wait(found)
    if on_host:
        return "the framework takes time between operators on the processor", f"torch.compile, or {FASTER_HOST}"
    if longest is not None and longest.name == PREPARE:
        return "the device waits for the host before a pass", "look at what the host does: scheduling, copies of inputs"
    if found.linked <= SINGLY:
        return "the device is idle between kernels of a pass", "look at what runs on the host meanwhile"
    text = "the host launches kernels one by one and the device waits for it"
    return text, _of_launches(chosen, found.seen.tokens)


def _of_launches(chosen: Configuration, tokens: float) -> str:
    """Remedy to try for launches one by one.  tokens: of a pass."""
    if chosen.options.enforce_eager:
        return f"{FASTER_HOST}; CUDA graphs, which --enforce-eager turns off, have no such launches"
    if chosen.system.engine.graph_tokens == 0.0:
        return f"torch.compile with CUDA graphs, an engine that captures them, or {FASTER_HOST}"
    if tokens > chosen.system.engine.graph_tokens:
        return f"piecewise CUDA graphs or torch.compile for passes of prompts, or {FASTER_HOST}"
    return "CUDA graphs: remove --enforce-eager, or raise the largest captured batch size"


#: Suspects that are listed, and the least share of the measured time that one takes.
MOST, LEAST = 5, 0.01
#: Share of the kernels' time whose operators take about one factor longer than predicted, the least such factor, and
#: the largest deviation from it: one cause for all of them is likely then.
COMMON, FACTOR, SPREAD = 0.8, 1.15, 0.12
#: Kind of kernels that nobody predicted -> what to try; LAUNCHED_BY for others.
OPTIONS_OF = {
    "lora": "state the adapters of the run (--lora)",
    "quantize": "state the number format of the run (--quantization)",
    "dequantize": "kernels that multiply packed weights (Marlin, Machete)",
    **dict.fromkeys(COMMUNICATION, "state the devices of the run (--tensor-parallel-size, --expert-parallel-size)"),
}
LAUNCHED_BY = "find the operator of the framework that launches them"
TASKS = {
    PREPARE: ("the inputs of a pass", "options of scheduling"),
    SAMPLING: ("sampling", "options of sampling"),
    OTHER_MODELS: ("another model in the same pass (encoder, draft)", "record a pass without it"),
}


@frozen
class Suspect:
    """One likely cause with the seconds per pass that it explains, and what to try."""

    text: str
    amount_s: float
    remedy: str


@frozen(eq=False)
class Case:
    """Everything that rules look at.  on_host: operators on the processor were recorded, not kernels of a device."""

    found: Comparison
    parts: tuple[Part, ...]
    chosen: Configuration
    doubts: tuple[Doubt, ...] = ()
    on_host: bool = False


def suspects_of(case: Case) -> list[Suspect]:
    """The suspects with the largest amounts, at most MOST."""
    least = LEAST * case.found.measured_s
    found = [one for rule in RULES for one in rule(case) if abs(one.amount_s) >= least]
    return sorted(found, key=lambda one: -abs(one.amount_s))[:MOST]


def _other_chip_or_model(case: Case) -> Iterator[Suspect]:
    """The recording is of another chip or model, which explains any difference."""
    other_models = case.found.operators[OTHER_MODELS].kernels  # whose time is a suspect of its own
    for doubt in case.doubts:
        if doubt.of == CHIP or (doubt.of == MODEL and not other_models):
            amount = case.found.measured_s - case.found.predicted_s
            yield Suspect(text=doubt.text, amount_s=amount, remedy=doubt.remedy)


def _slow_operators(case: Case) -> Iterator[Suspect]:
    """Operators beyond their interval: all of them by one factor, or each with a remedy that its kernels suggest."""
    alike, factor = _alike(case.found)
    if alike:
        amount = sum(one.measured_s - one.predicted_s for one in alike.values())
        text = f"all kernels take about {short(factor)} times their predicted time"
        remedy = "look for a limit of clock or power (nvidia-smi -q -d CLOCK,POWER), another chip, or other work"
        yield Suspect(text=text, amount_s=amount, remedy=remedy)
    for part in case.parts:
        if part.kind not in (names.OPERATOR, names.COMMUNICATION) or part.amount_s <= 0.0:
            continue
        one = case.found.operators[part.name]
        if part.name not in alike and (part.outside or is_unfused(one)):
            yield Suspect(text=_slow(case, one), amount_s=part.amount_s, remedy=of_operator(case.found, one))


def _slow(case: Case, one: OperatorTimes) -> str:
    times = short(one.measured_s / one.predicted_s) if one.predicted_s else "∞"
    many = too_many(one, case.found.passes) if case.found.phases else ""
    why = UNFUSED if is_unfused(one) else many
    beyond = "" if names.is_inside(one) else ", above the 80 % interval"
    return f"{one.name} takes {times} times its predicted time{beyond}" + (f": {why}" if why else "")


def _alike(found: Comparison) -> tuple[dict[str, OperatorTimes], float]:
    """The operators that take one factor longer than predicted if they are nearly all of the time, and the factor."""
    known = [one for one in found.operators.values() if one.kernels and one.predicted_s and one.name not in BESIDE]
    whole = sum(one.measured_s for one in known)
    ranked, below, factor = sorted(known, key=lambda one: one.measured_s / one.predicted_s), 0.0, 0.0
    for one in ranked:  # the median over the time of kernels
        below += one.measured_s
        factor = one.measured_s / one.predicted_s
        if below >= 0.5 * whole:
            break
    alike = [one for one in known if abs(one.measured_s / one.predicted_s / factor - 1.0) <= SPREAD]
    outside = sum(one.measured_s for one in alike if one.measured_s > one.high_s)
    if factor < FACTOR or len(alike) < len(known) / 3 or outside < COMMON * whole:
        return {}, factor
    return {one.name: one for one in alike}, factor


def _launches(case: Case) -> Iterator[Suspect]:
    """Gaps between kernels beyond those that are predicted: launches one by one, or pauses of the host."""
    amount = sum(part.amount_s for part in case.parts if part.name == names.WITHIN)
    text, remedy = of_waiting(case.found, case.chosen, on_host=case.on_host)
    longest = names.longest_wait(case.found)
    place = "" if longest is None else f", mostly before {longest.name}"
    planned = f", {told(case.found.planned_within_s)} predicted" if case.found.planned_within_s else ""
    if amount > 0.0:
        yield Suspect(text=f"{text} ({told(case.found.within_s)}{planned}{place})", amount_s=amount, remedy=remedy)


def _between(case: Case) -> Iterator[Suspect]:
    """Time of the host from one pass to the next beyond what the engine's preset predicts."""
    amount = sum(part.amount_s for part in case.parts if part.name == names.BETWEEN)
    text = f"the host takes {told(case.found.between_s)} from one pass to the next"
    text += f", {told(case.found.planned_between_s)} predicted"
    remedy = "asynchronous scheduling, a faster CPU core, fewer stop conditions, or detokenization in another process"
    if amount > 0.0:
        yield Suspect(text=text, amount_s=amount, remedy=remedy)


def _extra_kernels(case: Case) -> Iterator[Suspect]:
    """Kernels that no operator predicts, by kind, and those that the engine runs beside the model."""
    kinds: dict[str, dict[str, float]] = {}
    for where, seconds in case.found.unplanned.items():
        kinds.setdefault(where.partition(" beside ")[0], {})[where] = seconds
    for kind, places in kinds.items():
        longest, *others = sorted(places, key=lambda where: -places[where])
        more = f" and {len(others)} other operator{'s' if len(others) > 1 else ''}" if others else ""
        text = f"kernels that the prediction does not have: {longest}{more}, such as {_example(case, longest)}"
        yield Suspect(text=text, amount_s=sum(places.values()), remedy=OPTIONS_OF.get(kind, LAUNCHED_BY))
    for name in BESIDE:
        one = case.found.operators[name]
        example = next(iter(one.kernels), "")[:60]
        task, remedy = TASKS[name]
        text = f"kernels for {task}, such as {example}"
        for doubt in case.doubts:
            if doubt.of == MODEL and name == OTHER_MODELS:
                text, remedy = doubt.text, doubt.remedy
        yield Suspect(text=text, amount_s=one.measured_s, remedy=remedy)


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
            side = "more" if part.amount_s > 0.0 else "less"
            text = f"the recorded passes have {side} work than stated: {names.recorded_work(case.found)}"
            marked = case.found.seen.by == MARKS
            remedy = "leave out --stage, --batch-size and --input-len: the marks state the work"
            remedy = remedy if marked else "--batch-size and --input-len of the recorded passes"
            yield Suspect(text=text, amount_s=part.amount_s, remedy=remedy)


RULES: tuple[Callable[[Case], Iterator[Suspect]], ...] = (
    _other_chip_or_model,
    _slow_operators,
    _launches,
    _between,
    _extra_kernels,
    _unmatched,
    _other_work,
)

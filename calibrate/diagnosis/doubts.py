"""Doubts whether a recording is of the chip, the model and the work that the user states: warnings, and suspects."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan

from llmviewer.api.configuration import Configuration
from llmviewer.calibrate.devices import is_processor, known_chip
from llmviewer.calibrate.diagnosis.annotation import Stated
from llmviewer.calibrate.diagnosis.parts import LENGTHS
from llmviewer.calibrate.diagnosis.recording import Recording
from llmviewer.calibrate.diagnosis.slots import OTHER_MODELS
from llmviewer.calibrate.diagnosis.times import MARKS, Comparison, Seen
from llmviewer.calibrate.diagnosis.wording import told
from llmviewer.calibrate.e2e_rows import checkpoint
from llmviewer.calibrate.e2e_runs import POSSIBLE_SHARE
from llmviewer.calibrate.environment import chip_name
from llmviewer.calibrate.readers.run import BenchmarkRun
from llmviewer.calibrate.readers.run import Stated as StatedRun
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.core.frozen import frozen
from llmviewer.hardware import specs

#: Largest deviation of stated from recorded sizes that is no doubt.
TOLERANCE = 0.1
#: Share of the kernels of another model that bear names of the model's own, from which on it may be the same model.
SAME_NAMES = 0.5
#: Share of the time of recorded matrix products of other sizes than the model's, from which on it is another model.
FOREIGN = 0.5
#: What a doubt is about.
CHIP, MODEL, WORK = "chip", "model", "work"
BESIDE_IT = "record a pass without the other model beside it (encoder, draft)"


@frozen
class Doubt:
    """A disagreement in a sentence, and what to try.  of: CHIP, MODEL or WORK."""

    of: str
    text: str
    remedy: str = ""


def doubts_of(found: Comparison, recording: Recording, chosen: Configuration, stated: Stated) -> list[Doubt]:
    """The doubts about a recording that was compared with a configuration."""
    chip, model = chosen.chip.name, chosen.model.name
    of_chip = [*other_chip(recording.device, chip, "the recording")] or [*_other_side(recording, chip)]
    of_model = [*_other_sizes(found, model), *_other_model(found, model)]
    doubts = [*of_chip, *of_model, *_other_devices(recording, chosen), *_other_work(found.seen, stated)]
    return doubts or [*_too_fast(found, chip)]


def faster_than_possible(what: str, chip: str) -> Doubt:
    """The doubt of a run that takes less than the roofline.  what: its time beside that of the roofline, in words."""
    text = f"{what}, the least that {chip} can take: wrong chip, model, format or number of devices"
    return Doubt(of=CHIP, text=text, remedy="check --hardware, MODEL, --quantization, and -tp, -pp, -dp")


def _too_fast(found: Comparison, chip: str) -> Iterator[Doubt]:
    """Products with weights take less than the roofline; those of experts may, as tokens that are alike share them."""
    products = [one for one in found.operators.values() if one.least_s and one.kernels]
    measured, least = (sum(getattr(one, name) for one in products) for name in ("measured_s", "least_s"))
    if measured < POSSIBLE_SHARE * least:
        yield faster_than_possible(f"products with weights take {told(measured)}, below {told(least)}", chip)


def other_chip(device: str, chip: str, what: str) -> Iterator[Doubt]:
    """The doubt that `what` is of another chip; none for names without a spec, such as those of users' own chips."""
    recorded = known_chip(chip_name(device)) if device else ""
    if recorded and known_chip(chip) and recorded != known_chip(chip):
        known = "" if device == recorded else f" ({recorded})"
        text = f"{what} is of {device}{known}, and the prediction is of {chip}"
        yield Doubt(of=CHIP, text=text, remedy=f"--hardware {recorded}")


def _other_side(recording: Recording, chip: str) -> Iterator[Doubt]:
    """The doubt that operators on a processor are compared with a device, or kernels of a device with a processor."""
    if not known_chip(chip) or recording.on_host == is_processor(chip):
        return
    if recording.on_host:
        text = f"the recording has operators on the CPU and no kernels of a device, and the prediction is of {chip}"
        yield Doubt(of=CHIP, text=text, remedy=f"record the kernels of {chip}, or --hardware of the CPU that ran")
    else:
        text = f"the recording has kernels of a device, and the prediction is of the CPU {chip}"
        yield Doubt(of=CHIP, text=text, remedy="--hardware of the device that ran")


def _other_sizes(found: Comparison, model: str) -> Iterator[Doubt]:
    """Most matrix products by weights have sizes that the model does not have."""
    foreign = {size: seconds for size, seconds in found.inputs.items() if size not in found.own_inputs}
    if not foreign or sum(foreign.values()) < FOREIGN * sum(found.inputs.values()):
        return
    recorded, own = (", ".join(f"{size:,.0f}" for size in sorted(sizes)[:4]) for sizes in (foreign, found.own_inputs))
    text = f"matrix products of the recording have {recorded} inputs, and those of {model} have {own}"
    yield Doubt(of=MODEL, text=text, remedy="check that MODEL is the one that ran")


def _other_model(found: Comparison, model: str) -> Iterator[Doubt]:
    """A pass has more layers than the model, with the same kernels."""
    own = {name for one in found.operators.values() if one.name != OTHER_MODELS for name in one.kernels}
    others = found.operators[OTHER_MODELS].kernels if OTHER_MODELS in found.operators else {}
    if not others or sum(count for name, count in others.items() if name in own) < SAME_NAMES * sum(others.values()):
        return
    runs = [one for one in found.operators.values() if one.kind == "attention" and one.runs and one.kernels]
    layers = f", which has attention in {runs[0].runs:g} layers" if runs else ""
    text = f"kernels of the same names run outside of the layers of {model}{layers}: it may not be the model that ran"
    yield Doubt(of=MODEL, text=text, remedy=f"check that MODEL is the one that ran; if it is, {BESIDE_IT}")


def _other_devices(recording: Recording, chosen: Configuration) -> Iterator[Doubt]:
    """The recording is of one of several processes, and the prediction is of another number of devices."""
    devices, recorded = chosen.system.parallelism.devices, recording.world_size
    if recorded > 1 and recorded != devices:
        text = f"the recording is of one of {recorded:,} processes (world_size)"
        remedy = f"-tp {recorded}, if all of them divide the model among each other"
        predicted = "one device" if devices == 1 else f"{devices:g} devices"
        yield Doubt(of=WORK, text=f"{text}, and the prediction is of {predicted}", remedy=remedy)


def _other_work(seen: Seen, stated: Stated) -> Iterator[Doubt]:
    """The user states other work than the recording does."""
    if not seen.by:
        return
    taken = "" if stated.is_whole else ", which are compared"
    if seen.by == MARKS:
        if stated.stage and seen.phase != stated.stage:
            yield Doubt(of=WORK, text=f"--stage is {stated.stage}, and the marks are of {seen.phase} passes{taken}")
            return
        if _differ(stated.requests, seen.requests):
            text = f"--batch-size is {stated.requests:g}, and the marks state {seen.requests:,.4g} requests in a pass"
            yield Doubt(of=WORK, text=text + taken)
        if seen.phase in ("prefill", "decode") and _differ(stated.length, seen.length):
            text = f"--input-len is {stated.length:g}, and the marks state {seen.length:,.6g} {LENGTHS[seen.phase]}"
            yield Doubt(of=WORK, text=f"{text} of a request{taken}")
        return
    tokens = stated.requests * (stated.length if stated.stage == "prefill" else 1.0)
    if _differ(tokens, seen.tokens):
        text = f"the shapes of matrix products have {seen.tokens:,.6g} tokens in a pass"
        yield Doubt(of=WORK, text=f"{text}, and the options state {tokens:,.6g}")


def doubts_of_run(run: BenchmarkRun, stated: StatedRun) -> Iterator[Doubt]:
    """The doubts about the result of a benchmark, whose file states chip, model and lengths of its own."""
    yield from other_chip(run.hardware, specs.load(stated.hardware).name, "the result")
    recorded, chosen = (_known_model(name) for name in (run.model, stated.model))
    if recorded and chosen and recorded != chosen:
        text = f"the result is of {run.model} ({recorded}), and the prediction is of {chosen}"
        yield Doubt(of=MODEL, text=text, remedy=f"{recorded} as MODEL")
    for option, given, size in (
        ("--batch-size", stated.batch_size, run.batch),
        ("--input-len", stated.input_len, run.input_len),
        ("--output-len", stated.output_len, run.output_len),
    ):
        if given and size and _differ(float(given), size):
            text = f"{option} is {given}, and the result states {size:,.6g}; the option is compared"
            yield Doubt(of=WORK, text=text, remedy=f"leave out {option}")


def _known_model(name: str) -> str:
    """The model of the catalogue that a name means, empty without one."""
    try:
        return "" if not name or data.user_path(name) else checkpoint(name)[0]
    except UserError:
        return ""


def _differ(stated: float, recorded: float) -> bool:
    """Whether two sizes differ beyond the tolerance; unknown ones do not."""
    return not isnan(stated + recorded) and abs(stated - recorded) > TOLERANCE * recorded

"""Utilizations as trees: FLOP over time and peak, bytes of decode over time and bandwidth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llmviewer.core.counts import present
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Role
from llmviewer.language.quantity import METRICS
from llmviewer.result.explanation.chips import sheet
from llmviewer.result.explanation.figures import rate
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node, of_formula, sum_of
from llmviewer.result.explanation.rounds import decode_nodes
from llmviewer.result.explanation.schedule import own_prefill
from llmviewer.result.stages import ValueOf

USEFUL = "matrix FLOP of attended pairs over all layers and passes of the prompts (analysis/analysis.py)"
STEPS = "matrix FLOP of attended pairs over all layers and real decode passes (analysis/analysis.py)"
AT_PEAK = "time of the products at the peak of the data sheet"
READS = "weights and cache read in every decode pass, over all its operators and layers"
PER_ROUND = "{what} of a round of passes over the tokens that it keeps"
PREFILL_MFU = "share of the peak of the matrix units that prefill reaches"
DECODE_MFU = "share of the peak of the matrix units that decode steps reach"
DECODE_MBU = "share of the memory bandwidth that decode steps use for weights and cache"


def utilization(one: Question, name: str) -> Node:
    """A utilization of a request.  Raises UserError for one without a value."""
    if np.isnan(getattr(one.analysis, name)[one.point]):
        raise UserError(f"{name} is undefined: {METRICS[name].undefined}")
    return {"prefill_mfu": _prefill_mfu, "decode_mfu": _decode_mfu, "decode_mbu": _decode_mbu}[name](one)


def _prefill_mfu(one: Question) -> Node:
    """Causal matmul FLOP of prefill over its time and the dense peak, each dtype at its own peak."""
    at_peak = _at_peak(one, one.summed("prefill"), "prefill", USEFUL)
    prefill = sum_of("prefill_s", tuple(own_prefill(one)), "prefill by the model without draft models")
    return of_formula("prefill_mfu", "at_peak_s / prefill_s", (at_peak, prefill), PREFILL_MFU, {}, "")


def _at_peak(one: Question, summed: ValueOf, stage: str, source: str) -> Node:
    """Time of the products of one model at the dense peak, by dtype and operator.  summed: over passes of a stage."""
    own, at = one.analysis, one.at_pass(one.shown[stage])
    work: dict[str, list[Node]] = {}
    for row in own.evaluation.rows:
        if present(row.operator.matmul_flops):
            flops = summed(row.operator.useful_flops * float(row.block.repeats))
            name = f"{row.block.name}.{row.operator.name}"
            found = Node(name=name, value=flops, unit="FLOP", source=f"{source}; {at.config}")
            work.setdefault(own.system.chip.compute_dtype(row.operator.compute), []).append(found)
    parts = []
    for dtype, nodes in work.items():
        flops_ = sum_of("flops", tuple(nodes), source, "FLOP")
        peak = rate(at, dtype)
        parts.append(of_formula(f"{dtype}_s", f"flops / {peak.name}", (flops_, peak), f"{dtype} products at the peak"))
    return sum_of("at_peak_s", tuple(parts), AT_PEAK)


def _decode_mfu(one: Question) -> Node:
    """Causal matmul FLOP of the real decode steps over their time and the dense peak."""

    def of_model(own: Question) -> Node:
        passes, chip = own.analysis.passes, own.analysis.chip_per_pass()
        if passes.is_whole:
            return _at_peak(own, _decode_sum(own), "decode", STEPS)
        return Node(name="at_peak_s", value=_decode_sum(own)(passes.at_peak_s(chip)), unit="s", source=AT_PEAK)

    done, batches = _of_rounds(one, of_model)
    decode = sum_of("decode_s", decode_nodes(one, 1.0), "all real decode steps")
    formula = f"micro_batches * {done.name} / decode_s"
    return of_formula("decode_mfu", formula, (done, decode), DECODE_MFU, {"micro_batches": batches}, "")


def _decode_mbu(one: Question) -> Node:
    """Weight and cache bytes of the real decode steps over their time and the bandwidth."""
    read, batches = _of_rounds(one, _reads)
    decode = sum_of("decode_s", decode_nodes(one, 1.0), "all real decode steps")
    chip = one.at_pass(one.shown["decode"]).chip
    bandwidth = Node(
        name="peak_bandwidth",
        value=float(np.max(chip.bandwidth_bytes_per_s)),
        unit="byte/s",
        source=sheet(chip, "bandwidth_bytes_per_s"),
    )
    formula = "micro_batches * read_bytes / (decode_s * peak_bandwidth)"
    return of_formula("decode_mbu", formula, (read, decode, bandwidth), DECODE_MBU, {"micro_batches": batches}, "")


def _of_rounds(one: Question, of_model: Callable[[Question], Node]) -> tuple[Node, float]:
    """A quantity of all decode passes per kept token, of the model and its drafts, and how many micro-batches run."""
    own, generation = one.analysis, one.analysis.system.generation
    verified = of_model(one)
    name, unit, source = verified.name, verified.unit, verified.source
    parts = [verified]
    for draft, drafting in one.drafts:
        passes = {"draft_passes": one.at(draft.passes)}
        inner = (of_model(drafting),)
        parts.append(of_formula(f"draft: {draft.name}", f"draft_passes * {name}", inner, source, passes, unit))
    ending = name.rpartition("_")[2]
    rounds = sum_of(f"rounds_{ending}", tuple(parts), source, unit)
    kept = {"tokens_per_round": one.at(generation.tokens)}
    told = PER_ROUND.format(what="bytes" if unit == "byte" else "time")
    found = of_formula(name, f"{rounds.name} / tokens_per_round", (rounds,), told, kept, unit)
    return found, 1.0 if own.system.parallelism.microbatches == 1 else one.at(own.in_flight)


def _decode_sum(one: Question) -> ValueOf:
    """Function from a quantity of every pass to its sum over the real decode steps."""
    return lambda values: one.at(one.analysis.schedule.decode_sum(values))


def _reads(one: Question) -> Node:
    """Bytes that one model reads in its decode passes, by operator where these are kept."""
    own, summed = one.analysis, _decode_sum(one)
    if not own.passes.is_whole:
        return Node(name="read_bytes", value=summed(own.passes.read_bytes), unit="byte", source=READS)
    found = []
    for row in own.evaluation.rows:
        value = summed(row.operator.read_bytes(Role.WEIGHT, Role.CACHE)) * float(row.block.repeats)
        if value:
            name = f"{row.block.name}.{row.operator.name}"
            found.append(Node(name=name, value=value, unit="byte", source=READS))
    return sum_of("read_bytes", tuple(found), READS, "byte")

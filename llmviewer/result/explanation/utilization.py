"""Utilizations as trees: FLOP of prefill over time and peak, bytes of decode over time and bandwidth."""

from __future__ import annotations

import numpy as np

from llmviewer.core.counts import Count, present
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Role
from llmviewer.result.explanation.chips import sheet
from llmviewer.result.explanation.figures import rate
from llmviewer.result.explanation.metrics import Question
from llmviewer.result.explanation.node import Node, of_formula, sum_of
from llmviewer.result.explanation.rounds import decode_nodes
from llmviewer.result.explanation.schedule import own_prefill

USEFUL = "matrix FLOP of attended pairs over all layers and passes of the prompts (analysis/analysis.py)"
READS = "weights and cache read in every decode pass, over all its operators and layers"
PER_ROUND = "bytes of a round of passes over the tokens that it keeps"


def utilization(one: Question, name: str) -> Node:
    """A utilization of a request.  Raises UserError for one without a value."""
    if np.isnan(getattr(one.analysis, name)[one.point]):
        raise UserError(f"{name} is undefined without decode steps; give --output-len 2 or more, or another number")
    return _mfu(one) if name == "prefill_mfu" else _mbu(one)


def _mfu(one: Question) -> Node:
    """Causal matmul FLOP of prefill over its time and the dense peak, each dtype at its own peak."""
    own, at, summed = one.analysis, one.at_pass(one.shown["prefill"]), one.summed("prefill")
    work: dict[str, list[Node]] = {}
    for row in own.evaluation.rows:
        if present(row.operator.matmul_flops):
            useful = row.operator.matmul_flops - row.operator.masked_flops
            flops = summed(useful * float(row.block.repeats))
            name = f"{row.block.name}.{row.operator.name}"
            found = Node(name=name, value=flops, unit="FLOP", source=f"{USEFUL}; {at.config}")
            work.setdefault(own.system.chip.compute_dtype(row.operator.compute), []).append(found)
    parts = []
    for dtype, nodes in work.items():
        flops_ = sum_of("flops", tuple(nodes), USEFUL, "FLOP")
        peak = rate(at, dtype)
        parts.append(of_formula(f"{dtype}_s", f"flops / {peak.name}", (flops_, peak), f"{dtype} products at the peak"))
    at_peak = sum_of("at_peak_s", tuple(parts), "time of the products at the peak of the data sheet")
    prefill = sum_of("prefill_s", tuple(own_prefill(one)), "prefill by the model without draft models")
    source = "share of the peak of the matrix units that prefill reaches"
    return of_formula("prefill_mfu", "at_peak_s / prefill_s", (at_peak, prefill), source, {}, "")


def _mbu(one: Question) -> Node:
    """Weight and cache bytes of the real decode steps over their time and the bandwidth."""
    own, generation = one.analysis, one.analysis.system.generation
    parts, tokens = [_reads(one)], one.at(generation.tokens)
    for draft, drafting in one.drafts:
        inner = _reads(drafting)
        passes = {"draft_passes": one.at(draft.passes)}
        parts.append(of_formula(f"draft: {draft.name}", "draft_passes * read_bytes", (inner,), READS, passes, "byte"))
    rounds = sum_of("rounds_bytes", tuple(parts), READS, "byte")
    kept = {"tokens_per_round": tokens}
    read = of_formula("read_bytes", "rounds_bytes / tokens_per_round", (rounds,), PER_ROUND, kept, "byte")
    decode = sum_of("decode_s", decode_nodes(one, 1.0), "all real decode steps")
    chip = one.at_pass(one.shown["decode"]).chip
    bandwidth = Node(
        name="peak_bandwidth",
        value=float(np.max(chip.bandwidth_bytes_per_s)),
        unit="byte/s",
        source=sheet(chip, "bandwidth_bytes_per_s"),
    )
    batches = 1.0 if own.system.parallelism.microbatches == 1 else one.at(own.in_flight)
    formula = "micro_batches * read_bytes / (decode_s * peak_bandwidth)"
    source = "share of the memory bandwidth that decode steps use for weights and cache"
    return of_formula("decode_mbu", formula, (read, decode, bandwidth), source, {"micro_batches": batches}, "")


def _reads(one: Question) -> Node:
    """Bytes that one model reads in its decode passes, by operator where these are kept."""
    own = one.analysis

    def summed(values: Count) -> float:
        return one.at(own.schedule.decode_sum(values))

    if not own.passes.is_whole:
        return Node(name="read_bytes", value=summed(own.passes.read_bytes), unit="byte", source=READS)
    found = []
    for row in own.evaluation.rows:
        value = summed(row.operator.read_bytes(Role.WEIGHT, Role.CACHE)) * float(row.block.repeats)
        if value:
            name = f"{row.block.name}.{row.operator.name}"
            found.append(Node(name=name, value=value, unit="byte", source=READS))
    return sum_of("read_bytes", tuple(found), READS, "byte")

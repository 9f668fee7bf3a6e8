"""`--fusion`: run neighbouring operators as one kernel, by declared rules; intermediates stay on the chip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import numpy as np
import numpy.typing as npt

from llmviewer.analysis.system import AppliedTechnique, RuleOutcome
from llmviewer.core.counts import Count, present, total
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.ir import Access, Block, Graph, Operator, Pass, Role, summed_work
from llmviewer.core.kinds import Kind, OperatorRole
from llmviewer.hardware.chip import Chip
from llmviewer.ops.collective import CollectiveShape
from llmviewer.techniques.kernels.fusion_flow import Flow, joined_name
from llmviewer.techniques.kernels.fusion_rules import RULES, Candidate, FusionRule
from llmviewer.techniques.technique import Change, Technique

NEXT_NORM = "next-norm"
#: Input of a layer: the residual stream.
STREAM = "hidden"
#: Kinds of kernels in which the last residual sum of a layer may run.
ENDS = (Kind.ELEMENTWISE, Kind.COLLECTIVE)
#: Generation -> devices -> largest message that kernels fuse with the sum and norm after it [MiB]; larger ones run as
#: kernels of their own.  Source: FI_ALLREDUCE_FUSION_MAX_SIZE_MB in
#: https://github.com/vllm-project/vllm/blob/main/vllm/compilation/passes/fusion/allreduce_rms_fusion.py
LARGEST_MIB: dict[str, dict[float, float]] = {
    "hopper": {2.0: 64.0, 4.0: 2.0, 8.0: 0.5},
    "blackwell": {2.0: 64.0, 4.0: 32.0, 8.0: 1.0},
}


def fits_exchange(shape: CollectiveShape, chip: Chip) -> tuple[npt.NDArray[np.bool_], bool, str]:
    """Mask of the points at which an all-reduce is fused, whether that is assumed, and the reason where it is not."""
    largest = LARGEST_MIB.get(chip.generation, {}).get(shape.devices)
    if largest is None or shape.devices > shape.near:
        return np.array(False), False, f"no fused kernel for {shape.devices:g} devices of {chip.name}"
    fits = np.asarray(shape.size_bytes <= largest * 2.0**20)
    return (
        fits,
        False,
        "" if fits.all() else f"larger messages than {largest:g} MiB are reduced by a kernel of their own",
    )


def with_next_norm(block: Block) -> Block:
    """The layer with its first norm run by the kernel of its last residual sum.

    The sum of a layer runs in one kernel with the norm of the next one, which does not read the sum again.  The sum is
    still written, as the residual stream.  All layers of a block are counted alike: the first norm of the model, which
    follows no sum, counts as the final norm, which follows the last one.
    """
    ends = _ends(block)
    if ends is None:
        return block
    norm, sums = ends
    outputs = {access.tensor.name: STREAM for access in norm.writes}
    kept = [_with_norm(op, norm) if op in sums else op.reading(outputs) for op in block.operators[1:]]
    return replace(block, operators=tuple(kept))


def next_norm_outcomes(block: Block) -> list[RuleOutcome]:
    """Outcome of the rule on a block after the rules within it."""
    ends = _ends(block)
    if ends is None:
        return []
    norm, sums = ends
    where: Count = total(op.where for op in sums)
    names = (sums[-1].name, norm.name)
    return [RuleOutcome(rule=NEXT_NORM, block=block.name, operators=names, where=where, kernel="+".join(names))]


def _ends(block: Block) -> tuple[Operator, tuple[Operator, ...]] | None:
    """The first norm of a layer, and the kernels of its last sum at different points; None if it has no such ends."""
    first, last = block.operators[0], block.operators[-1]
    begins = first.kind is Kind.NORM and STREAM in first.inputs and isinstance(first.where, float)
    if not block.is_layer or not begins or not _is_sum(last):
        return None
    return first, tuple(op for op in block.operators[1:] if _is_sum(op) and _writes(op, last.writes[-1].tensor.name))


def _is_sum(operator: Operator) -> bool:
    return operator.role is OperatorRole.RESIDUAL and operator.kind in ENDS


def _writes(operator: Operator, name: str) -> bool:
    return any(access.tensor.name == name for access in operator.writes)


def _with_norm(sums: Operator, norm: Operator) -> Operator:
    """One kernel for a sum and the norm of the next layer, at the points at which the sum runs."""
    weights = (access for access in norm.reads if access.tensor.role is Role.WEIGHT)
    added = tuple(_where(access, sums.where) for access in (*weights, *norm.writes))
    reads, writes = (tuple(a for a in added if (a.tensor.role is Role.WEIGHT) is stored) for stored in (True, False))
    here = norm.map_work(lambda count: count * sums.where)
    return replace(
        sums,
        name=f"{sums.name}+{norm.name}",
        kind=Kind.NORM if sums.kind is Kind.ELEMENTWISE else sums.kind,
        role=OperatorRole.OTHER,
        reads=(*sums.reads, *reads),
        writes=(*sums.writes, *writes),
        **summed_work((sums, here)),
    )


def _where(access: Access, where: Count) -> Access:
    return access if isinstance(where, float) else Access(access.tensor, access.elements * where)


Mask = npt.NDArray[np.bool_]
Names = Sequence[str]


def fuse(rules: Names, chip: Chip) -> Pass:
    """Fuse operators by the given rules, in the order of fusion_rules.RULES.

    Bytes: an intermediate is not read again, and not written if no other operator reads it; sibling products read their
    input once.  FLOPs are unchanged: recomputation (a norm for every column of tiles) is not counted, like other reuse
    on the chip.  A rule applies at points whose tile fits the on-chip memory of a unit; a tile is assumed to fit if
    that memory is unknown.  If points differ, the graph has both forms, each with the counts of the points at which it
    runs.  A block that is already fused is unchanged.  Sums and norms of different layers are fused by `next-norm`.
    Source: arXiv 2402.16363, section 5.1.
    """
    chosen = _rules_named(rules)
    across = with_next_norm if NEXT_NORM in rules else lambda block: block
    return lambda graph: graph.map_blocks(lambda block: across(_Plan.from_block(block, chosen, chip).block()))


def report(graph: Graph, rules: Names, chip: Chip) -> tuple[RuleOutcome, ...]:
    """Outcome of every rule on a graph before fusion: whether it applies, or the reason why not."""
    found: list[RuleOutcome] = []
    for block in graph.blocks:
        plan = _Plan.from_block(block, _rules_named(rules), chip)
        found += plan.log + (next_norm_outcomes(plan.block()) if NEXT_NORM in rules else [])
    for rule in _rules_named(rules):
        if all(fired.rule != rule.name for fired in found):
            found.append(RuleOutcome(rule=rule.name, reason=rule.missing))
    return tuple(found)


def _rules_named(names: Names) -> tuple[FusionRule, ...]:
    return tuple(rule for rule in RULES if rule.name in names)


@dataclass(slots=True, kw_only=True)
class _Plan:
    """The kernels of a block and the points at which they run; at every point each operator is in one kernel."""

    source: Block
    flow: Flow
    chip: Chip
    kernels: dict[tuple[int, ...], Mask]
    log: list[RuleOutcome] = field(default_factory=list)

    @staticmethod
    def from_block(block: Block, rules: tuple[FusionRule, ...], chip: Chip) -> _Plan:
        """The plan after all rules, applied in order."""
        flow = Flow(block.operators)
        kernels: dict[tuple[int, ...], Mask] = {(place,): np.array(True) for place in range(len(block.operators))}
        plan = _Plan(source=block, flow=flow, chip=chip, kernels=kernels)
        if not any("+" in op.name for op in block.operators):
            for rule in rules:
                for candidate in rule.match(flow):
                    plan.log.append(plan.apply(rule, candidate))
        return plan

    def apply(self, rule: FusionRule, candidate: Candidate) -> RuleOutcome:
        """Join the kernels with the candidate's operators at the points where this is possible."""
        names = tuple(self.flow.operators[k].name for k in candidate.operators)
        outcome = partial(RuleOutcome, rule=rule.name, block=self.source.name, operators=names)
        if candidate.refused:
            return outcome(reason=candidate.refused)
        fits, assumed, size = self._fits(candidate)
        reasons: list[str] = []
        done, kernel = np.array(False), ""
        for parts in product(*([m for m in self.kernels if k in m] for k in candidate.operators)):
            where = fits
            for part in set(parts):
                where = where & self.kernels[part]
            members = tuple(sorted({k for part in parts for k in part}))
            if not where.any():
                continue
            conflict = self.flow.conflict(members)
            if conflict:
                reasons.append(conflict)
                continue
            self._join(set(parts), members, where)
            done = done | where
            kernel = joined_name(self.flow.operators[at].name for at in members)
            reasons += [f"{t} is still written: {r} reads it" for t, r in self.flow.kept(members).items()]
        sizes = [] if fits.all() else [size]
        reason = "; ".join(dict.fromkeys((*sizes, *reasons)))
        assumed = assumed and bool(done.any())
        return outcome(where=done.astype(float), kernel=kernel, reason=reason, assumed=assumed)

    def _join(self, parts: set[tuple[int, ...]], members: tuple[int, ...], where: Mask) -> None:
        for part in parts:
            self.kernels[part] = self.kernels[part] & ~where
        self.kernels[members] = self.kernels.get(members, np.array(False)) | where
        self.kernels = {members: mask for members, mask in self.kernels.items() if mask.any()}

    def _fits(self, candidate: Candidate) -> tuple[Mask, bool, str]:
        """Mask of the points at which a tile fits, whether that is assumed, and a text with the sizes."""
        if candidate.exchange is not None:
            return fits_exchange(candidate.exchange, self.chip)
        tile, capacity = candidate.tile_bytes, self.chip.on_chip_bytes_per_unit
        if not present(tile) or capacity is None:
            return np.array(True), capacity is None and present(tile), ""
        if np.all(tile <= capacity):
            return np.array(True), False, ""
        low, high, most = (f"{bound / 2.0**10:,.6g}" for bound in (np.min(tile), np.max(tile), np.max(capacity)))
        size = f"{low} KiB" if low == high else f"{low} to {high} KiB"
        return np.asarray(tile <= capacity), False, f"a tile needs {size}, a unit has {most} KiB"

    def block(self) -> Block:
        """The block with the kernels instead of its operators."""
        if len(self.kernels) == len(self.source.operators) and all(len(members) == 1 for members in self.kernels):
            return self.source
        order = sorted(self.kernels, key=lambda members: (self.flow.position(members) or 0, members))
        built = [(self.flow.merged(members), self.kernels[members]) for members in order]
        return replace(self.source, operators=tuple(at_points(op, where) for op, where in built))


def at_points(operator: Operator, where: Mask) -> Operator:
    """The operator with counts of zero at points where it does not run."""
    if where.all():
        return operator

    def at(count: Count) -> Count:
        return np.where(where, count, 0.0) if present(count) else count

    def accesses(listed: tuple[Access, ...]) -> tuple[Access, ...]:
        return tuple(Access(a.tensor, at(a.elements)) for a in listed)

    return replace(
        operator.map_work(at),
        reads=accesses(operator.reads),
        writes=accesses(operator.writes),
        where=operator.where * where.astype(float),
    )


def parse_rules(text: str) -> tuple[str, ...]:
    """Parse `all` or names of rules joined by `+`."""
    known = tuple(rule.name for rule in RULES)
    if text == "all":
        return tuple(rule.name for rule in RULES if not rule.named)
    names = tuple(name.strip() for name in text.split("+"))
    for name in names:
        if name not in known:
            raise unknown("rule of --fusion", name, ("none", "all", *known))
    if len(set(names)) < len(names):
        raise UserError("--fusion: a rule is given twice")
    return names


def _make(text: str) -> Change:
    names = parse_rules(text)

    def make(chip: Chip) -> Pass:
        return fuse(names, chip)

    def explain(graph: Graph, chip: Chip) -> tuple[RuleOutcome, ...]:
        return report(graph, names, chip)

    applied = AppliedTechnique(name=f"fuse({'all' if text == 'all' else '+'.join(names)})", make=make, explain=explain)
    return lambda system: replace(system, passes=(*system.passes, applied))


TECHNIQUE = Technique(
    name="fusion",
    kind="fusion",
    summary="Runs neighbouring operators as one kernel if a tile of the intermediate fits on the chip.",
    formula="bytes saved: 2 per element and byte of an intermediate (write and read; 1 where another operator reads "
    "it), the input of products side by side n - 1 times; FLOPs as before",
    source="survey arXiv 2402.16363 section 5.1; DeepSpeed-Inference arXiv 2207.00032",
    example="llmviewer analyze llama-2-7b --hardware a6000 --input-len 2048 --fusion all",
    make=_make,
)

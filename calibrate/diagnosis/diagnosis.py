"""The answer of `diagnose`: where a measured run lost its time, as one document that pages and JSON show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from llmviewer.calibrate.diagnosis.parts import Part, is_inside
from llmviewer.calibrate.diagnosis.suspects import Suspect
from llmviewer.calibrate.diagnosis.times import BESIDE, Comparison, OperatorTimes
from llmviewer.core.answer import Answer
from llmviewer.core.frozen import frozen

SCHEMA = "llmviewer.diagnosis/1"
#: Share of an operator's time that the device is idle before its kernels, above which the host is to blame.
HOST_SHARE = 0.5
FINE, SLOW, FAST, HOST, UNPREDICTED, NO_KERNEL = "fine", "slow", "fast", "host", "unpredicted", "no kernel"


@frozen(eq=False, repr=False)
class Diagnosis(Answer):
    """Measured against predicted time [s], and what explains the difference.

    Times of a recording are means per forward pass, those of a benchmark's result are of one request.  details: the
    operators and kernels of a recording, or the metrics of a result.
    """

    QUESTION: ClassVar[str] = "diagnose"
    source: str
    program: str
    model: str
    hardware: str
    engine: str
    measured_s: float
    predicted_s: float
    parts: tuple[Part, ...]
    suspects: tuple[Suspect, ...]
    details: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One row per operator of a recording, or per metric of a result."""
        found: list[dict[str, Any]] = self.details.get("operators") or self.details["metrics"]
        return found

    def to_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": SCHEMA,
            "warnings": list(self.warnings),
            "source": self.source,
            "program": self.program,
            "model": self.model,
            "hardware": self.hardware,
            "engine": self.engine,
            "measured_s": self.measured_s,
            "predicted_s": self.predicted_s,
            "difference_s": self.measured_s - self.predicted_s,
            "unmatched_s": self.details.get("unmatched_s", 0.0),
            "parts": [_part(one) for one in self.parts],
            "suspects": [{"text": one.text, "amount_s": one.amount_s, "try": one.remedy} for one in self.suspects],
            **self.details,
        }


def details_of(found: Comparison) -> dict[str, Any]:
    """Operators and kernels of a recording, and how busy the device was."""
    return {
        "passes": found.passes,
        "followed": found.followed,
        "phases": dict(found.phases),
        "kernel_s": found.kernel_s,
        "busy_s": found.kernel_s - found.overlap_s,
        "gap_s": found.gap_s,
        "unmatched_s": found.unmatched_s,
        "unpredicted_s": sum(found.unplanned.values()),
        "assigned_share": 1.0 - found.unmatched_s / found.kernel_s if found.kernel_s else 1.0,
        "operators": [_operator(one) for one in found.operators.values() if one.kernels or one.predicted_s],
        "kernels": list(_kernels(found.runs)),
    }


def _part(one: Part) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "amount_s": one.amount_s,
        "outside_interval": one.outside,
        "evidence": one.evidence,
    }


def _operator(one: OperatorTimes) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "measured_s": one.measured_s if one.kernels else None,
        "predicted_s": None if one.name in BESIDE else one.predicted_s,
        "interval80": None if one.name in BESIDE else [one.low_s, one.high_s],
        "gap_s": one.wait_s,
        "verdict": verdict(one),
        "kernels": one.longest,
    }


def verdict(one: OperatorTimes) -> str:
    """Verdict on one operator: its kernels are fine, slow or fast, or the device waits for the host before them."""
    if not one.kernels:
        return NO_KERNEL
    if one.name in BESIDE or not one.predicted_s:
        return UNPREDICTED
    if one.wait_s > HOST_SHARE * one.measured_s:
        return HOST
    if is_inside(one):
        return FINE
    return SLOW if one.measured_s > one.high_s else FAST


def _kernels(runs: Mapping[tuple[str, str, str], list[float]]) -> Iterable[dict[str, Any]]:
    """Kernels per pass with their operator, the longest first; no operator: null."""
    for (name, kind, operator), (count, seconds) in sorted(runs.items(), key=lambda item: -item[1][1]):
        yield {"name": name, "kind": kind, "operator": operator or None, "runs": count, "seconds": seconds}

"""Contents of the network for a stage or the whole request: operators, blocks and draft models with their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

from llmviewer.core.frozen import frozen
from llmviewer.reports.html.operators import Line
from llmviewer.result.request_time import StageTime, drafts_of_round, stage_time
from llmviewer.result.result import Result
from llmviewer.result.stages import value_at


@frozen
class Part:
    """An operator in one stage of a request.

    line: its figures in the stage that `analyze` shows.  seconds: of one layer over all passes of the request.
    """

    line: Line
    passes: float
    seconds: float


@frozen(slots=False, eq=False)
class RequestLine(Line):
    """An operator of the whole request, whose time is the sum of its parts, and what it is in each stage."""

    parts: tuple[Part, ...] = ()


@frozen(slots=False)
class Shown:
    """Operators with their shares of `time_s`, the time of a round with draft models or of a whole request.

    hidden_s: block -> seconds by which copies and kernels of all its layers overlap.  drafts: draft model -> seconds.
    factor: part of the time of passes that a request takes, less than 1 where stages of a pipeline run at once.
    """

    lines: Sequence[Line]
    time_s: float
    hidden_s: Mapping[str, float] = field(default_factory=dict)
    drafts: Mapping[str, float] = field(default_factory=dict)
    factor: float = 1.0

    @cached_property
    def blocks(self) -> dict[str, list[Line]]:
        """Operators by block, in the order in which blocks first run."""
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            found.setdefault(line.operator["block"], []).append(line)
        return found

    def seconds(self, block: str) -> float:
        """Time of all layers of a block [s]: of its operators one after another, less the overlap of its copies."""
        serial = sum(line.operator["time_s"] * line.operator["layers"] for line in self.blocks[block])
        return float(serial - self.hidden_s.get(block, 0.0))

    def share(self, block: str) -> float:
        """Part of the time that a block takes."""
        return self.seconds(block) / self.time_s


def one_stage(lines: Sequence[Line], result: Result, answer: Mapping[str, Any], stage: str) -> Shown:
    """Prefill with that of draft models, or the decode step shown with the drafting of its round."""
    own = [line for line in lines if line.stage == stage]
    of_stage = answer["stages"][stage]
    repeats = {line.operator["block"]: line.operator["layers"] for line in own}
    outside_s = 0.0
    if stage == "prefill":
        drafts = stage_time(result.analysis, stage, 0).drafts if result.analysis.drafts else {}
    else:
        drafts, outside_s = drafts_of_round(result.analysis, 0), value_at(result.analysis.system.outside_kernels_s, 0)
    whole_s = of_stage["time_s"] + sum(drafts.values()) + outside_s
    part = of_stage["time_s"] / whole_s
    return Shown(
        lines=[replace(line, share=line.share * part) for line in own] if part < 1.0 else own,
        time_s=whole_s,
        hidden_s={name: saved * repeats[name] for name, saved in of_stage["overlap_s"].items() if name in repeats},
        drafts={name: seconds for name, seconds in drafts.items() if seconds},
    )


def whole_request(lines: Sequence[Line], result: Result, answer: Mapping[str, Any], _: str) -> Shown:
    """Operators over all passes of prefill and decode, with their shares of the end-to-end latency."""
    spent = {stage: stage_time(result.analysis, stage, 0) for stage in ("prefill", "decode")}
    joined: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        joined.setdefault((line.operator["block"], line.operator["name"]), []).append(line)
    whole_s = float(answer["metrics"]["e2e_s"])
    found = [_joined(both, spent, whole_s) for both in joined.values()]
    return Shown(
        lines=[line for line in found if line.parts],
        time_s=whole_s,
        hidden_s=_added(one.hidden_s for one in spent.values()),
        drafts=_added(one.drafts for one in spent.values()),
        factor=min(one.factor for one in spent.values()),
    )


def _joined(both: Sequence[Line], spent: Mapping[str, StageTime], whole_s: float) -> RequestLine:
    """An operator of one or both stages; what does not add up is that of the stage in which it takes longer."""
    first = both[0].operator
    key, block = (first["block"], first["name"]), first["block"]
    parts = [
        Part(line=line, passes=own.passes, seconds=own.operators[key] / own.layers[block])
        for line in both
        for own in (spent[line.stage],)
        if own.passes
    ]
    longer = max(parts, key=lambda part: part.seconds).line if parts else both[0]
    seconds, layers = sum(part.seconds for part in parts), spent[longer.stage].layers[block]
    return RequestLine(
        key=longer.key,
        configuration=longer.configuration,
        stage="whole request",
        operator={**longer.operator, "time_s": seconds, "layers": int(layers)},
        share=seconds * layers / whole_s,
        efficiency=longer.efficiency,
        parts=tuple(parts),
    )


def _added(parts: Any) -> dict[str, float]:
    """Seconds by name, added; names without any are left out."""
    found: dict[str, float] = {}
    for part in parts:
        for name, seconds in part.items():
            found[name] = found.get(name, 0.0) + seconds
    return {name: seconds for name, seconds in found.items() if seconds}

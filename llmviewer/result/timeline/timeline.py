"""The predicted timeline of a request: prefill and the first decode steps, pass by pass, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from llmviewer.analysis.analysis import Analysis
from llmviewer.core.errors import UserError
from llmviewer.result.describe import number
from llmviewer.result.stages import system_at, value_at
from llmviewer.result.timeline.event import ENGINE, Arrow, Event
from llmviewer.result.timeline.steps import StepFacts
from llmviewer.result.timeline.traced import PassSelection, PricedPasses, split_repeats
from llmviewer.result.timeline.writer import PassPlacement, PassWriter
from llmviewer.serving.generation import AUTOREGRESSIVE, Draft


def timeline(analysis: Analysis, steps: int, point: int = 0) -> tuple[Event, ...]:
    """Events of prefill and the first `steps` decode steps (rounds with speculative decoding) of one point, by start.

    There are fewer steps if the answer is shorter.  Every step takes its `time_s` and begins when the previous one
    ends.  Where times are bounds over all sizes of chunks, the uncut passes are drawn.  Raises UserError for more than
    MAX_EVENTS events, and for draft passes of micro-batches.
    """
    if analysis.drafts and analysis.system.parallelism.microbatches > 1:
        raise UserError("draft passes of micro-batches in a pipeline overlap and are not drawn; use microbatches=1")
    analysis = analysis.as_scheduled()
    plan = PassSelection.of(analysis, steps, point)
    own = PricedPasses.of(analysis, plan.passes, point)
    drafts = [
        (draft, PricedPasses.of(drafting, plan.draft_passes(draft), point)) for draft, drafting in analysis.drafts
    ]
    facts = StepFacts.of(analysis, len(plan.decode), point)
    builder = _TimelineBuilder(analysis=analysis, own=own, drafts=drafts, point=point, facts=facts)
    builder.prefill(plan)
    builder.decode(plan)
    return tuple(sorted(builder.events, key=lambda event: (event.start_s, -event.end_s)))


@dataclass(slots=True, kw_only=True, eq=False)
class _TimelineBuilder:
    """Collects events in time order.

    free: time at which each pipeline stage of each pool becomes idle [s].  arrows: number of arrows so far.  sent: the
    arrow that the next event receives.
    """

    analysis: Analysis
    own: PricedPasses
    drafts: list[tuple[Draft, PricedPasses]]
    point: int
    facts: StepFacts
    events: list[Event] = field(default_factory=list)
    free: dict[tuple[str, int], float] = field(default_factory=dict)
    arrows: int = 0
    sent: tuple[Arrow, ...] = ()

    def send(self, name: str) -> tuple[Arrow, ...]:
        """A new arrow, for the event that `receive` is called for next."""
        self.arrows += 1
        self.sent = ((self.arrows, name),)
        return self.sent

    def receive(self) -> tuple[Arrow, ...]:
        """The arrow sent last, unless it was received."""
        received, self.sent = self.sent, ()
        return received

    def prefill(self, plan: PassSelection) -> None:
        """Add the prefill passes of the model, then those of draft models with a KV cache, one after another."""
        pool = "prefill" if self.transfer_s is not None else ""
        end, facts = 0.0, dict[str, object]()
        for priced in (self.own, *(priced for draft, priced in self.drafts if draft.caches)):
            owner = "" if priced is self.own else f" of {priced.analysis.model.name}"
            start, end = end, end + float(priced.analysis.own_prefill_s[self.point])
            facts = self.facts.interval("prefill", end - start) if priced is self.own else {"time_s": end - start}
            self.events.append(Event(name=f"prefill{owner}", kind="step", start_s=start, end_s=end, facts=facts))
            for count, (at, share) in enumerate(plan.prefill, 1):
                name = f"prefill{owner}" + (f", pass {count} of {len(plan.prefill)}" if len(plan.prefill) > 1 else "")
                sends = self.send("KV cache") if pool and count == len(plan.prefill) else ()
                self.add_pass(priced, at, PassPlacement(name=name, start=start, share=share, pool=pool, sends=sends))
                start += value_at(priced.analysis.gap_s, at) * share
        facts["kv_cache_bytes"] = self.facts.cache(0)  # when the last prefill ends

    def decode(self, plan: PassSelection) -> None:
        """Add the decode steps, one after another."""
        start = float(self.analysis.prefill_s[self.point])
        if self.transfer_s is not None:
            end, received = start + self.transfer_s, self.receive()
            sends = self.send("KV cache") if plan.decode else ()
            event = Event(
                name="KV cache transfer", kind="transfer", start_s=start, end_s=end, receives=received, sends=sends
            )
            self.events.append(event)
            start = end
        system = system_at(self.analysis, self.point)
        generation = system.generation
        rounds = generation is not AUTOREGRESSIVE and not generation.counts_passes
        tokens = {"expected_tokens": number(value_at(generation.tokens, 0))} if rounds else {}
        for count, at in enumerate(plan.decode, 1):
            name = f"{'round' if rounds else 'decode step'} {count}"
            end = self._round(at, name, start, value_at(system.outside_kernels_s, 0))
            facts = tokens | self.facts.at(count, end - start)
            self.events.append(Event(name=name, kind="step", start_s=start, end_s=end, facts=facts))
            start = end

    @property
    def transfer_s(self) -> float | None:
        """KV-cache transfer time from the prefill to the decode pool [s]; None without disaggregation."""
        found = self.analysis.times.facts().get("transfer_s") if self.analysis.running is not None else None
        return None if found is None else value_at(found, self.point)  # type: ignore[arg-type]

    def _round(self, at: int, name: str, start: float, extra_s: float) -> float:
        """Add draft passes, the model's own pass, and time outside kernels; returns the end of the round [s]."""
        for draft, priced in self.drafts:
            runs = list(split_repeats(at, value_at(draft.passes, self.point)))
            for count, (_, share) in enumerate(runs, 1):
                title = f"draft {draft.name}" + (f", pass {count} of {len(runs)}" if len(runs) > 1 else "")
                received, sends = self.receive(), self.send("draft tokens")
                place = PassPlacement(name=title, start=start, share=share, receives=received, sends=sends)
                self.add_pass(priced, at, place)
                start += value_at(priced.analysis.step_s, at) * share
        pool = "decode" if self.transfer_s is not None else ""
        step_s, microbatches = value_at(self.analysis.step_s, at), self.own.in_flight
        for part in range(microbatches):
            title = name if microbatches == 1 else f"{name}, micro-batch {part + 1} of {microbatches}"
            begin = start + step_s * part / microbatches
            self.add_pass(self.own, at, PassPlacement(name=title, start=begin, pool=pool, receives=self.receive()))
        start += step_s
        if extra_s:
            end = start + extra_s
            event = Event(name="outside kernels", kind="engine", start_s=start, end_s=end, track=ENGINE, stage=0)
            self.events.append(event)
        return start + extra_s

    def add_pass(self, priced: PricedPasses, at: int, placement: PassPlacement) -> None:
        """Add one forward pass through all pipeline stages."""
        end, facts, stages = placement.start, priced.facts(at), priced.unrolled(at)
        for stage, unrolled in enumerate(stages):
            start = max(end, self.free.get((placement.pool, stage), 0.0))
            end = start + unrolled.seconds * placement.share
            self.free[placement.pool, stage] = end
            event = partial(Event, stage=stage, machine=placement.pool)
            writer = PassWriter(events=self.events, event=event, share=placement.share, clock=start, end=end)
            received = placement.receives if stage == 0 else ()
            sends = placement.sends if stage == len(stages) - 1 else ()
            writer.write(unrolled, partial(event, name=placement.name, facts=facts, receives=received, sends=sends))

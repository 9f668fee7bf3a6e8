"""The answer of a sizing: the configurations that were found, and why others were not taken."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmviewer.core.answer import Answer
from llmviewer.core.frozen import frozen
from llmviewer.planning.against import Against
from llmviewer.planning.capacities import simulated_words
from llmviewer.planning.choices import Choice
from llmviewer.planning.gates import Gate
from llmviewer.planning.manifests import launch
from llmviewer.planning.options import Question

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "llmviewer.size/1"


@frozen
class Rejection:
    """A chip without a configuration, and the gate that rejected the one that came farthest."""

    hardware: str
    gate: Gate

    def to_dict(self) -> dict[str, Any]:
        """The object of the JSON schema."""
        gate = self.gate
        return {
            "hardware": self.hardware,
            "constraint": gate.constraint,
            "margin": gate.margin,
            "unit": gate.unit,
            "text": gate.text,
        }


@frozen(slots=False, eq=False, repr=False)
class Sizing(Answer):
    """The answer to a question.

    choices: the best configuration of each chip that has one, best first.  front: configurations none of which is worse
    in both figures.  searched: points that were priced; simulated: configurations that were simulated.  sensitivity:
    what varies -> change -> highest rate or replicas.  runner_up: the configuration that came second, of any chip.
    scaling: GPU hours of an autoscaler.  against: kind of another configuration -> the best one of it.
    """

    QUESTION: ClassVar[str] = "size"
    question: Question
    choices: tuple[Choice, ...]
    front: tuple[Choice, ...]
    rejected: tuple[Rejection, ...]
    searched: int
    structures: int
    simulated: int = 0
    sensitivity: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    runner_up: Choice | None = None
    scaling: Mapping[str, float] | None = None
    notes: Sequence[str] = ()
    against: Mapping[str, Against] = field(default_factory=dict)

    def __repr__(self) -> str:
        best = self.best
        text = f"{best.devices} x {best.hardware}" if best else "no configuration"
        workload = self.question.workload
        load = f"{workload.users} users" if workload.users else f"{workload.rate:g} requests/s"
        return f"<Sizing: {text} for {load}>"

    @property
    def best(self) -> Choice | None:
        """The best configuration; None if none meets the limits."""
        return self.choices[0] if self.choices else None

    def to_dict(self) -> dict[str, Any]:
        """The object of the JSON schema."""
        from llmviewer.planning.against import waterfall

        best, configurations = self.best, [self.configuration(one) for one in self.choices]
        return {
            "schema": SCHEMA,
            "request": self.request(),
            "feasible": best is not None,
            "best": configurations[0] if configurations else None,
            "configurations": configurations,
            "frontier": [one.to_dict() for one in self.front],
            "rejected": [one.to_dict() for one in self.rejected],
            "searched": self.searched,
            "structures": self.structures,
            "simulated": self.simulated,
            "sensitivity": {name: dict(values) for name, values in self.sensitivity.items()},
            "runner_up": None if self.runner_up is None else self.configuration(self.runner_up),
            "why": None if best is None or self.runner_up is None else waterfall(best, self.runner_up),
            "autoscaling": None if self.scaling is None else dict(self.scaling),
            "notes": list(self.notes),
            "against": {
                name: {
                    "ratio": one.ratio,
                    "configuration": None if one.other is None else self.configuration(one.other),
                }
                for name, one in self.against.items()
            },
        }

    def configuration(self, one: Choice) -> dict[str, Any]:
        """A simulated configuration with the command that simulates it, and the limits to start it with."""
        found = one.to_dict()
        return {**found, "command": command(self.question, one), "launch": launch(found)}

    def request(self) -> dict[str, Any]:
        """The question in SI units."""
        asked, workload = self.question, self.question.workload
        finite = {name: value if np.isfinite(value) else None for name, value in _bounds(asked).items()}
        return {
            "model": str(asked.model) if isinstance(asked.model, str) else getattr(asked.model, "name", "model"),
            "hardware": [str(one) for one in asked.hardware],
            "request_rate": workload.rate or None,
            "concurrency": workload.users or None,
            "input_len": workload.input_len,
            "output_len": workload.output_len,
            "limits": [
                {"metric": one.metric, "statistic": one.statistic, "limit_s": one.seconds} for one in workload.limits
            ],
            **finite,
            "confidence": asked.words["confidence"],
            "objective": asked.objective,
            "front": asked.words["front"],
            "price_kind": asked.prices.kind,
            "spare": asked.words["spare"],
            "load": dict(asked.load.words),
        }

    def to_frame(self) -> pd.DataFrame:
        """One row per configuration."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """The configurations as flat rows."""
        rows = []
        for one in self.choices:
            row = {**one.to_dict(), "command": command(self.question, one)}
            price, split = row.pop("price") or {}, row.pop("usd_per_million_tokens") or {}
            row["options"] = " ".join(f"{name}={value}" for name, value in row["options"].items())
            row["usd_per_device_hour"], row["price_date"] = price.get("usd_per_hour"), price.get("date")
            row["usd_per_million_tokens_input"] = split.get("input")
            row["usd_per_million_tokens_output"] = split.get("output")
            rows.append(row)
        return rows


def _bounds(asked: Question) -> dict[str, float]:
    return {"max_gpus": asked.bounds.devices, "max_usd_per_hour": asked.bounds.usd_per_hour}


def command(asked: Question, one: Choice) -> str:
    """`llmviewer simulate ...` of one replica under its share of the load; of a trace, of all replicas."""
    options = [part for name, value in simulated_words(asked, one).items() for part in _option(name, value)]
    return shlex.join(["llmviewer", "simulate", asked.model_name, *options])


def _option(name: str, value: Any) -> list[str]:
    """An option as typed; a switch has no value."""
    spelling = "--" + name.replace("_", "-")
    if name == "ignore_fields":
        return [part for field in value for part in ("--ignore-field", str(field))]
    return [spelling] if value is True else [spelling, str(value)]

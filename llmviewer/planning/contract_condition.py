"""The right side of a line of a contract, `METRIC OPERATOR VALUE [UNIT] [at ...]`, as numbers."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.planning.contract_subject import SEPARATOR
from llmviewer.planning.contract_units import UNITS, Unit, amount
from llmviewer.simulation import options
from llmviewer.simulation.limits import STATISTICS
from llmviewer.techniques.options import WORKLOAD

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}
#: Name of the memory that is left, and the conditions on it -> operator; the limit is 0.
ROOM = "room_bytes"
FITS = {"fits": ">=", "does not fit": "<"}
#: Word after `at` -> option of `analyze` or of `simulate`; options that only a load has.
SIZES = {"batch": "batch_size", "input": "input_len", "output": "output_len"} | {name: name for name in WORKLOAD}
OF_LOADS = ("requests", "seed")
#: Word after the number of a load -> option of `simulate`.
LOADS = {"requests/s": "request_rate", "users": "concurrency"}
FORMS = f"METRIC {' or '.join(OPERATORS)} VALUE UNIT, METRIC within P % of VALUE UNIT, {', '.join(FITS)}"
_COMPARED = re.compile(r"(.*?)\s*([<>=≤≥!~]+|\bwithin\b)\s*(.*)", re.DOTALL)
_WITHIN = re.compile(r"(\S+?)\s*%\s+of\s+(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A comparison of a metric with a limit [SI].

    statistic: of a simulated latency.  compared: an operator; with `within` there is a tolerance, a fraction of the
    limit.  sizes: of the request, or of the load where there is one.  load: when requests arrive; empty for one batch.
    """

    text: str
    metric: str
    compared: str
    limit: float
    unit: Unit
    statistic: str = ""
    tolerance: float | None = None
    sizes: Mapping[str, Any]
    load: Mapping[str, Any]

    def holds(self, value: float) -> bool:
        """Whether a value keeps the condition."""
        if self.tolerance is not None:
            return abs(value - self.limit) <= self.tolerance * abs(self.limit)
        return OPERATORS[self.compared](value, self.limit)


def condition(text: str) -> Condition:
    """The condition that a text describes; whether its metric exists shows only in an answer.  Raises UserError."""
    compared, *given = re.split(r"\sat(?:\s|$)", text.strip(), maxsplit=1)
    sizes, load = _sizes(given[0]) if given else ({}, {})
    fields: dict[str, Any]
    if compared.strip() in FITS:
        fields = {"metric": ROOM, "compared": FITS[compared.strip()], "limit": 0.0, "unit": UNITS["GiB"]}
    else:
        fields = _comparison(compared)
    if fields["metric"] == ROOM and load:
        raise UserError(f"{compared.strip()} is of one batch; a load has latencies and rates")
    if fields.get("statistic") and not load:
        raise UserError(f"{fields['metric']} {fields['statistic']} is of a load; add at 8 requests/s, or at 64 users")
    return Condition(text=text, sizes=sizes, load=load, **fields)


def _comparison(text: str) -> dict[str, Any]:
    """Metric, statistic, operator and limit of a comparison.  Raises UserError."""
    found = _COMPARED.fullmatch(text)
    if found is None or found[2] not in (*OPERATORS, "within"):
        raise UserError(f"condition {quoted(text.strip())} compares nothing; allowed: {FORMS}")
    names, compared, right = found[1].split(), found[2], found[3]
    if len(names) not in (1, 2):
        raise UserError(f"metric is {quoted(found[1].strip())}; allowed: a name such as tpot_s, or ttft_s p99")
    if len(names) > 1 and names[1] not in STATISTICS:
        raise unknown("statistic", names[1], STATISTICS)
    fields: dict[str, Any] = {"metric": names[0], "statistic": "".join(names[1:]), "compared": compared}
    if compared == "within":
        parts = _WITHIN.fullmatch(right)
        percent = arguments.parse_number(parts[1]) if parts else ""
        if parts is None or isinstance(percent, str) or not 0 < percent < float("inf"):
            raise UserError(
                f"within is {quoted(right.strip())}; allowed: a percentage and a value: within 5 % of 12 ms"
            )
        fields["tolerance"], right = percent / 100.0, parts[2]
    fields["limit"], fields["unit"] = amount(right, names[0])
    return fields


def _sizes(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes and load after `at`: `batch 8, input 2k` or `8 requests/s, output 200`.  Raises UserError."""
    sizes: dict[str, Any] = {}
    load: dict[str, Any] = {}
    for part in SEPARATOR.split(text.strip()):
        first, _, second = (word.strip() for word in part.strip().partition(" "))
        target, name, value = (load, LOADS[second], first) if second in LOADS else (sizes, first, second)
        if target is sizes:
            if first not in (*SIZES, *OF_LOADS):
                raise unknown("size", part, (*SIZES, *OF_LOADS), hint=f"a load is a number and {' or '.join(LOADS)}")
            name = SIZES.get(first, first)
        if name in target:
            raise UserError(f"{name} is given twice; remove one of them")
        target[name] = arguments.parse_size(value)
    return _checked(sizes, load), load


def _checked(sizes: dict[str, Any], load: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes, if a batch or a load has them.  Lengths of a load may be distributions.  Raises UserError."""
    if load and "batch_size" in sizes:
        raise UserError("batch is of one batch and a load has none; remove one of them")
    alone = [name for name in OF_LOADS if name in sizes and not load]
    if alone:
        raise UserError(f"{alone[0]} is of a load; add 8 requests/s or 64 users")
    if not load:
        return {name: arguments.whole_number(name, value) for name, value in sizes.items()}
    words = {name: str(value) if name in WORKLOAD else value for name, value in sizes.items()}
    options.traffic_of(options.checked({**words, **load}))  # wrong words are told before anything is simulated
    return words

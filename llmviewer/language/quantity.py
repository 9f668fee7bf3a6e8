"""Figures of answers, each declared once: key, words, unit, direction, interval, and the formula of one of others.

Every view reads them here: JSON, tables, columns of files, plots, pages, explanations, contracts, assistants.  A metric
that is made of others is one entry with a formula; any other is an entry and a property of `Analysis`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any

from llmviewer.core.frozen import frozen

OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def evaluated_formula(
    formula: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] = MappingProxyType({})
) -> Any:
    """The value of a formula.  names: the values of its names.  Raises ValueError for what is no formula."""
    return _value(parsed(formula), names, functions)


@cache
def parsed(formula: str) -> ast.expr:
    """The tree of a formula."""
    return ast.parse(formula, mode="eval").body


def names_in(formula: str) -> tuple[str, ...]:
    """The names of a formula whose values it needs, each once, in their order."""
    return tuple(dict.fromkeys(one.id for one in ast.walk(parsed(formula)) if isinstance(one, ast.Name)))


def _value(tree: ast.expr, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    if isinstance(tree, ast.Constant) and isinstance(tree.value, int | float):
        return float(tree.value)
    if isinstance(tree, ast.Name):
        return names[tree.id]
    if isinstance(tree, ast.BinOp):
        left, right = (_value(side, names, functions) for side in (tree.left, tree.right))
        return OPERATORS[type(tree.op)](left, right)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
        return functions[tree.func.id](*(_value(one, names, functions) for one in tree.args))
    raise ValueError(f"no formula: {ast.dump(tree)}")


class Unit(Enum):
    """A unit: its symbol, its kind of quantity as contracts call it, and the ends of the names that have it."""

    SECOND = "s", "time", ("s",)
    BYTE = "byte", "bytes", ("bytes",)
    BYTE_RATE = "byte/s", "bandwidth", ("bytes_per_s",)
    FLOP = "FLOP", "work", ("flops",)
    FLOP_RATE = "FLOP/s", "compute rate", ("flops_per_s",)
    INTENSITY = "FLOP/byte", "number", ("flops_per_byte", "arithmetic_intensity")
    TOKEN = "token", "number", ("len", "tokens_per_month", "tokens_per_usd")
    TOKEN_RATE = "tokens/s", "token rate", ("tokens_per_s",)
    USER_RATE = "tokens/s per user", "token rate", ("tokens_per_s_per_user",)
    DEVICE_RATE = "tokens/s per device", "token rate", ("tokens_per_s_per_device",)
    REQUEST_RATE = "requests/s", "request rate", ("requests_per_s", "request_rate")
    RATE = "1/s", "number", ("ops_per_s",)
    SHARE = "fraction", "number", ("mfu", "mbu", "utilization")
    HERTZ = "Hz", "number", ("hz",)
    WATT = "W", "number", ("w", "watts")
    JOULE = "J", "number", ("joules_per_output_token",)
    GRAM = "g", "number", ("grams_co2_per_million_output_tokens",)
    DOLLAR_RATE = "$/h", "number", ("usd_per_hour",)
    DOLLAR = "$", "number", (
        "usd_per_million_output_tokens", "usd_per_million_tokens", "usd_per_million_requests", "usd_per_run",
    )  # fmt: skip
    SEQUENCE = "sequence", "number", ("batch_size",)
    COUNT = "", "number", ()

    def __init__(self, symbol: str, kind: str, ends: tuple[str, ...]) -> None:
        self.symbol, self.kind, self.ends = symbol, kind, ends


#: End of a name -> its unit, longer ends first.
ENDS = dict(sorted(((end, unit) for unit in Unit for end in unit.ends), key=lambda one: -len(one[0])))


def ending(part: str) -> tuple[str, Unit]:
    """The end of a name without dots that states its unit, and the unit; "" and COUNT where none does."""
    return next(((end, unit) for end, unit in ENDS.items() if f"_{part}".endswith(f"_{end}")), ("", Unit.COUNT))


def unit_of(name: str) -> Unit:
    """The unit that a name states, before `_per_token` and its like; one with dots in any part, the last one first."""
    parts = name.split(".")[::-1]
    units = (ending(text)[1] for part in parts for text in (part, part.partition("_per_")[0]))
    return next((unit for unit in units if unit is not Unit.COUNT), Unit.COUNT)


@frozen
class Quantity:
    """One figure of an answer.

    name: its key in JSON and its column, with a dot in a nested object.  label: heading of a row or column.  title: its
    words in a sentence and above a picture.  less_is_better: the direction of a gain, None where there is none.
    meaning: what stands beside it.  interval: the time whose interval, in proportion, is its own; "" where it has none.
    formula: of other metrics and of inputs; "" where `Analysis` computes it.  beside: the figure to which it adds
    nothing where both are equal.  undefined: why it has no value.  rank: columns of the highest rank are dropped first
    on a narrow screen.
    """

    name: str
    label: str
    title: str
    less_is_better: bool | None = None
    meaning: str = ""
    interval: str = ""
    formula: str = ""
    beside: str = ""
    undefined: str = ""
    rank: int = 0

    @property
    def heading(self) -> str:
        """Its title as the first words of a line."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def unit(self) -> Unit:
        """The unit that its name states."""
        return unit_of(self.name)

    def adds_nothing(self, document: Mapping[str, Any]) -> bool:
        """Whether it equals the figure that it stands beside."""
        return bool(self.beside) and bool(self.of(document) == document[self.beside])

    def of(self, document: Mapping[str, Any]) -> Any:
        """Its value in a document; None where it or the object around it is missing."""
        if self.name in document:
            return document[self.name]
        value: Any = document
        for part in self.name.split("."):
            value = None if value is None else value.get(part)
        return value


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Figures by their names as an object of JSON: those with a dot in objects, None where one has no value."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        group, dot, inner = name.partition(".")
        if not dot:
            found[name] = value
        elif value is None:
            found[group] = None
        else:
            found.setdefault(group, {})[inner] = value
    return found


def _named(*quantities: Quantity) -> dict[str, Quantity]:
    return {one.name: one for one in quantities}


NO_STEPS = "there are no decode steps; give --output-len 2 or more, or another number"
NO_PRICE = "no price of this chip is known (hardware_specs/prices); --price states one"
NO_POWER = "the board power of this chip is not published"
NO_BREAK_EVEN = "it needs --api-price and a price of the chip, and power that costs less than the API"
#: Latencies of one request.
LATENCIES = _named(
    Quantity(name="ttft_s", label="TTFT", title="time to first token", less_is_better=True, interval="ttft_s"),
    Quantity(
        name="tpot_s", label="TPOT", title="time per output token", less_is_better=True, interval="tpot_s",
        undefined="no pass follows the one of the first token; choose ttft_s, or a larger output_len",
    ),
    Quantity(
        name="e2e_s", label="E2E", title="end-to-end latency", less_is_better=True, interval="e2e_s", rank=2,
        meaning="TTFT + decode time",
    ),
)  # fmt: skip
#: Metrics of a run, in the order of all views.
METRICS = LATENCIES | _named(
    Quantity(
        name="output_tokens_per_s", label="Tokens/s", title="output tokens per second", less_is_better=False,
        interval="e2e_s", formula="batch_size * output_len / e2e_s", meaning="output tokens / E2E",
    ),
    Quantity(
        name="output_tokens_per_s_per_user", label="Tokens/s/user", title="output tokens per second and user",
        less_is_better=False, interval="e2e_s", formula="output_tokens_per_s / batch_size", rank=5,
        beside="output_tokens_per_s", meaning="tokens/s / batch size",
    ),
    Quantity(
        name="output_tokens_per_s_per_device", label="Tokens/s/device", title="output tokens per second and device",
        less_is_better=False, interval="e2e_s", formula="output_tokens_per_s / devices", rank=5,
        beside="output_tokens_per_s", meaning="tokens/s / devices",
    ),
    Quantity(
        name="prefill_mfu", label="Prefill MFU", title="prefill MFU", less_is_better=False, interval="ttft_s", rank=3,
        meaning="causal matmul FLOPs / (time × dense peak)",
    ),
    Quantity(
        name="decode_mfu", label="Decode MFU", title="decode MFU", less_is_better=False, interval="tpot_s", rank=4,
        meaning="causal matmul FLOPs / (time × dense peak)", undefined=NO_STEPS,
    ),
    Quantity(
        name="decode_mbu", label="Decode MBU", title="decode MBU", less_is_better=False, interval="tpot_s", rank=3,
        meaning="(weight + KV cache bytes) / (time × bandwidth)", undefined=NO_STEPS,
    ),
    Quantity(
        name="joules_per_output_token", label="J/token", title="joules per output token", less_is_better=True,
        formula="watts / output_tokens_per_s", rank=6, meaning="mean power of all devices / tokens/s",
        undefined=NO_POWER,
    ),
    Quantity(
        name="watts", label="Power (W)", title="mean power of all devices", less_is_better=True, formula="mean_w",
        rank=7, meaning="mean power of all devices", undefined=NO_POWER,
    ),
    Quantity(
        name="grams_co2_per_million_output_tokens", label="gCO2/Mtok", title="grams of CO2 per million output tokens",
        less_is_better=True, formula="wall_w * pue * g_per_kwh / output_tokens_per_s / 3.6", rank=7,
        meaning="power of devices and servers × PUE × carbon of the electricity / tokens/s",
        undefined="it needs --carbon (g/kWh) and the board power of the chip",
    ),
    Quantity(
        name="usd_per_hour", label="$/h", title="dollars per hour", less_is_better=True, rank=7, undefined=NO_PRICE,
        formula="device_usd_per_hour * devices", meaning="price of all devices",
    ),
    Quantity(
        name="output_tokens_per_usd", label="Tokens/$", title="output tokens per dollar", less_is_better=False,
        interval="e2e_s", formula="3600 * output_tokens_per_s / usd_per_hour", rank=7, undefined=NO_PRICE,
        meaning="tokens/s over the price of all devices, prompts included",
    ),
    Quantity(
        name="usd_per_million_output_tokens", label="$/Mtok", title="dollars per million output tokens",
        less_is_better=True, interval="e2e_s", formula="1e6 * usd_per_hour / 3600 / output_tokens_per_s", rank=6,
        meaning="price of all devices / tokens/s, prompts included", undefined=NO_PRICE,
    ),
    Quantity(
        name="usd_per_million_tokens.input", label="$/Mtok in", title="dollars per million prompt tokens",
        less_is_better=True, interval="e2e_s", rank=7,
        formula="usd_per_million_output_tokens * prompt_share * output_len / input_len",
        meaning="the prompts' share of it, by the time of the devices", undefined=NO_PRICE,
    ),
    Quantity(
        name="usd_per_million_tokens.output", label="$/Mtok out", title="dollars per million answer tokens",
        less_is_better=True, interval="e2e_s", formula="usd_per_million_output_tokens * (1 - prompt_share)", rank=7,
        meaning="the answers' share of it, by the time of the devices", undefined=NO_PRICE,
    ),
    Quantity(
        name="usd_per_run", label="$/run", title="dollars per run", less_is_better=True, interval="e2e_s", rank=8,
        formula="usd_per_million_output_tokens * output_len * batch_size / 1e6", meaning="the whole batch once",
        undefined=NO_PRICE,
    ),
    Quantity(
        name="usd_per_million_requests", label="$/Mreq", title="dollars per million requests", less_is_better=True,
        interval="e2e_s", formula="usd_per_million_output_tokens * output_len", rank=8,
        meaning="one request × a million", undefined=NO_PRICE,
    ),
    Quantity(
        name="break_even_utilization", label="Break-even use", title="utilization at break-even", less_is_better=True,
        interval="e2e_s", formula="idle_usd_per_hour / saved_usd_per_hour", rank=8, undefined=NO_BREAK_EVEN,
        meaning="share of all hours from which the API costs more; over 100 %: never",
    ),
    Quantity(
        name="break_even_tokens_per_month", label="Break-even tok/month", title="tokens a month at break-even",
        less_is_better=True, rank=8, undefined=NO_BREAK_EVEN, meaning="prompts and answers in these hours of a month",
        formula="break_even_utilization * break_even_month_s * batch_size * (input_len + output_len) / e2e_s",
    ),
)  # fmt: skip
#: Metrics that `analyze` also shows as an engine serves the request, where none is stated: key `served` of its answer.
BY_ENGINE = {name: METRICS[name] for name in (*LATENCIES, "output_tokens_per_s")}
#: Times of the decode step shown; with speculative decoding a round is divided by its tokens.
STEPS = _named(
    Quantity(
        name="decode_time_s", label="Decode time", title="decode time per token", less_is_better=True, interval="tpot_s"
    ),
    Quantity(
        name="device_time_s", label="Device time", title="decode time per token × devices", less_is_better=True,
        interval="tpot_s",
    ),
)  # fmt: skip
#: What one device stores, part by part.
MEMORY = _named(
    Quantity(name="weights_bytes", label="Weights", title="weights", less_is_better=True),
    Quantity(name="kv_cache_bytes", label="KV cache", title="KV cache", less_is_better=True, rank=4),
    Quantity(name="activations_bytes", label="Activations", title="activations", less_is_better=True),
    Quantity(name="framework_bytes", label="Framework", title="framework", less_is_better=True),
    Quantity(name="total_bytes", label="Memory", title="memory of a device", less_is_better=True, rank=2),
)
#: The largest sizes that fit.
LIMITS = _named(
    Quantity(name="max_batch_size", label="Max batch size", title="largest batch", less_is_better=False),
    Quantity(name="max_context_len", label="Max context", title="largest context", less_is_better=False),
    Quantity(
        name="max_concurrent_requests", label="Max requests", title="most concurrent requests", less_is_better=False
    ),
)
#: Times of a request in a server under load, in the order of its table.
SERVED = {
    "ttft_s": LATENCIES["ttft_s"],
    "tpot_s": LATENCIES["tpot_s"],
    **_named(Quantity(name="itl_s", label="ITL", title="time between tokens", less_is_better=True, interval="tpot_s")),
    "e2e_s": LATENCIES["e2e_s"],
    **_named(Quantity(name="queue_s", label="Queue", title="queueing time", less_is_better=True, interval="ttft_s")),
}
#: Sizes of a request.
SIZES = _named(
    Quantity(name="batch_size", label="Batch", title="batch size"),
    Quantity(name="input_len", label="Input", title="input length"),
    Quantity(name="output_len", label="Output", title="output length"),
)
#: All figures by name.
QUANTITIES = SIZES | METRICS | STEPS | SERVED | MEMORY | LIMITS

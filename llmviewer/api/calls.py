"""Calls from Python: one request, grids of requests, configurations side by side, the fastest one over a map."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from llmviewer.api.build import with_costs
from llmviewer.api.configuration import configuration, of_run, on_devices, priced
from llmviewer.core import arguments
from llmviewer.core.arguments import Sizes
from llmviewer.core.counts import Array
from llmviewer.core.errors import UserError, unknown
from llmviewer.core.workload import Request
from llmviewer.hardware import specs
from llmviewer.hardware.chip import Chip
from llmviewer.language.option import taking
from llmviewer.models.model import Model
from llmviewer.result.costs import COSTS, OF_ONE_RUN, Costs
from llmviewer.result.result import Result
from llmviewer.techniques.options import OPTIONS, RUN_OPTIONS, WORKLOAD

if TYPE_CHECKING:
    from typing import Unpack

    from llmviewer.api.keywords import PricedOptionLists, PricedOptions, PricedSizedOptions, RunOptionLists
    from llmviewer.result.comparison import Comparison
    from llmviewer.result.crossover import Crossover
    from llmviewer.result.explanation.explain import Explanation
    from llmviewer.result.sweep import Sweep

ModelName: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Model
ChipName: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Chip

BATCH_SIZE, INPUT_LEN, OUTPUT_LEN = (WORKLOAD[name].default for name in ("batch_size", "input_len", "output_len"))
#: Stands for every known chip in `compare`.
EVERY_CHIP = "all"
#: Maximum number of configurations of one call; all are loaded before the first is computed.
MAX_CONFIGURATIONS = 10**4


@taking(RUN_OPTIONS, OF_ONE_RUN)
def analyze(
    model: ModelName,
    hardware: ChipName,
    *,
    batch_size: Sizes = BATCH_SIZE,
    input_len: Sizes = INPUT_LEN,
    output_len: Sizes = OUTPUT_LEN,
    **options: Unpack[PricedOptions],
) -> Result:
    """Prefill, decode and memory of `model` on a chip, by calibrated times unless efficiency="ideal".

    model, hardware: names, paths, the fields of a config.json or spec file, or objects.  batch_size, input_len,
    output_len: whole numbers, or sequences of one length (one point each; a single number holds for all).  options:
    every option of `techniques/options.py` by name (quantization="w4a16", tensor_parallel_size=4).  Raises UserError.
    """
    return of_run(model, hardware, options).answer(request(batch_size, input_len, output_len))


@taking(RUN_OPTIONS, COSTS)
def sweep(
    model: ModelName | Sequence[ModelName],
    hardware: ChipName | Sequence[ChipName],
    *,
    batch_size: Sizes = BATCH_SIZE,
    input_len: Sizes = INPUT_LEN,
    output_len: Sizes = OUTPUT_LEN,
    **options: Unpack[PricedOptionLists],
) -> Sweep:
    """All combinations of batch sizes, lengths, models, chips and lists of options; `to_frame()` evaluates them.

    Arguments are those of `analyze`, each a value or a list of values; sizes also as "1:64:*2".  Raises UserError.
    """
    from llmviewer.result.sweep import Grid, Sweep

    grid = Grid(
        batch_sizes=_column("batch_size", batch_size),
        input_lens=_column("input_len", input_len),
        output_lens=_column("output_len", output_len),
    )
    costs, chosen = with_costs(hardware, options)
    made = combinations({"model": model, "hardware": hardware, **chosen})
    return Sweep(configurations=tuple(priced(configuration(**one), costs) for one in made), grid=grid)


@taking(RUN_OPTIONS, COSTS)
def compare(
    model: ModelName | Sequence[ModelName],
    hardware: ChipName | Sequence[ChipName],
    *,
    batch_size: int = BATCH_SIZE,
    input_len: int = INPUT_LEN,
    output_len: int = OUTPUT_LEN,
    **options: Unpack[PricedOptionLists],
) -> Comparison:
    """One request on every combination of models, chips and lists of options, with ratios to the first.

    hardware: "all" is every known chip, the fastest that holds the request first.  Raises UserError.
    """
    sizes = request(batch_size, input_len, output_len)
    is_every = hardware in (EVERY_CHIP, [EVERY_CHIP])
    costs, chosen = with_costs([] if is_every else hardware, options)
    return compared(sizes, combinations({"model": model, "hardware": hardware, **chosen}), costs)


def compared(sizes: Request, made: Sequence[Mapping[str, Any]], costs: Costs | None = None) -> Comparison:
    """The comparison of a request on combinations of options, or of one of them on every known chip.

    costs: prices and emissions, where any are stated.  Raises UserError.
    """
    from llmviewer.result.comparison import Comparison

    if made[0]["hardware"] == EVERY_CHIP:
        return on_every_chip(sizes, made, costs)
    return Comparison(results=tuple(priced(on_devices(**one), costs).answer(sizes) for one in made))


def on_every_chip(sizes: Request, made: Sequence[Mapping[str, Any]], costs: Costs | None = None) -> Comparison:
    """A run on every known chip, the fastest that holds it first.

    made: combinations of options, of which there may be one.  Raises UserError, also where no chip takes the run.
    """
    from llmviewer.result.comparison import Comparison

    if len(made) > 1:
        raise UserError(f"--hardware all compares one configuration; the other lists make {len(made)}")
    results, refusals = [], dict[str, UserError]()
    for name in specs.names():
        try:
            results.append(priced(configuration(**{**made[0], "hardware": name}), costs).answer(sizes))
        except UserError as error:
            refusals[name] = error
    if not results:
        raise next(iter(refusals.values()))

    def order(result: Result) -> tuple[bool, float, float]:
        return not result.fits, float(np.nan_to_num(result.tpot_s)), float(result.ttft_s)

    return Comparison(
        results=tuple(sorted(results, key=order)), refused={name: error.marked for name, error in refusals.items()}
    )


@taking(RUN_OPTIONS)
def crossover(
    model: ModelName | Sequence[ModelName],
    hardware: ChipName | Sequence[ChipName],
    *,
    batch_size: Sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256),
    context: Sizes | None = None,
    metric: str = "decode_time_s",
    output_len: int = OUTPUT_LEN,
    **options: Unpack[RunOptionLists],
) -> Crossover:
    """The fastest combination of models, chips and lists of options at each batch size and context length.

    context: None for the powers of two from 512 to 131,072 that all models have.  metric: decode_time_s, ttft_s,
    tpot_s, e2e_s or device_time_s (decode time x devices).  Raises UserError.
    """
    from llmviewer.result.crossover import CONTEXTS, CROSSOVER_METRICS, configuration_names, within
    from llmviewer.result.crossover import crossover as crossover_of

    if metric not in CROSSOVER_METRICS:
        raise unknown("metric", metric, CROSSOVER_METRICS)
    made = combinations({"model": model, "hardware": hardware, **options})
    configurations = {name: configuration(**one) for name, one in zip(configuration_names(made), made, strict=True)}
    tokens = arguments.whole_number("output_len", output_len)
    given = np.unique(_column("context", CONTEXTS if context is None else context))
    contexts = within(given, configurations.values(), metric, tokens) if context is None else given
    return crossover_of(configurations, np.unique(_column("batch_size", batch_size)), contexts, metric, tokens)


@taking(OPTIONS, OF_ONE_RUN)
def explain(number: str, model: ModelName, hardware: ChipName, **options: Unpack[PricedSizedOptions]) -> Explanation:
    """The explanation of a number by its name: tpot_s, memory.total_bytes, operators.o_proj.time_s.

    options: those of `analyze`, sizes included; of several points the first is explained.  Every leaf of the tree has a
    source, and its arithmetic gives the number again.  Raises UserError.
    """
    from llmviewer.result.explanation.explain import check_costs, explained  # other calls do not need it

    check_costs(number, options)
    return explained(analyze(model, hardware, **options), number)


def request(batch_size: Sizes, input_len: Sizes, output_len: Sizes) -> Request:
    """The request of checked sizes.  Raises UserError."""
    given = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    columns = {name: arguments.sizes(name, value) for name, value in given.items()}
    lengths = {name: len(column) for name, column in columns.items() if len(column) > 1}
    if len(set(lengths.values())) > 1:
        raise UserError("sequences of one length are needed: " + ", ".join(f"{n} has {c}" for n, c in lengths.items()))
    return Request(**columns)


def _column(name: str, value: Sizes) -> Array:
    """The values of an axis: numbers, or a text of a list or ranges, as on the command line: 1:64:*2."""
    from llmviewer.result.sweep import parse_values

    return parse_values(name, value) if isinstance(value, str) else arguments.sizes(name, value)


def combinations(lists: Mapping[str, object]) -> list[dict[str, Any]]:
    """Every combination of the values in lists; a value that is no list (and `ignore_fields`) holds for all.

    Raises UserError for an empty list and for more than MAX_CONFIGURATIONS combinations.
    """
    values = {name: _values(name, given) for name, given in lists.items()}
    count = math.prod(map(len, values.values()))
    if count > MAX_CONFIGURATIONS:
        raise UserError(f"the lists make {count:,} configurations; allowed: at most {MAX_CONFIGURATIONS:,}")
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def _values(name: str, given: object) -> Sequence[object]:
    listed = isinstance(given, Iterable) and not isinstance(given, (str, Mapping)) and name != "ignore_fields"
    found = list(given) if listed else [given]  # type: ignore[call-overload]
    if not found:
        raise UserError(f"{name} is an empty list; give at least one value")
    return found

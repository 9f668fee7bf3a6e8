"""`llmviewer crossover`: the fastest configuration at each batch size and context length."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer import api
from llmviewer.api.figure_axis import CONTEXT, figure_axis
from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.views import print_warnings
from llmviewer.core.errors import UserError, unknown
from llmviewer.questions import QUESTIONS
from llmviewer.result.crossover import (
    CONTEXTS,
    CROSSOVER_METRICS,
    OWN,
    configuration_names,
    crossover,
    over_figure,
    within,
)
from llmviewer.result.sweep import parse_values

#: Each configuration has a letter on the map.
MAX_MAP_CONFIGURATIONS = 26


@opt.with_run_options
def command(
    model: opt.Models,
    hardware: opt.Chips,
    batch_size: Annotated[str, opt.listed("batch_size", "Batch sizes: a list or ranges.")] = "1:256:*2",
    context: Annotated[str, typer.Option(help=OWN["context"].help)] = "",
    over: Annotated[
        str, typer.Option(help="A figure of the chips instead of contexts: bandwidth=1TB/s:16TB/s:*2.")
    ] = "",
    metric: opt.annotation("metric", OWN["metric"]) = "decode_time_s",  # type: ignore[valid-type]
    output_len: Annotated[
        int, opt.integer_option("output_len", "Output tokens per request, for tpot_s and e2e_s.")
    ] = 128,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Finds the fastest combination of the lists at each batch size and context, among those that fit in memory.

    --over puts a figure of hypothetical chips in the place of the context, which is then one (1024).

    Lists are separated by commas; for options whose values contain commas (--speculative, --offload, --batching ...)
    by semicolons: --speculative 'none;eagle3,tokens=2;eagle3,tokens=4'.
    """
    kind = views.check_output(format, output, (*model.split(","), *hardware.split(",")))
    if metric not in CROSSOVER_METRICS:
        raise unknown("metric", metric, CROSSOVER_METRICS)
    combinations = opt.combinations(options, model=model, hardware=hardware)
    if len(combinations) > MAX_MAP_CONFIGURATIONS:
        raise UserError(f"{len(combinations)} configurations; a crossover shows at most {MAX_MAP_CONFIGURATIONS}")
    names = configuration_names(combinations)
    configurations = {name: api.configuration(**c) for name, c in zip(names, combinations, strict=True)}
    contexts = parse_values("context", context or (CONTEXT if over else CONTEXTS))
    if not context and not over:
        contexts = within(contexts, configurations.values(), metric, output_len)
    grid = {"batch_sizes": parse_values("batch_size", batch_size), "contexts": contexts}
    if over:
        result = over_figure(figure_axis(over, configurations), metric=metric, output_len=output_len, **grid)
    else:
        result = crossover(configurations, metric=metric, output_len=output_len, **grid)

    print_warnings(result.warnings)
    views.show(views.of(QUESTIONS["crossover"], result), kind, output)
    return 0

"""`llmviewer require`: the least figures of a chip with which a metric meets its target."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.output import print_warnings
from llmviewer.language.option import Panel
from llmviewer.planning.require import Required, require

#: Chip whose other figures stay, unless another one is named.
CHIP = "h100-sxm"


def _target(name: str, text: str) -> Any:
    return typer.Option(f"--{name}", metavar="LIMIT", help=text, rich_help_panel=Panel.COMMON.value)


@opt.with_run_options
def command(
    model: opt.Model,
    vary: Annotated[
        str,
        typer.Option("--vary", metavar="FIGURES", help="Up to three: bandwidth, peak.bf16, capacity, links.nvlink ..."),
    ],
    hardware: opt.Hardware = CHIP,
    tpot: Annotated[str | None, _target("tpot", "Time per output token to meet: 10ms.")] = None,
    ttft: Annotated[str | None, _target("ttft", "Time to first token to meet: 500ms.")] = None,
    e2e: Annotated[str | None, _target("e2e", "Time of the whole request to meet: 5s.")] = None,
    tokens_per_s: Annotated[str | None, _target("tokens-per-s", "Tokens per second of one user to meet: 100.")] = None,
    batch_size: opt.BatchSize = opt.BATCH_SIZE,
    input_len: opt.InputLen = opt.INPUT_LEN,
    output_len: opt.OutputLen = opt.OUTPUT_LEN,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    **options: Any,
) -> int:
    """Finds how much bandwidth, compute or capacity a chip would need, all its other figures being those of a real one.

    Two or three varied figures give the frontier between them.  Exits 1 if no figure meets the target.
    """
    from llmviewer.reports import require_page

    kind = views.check_output(format, output, (model, hardware))
    targets = {"tpot": tpot, "ttft": ttft, "e2e": e2e, "tokens_per_s": tokens_per_s}
    sizes: dict[str, Any] = {"batch_size": batch_size, "input_len": input_len, "output_len": output_len}
    given: dict[str, Any] = {name: text for name, text in targets.items() if text is not None}
    made: Required = require(model, hardware, vary=vary, **given, **sizes, **options)
    print_warnings(made.warnings)
    views.show(
        views.Views(
            page=lambda: require_page.page(made),
            document=made.to_dict,
            rows=lambda: [{**one.figures, made.metric: one.reached} for one in made.solutions],
        ),
        kind,
        output,
    )
    return 0 if made.solutions else 1

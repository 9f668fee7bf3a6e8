"""`llmviewer size`: what to buy for a load within limits."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from llmviewer.cli import campaign, views
from llmviewer.cli import options as opt
from llmviewer.cli.progress import progress
from llmviewer.cli.views import write
from llmviewer.core.errors import UserError
from llmviewer.language.option import Panel
from llmviewer.planning.call import chips_of, size
from llmviewer.planning.manifests import ENGINES, check_target
from llmviewer.planning.manifests import emit as manifest
from llmviewer.planning.options import OWN, SIZE
from llmviewer.planning.sizing import Sizing
from llmviewer.simulation.options import LOAD
from llmviewer.techniques.options import OPTIONS


def searched(name: str, summary: str) -> Any:
    """Typer option for values that `size` searches unless some are listed."""
    return Annotated[str, opt.listed(name, f"{summary} (default: searched).")]


@opt.with_run_options
@opt.with_declared(OWN)
def command(
    model: opt.Model,
    hardware: opt.Chips,
    engine: searched("engine", "Serving engines: a list") = "",  # type: ignore[valid-type]
    quantization: searched("quantization", "Formats of weights and inputs: a list") = "",  # type: ignore[valid-type]
    kv_cache_dtype: searched("kv_cache_dtype", "Formats of the KV cache: a list") = "",  # type: ignore[valid-type]
    tensor_parallel_size: searched("tensor_parallel_size", "Tensor groups: a list") = "",  # type: ignore[valid-type]
    data_parallel_size: searched("data_parallel_size", "Data groups: a list") = "",  # type: ignore[valid-type]
    expert_parallel_size: searched("expert_parallel_size", "Expert groups: a list") = "",  # type: ignore[valid-type]
    max_num_batched_tokens: searched("max_num_batched_tokens", "Token budgets of a step: a list") = "",  # type: ignore[valid-type]
    max_num_seqs: searched("max_num_seqs", "Most sequences of a step: a list") = "",  # type: ignore[valid-type]
    batching: Annotated[
        str, opt.listed("batching", "continuous (one pool), disaggregated (two pools) (default: both).")
    ] = "",
    emit: Annotated[
        str,
        typer.Option(
            "--emit",
            rich_help_panel=Panel.SIZING.value,
            help="Print how to launch the winner instead: vllm, sglang, trtllm, k8s, dynamo, llm-d.",
        ),
    ] = "",
    explain: Annotated[
        bool,
        typer.Option("--explain", rich_help_panel=Panel.SIZING.value, help="Also say why the runner-up lost."),
    ] = False,
    format: opt.Format = "",  # noqa: A002
    output: opt.Output = None,
    scheduler: campaign.Scheduler = "",
    **options: Any,
) -> int:
    """Finds the least hardware that serves a load within limits: chips, number, layout, formats, batching, cost.

    --hardware takes a list of chips, or all.  Options of a run take lists of values to try.  Exits 1 if no
    configuration meets the limits.  -o FOLDER/ sizes every chip for every model and load of the lists, one row each.
    """
    own = {
        "engine": engine or (emit if emit in ENGINES else ""),
        "quantization": quantization,
        "kv_cache_dtype": kv_cache_dtype,
        "tensor_parallel_size": tensor_parallel_size,
        "data_parallel_size": data_parallel_size,
        "expert_parallel_size": expert_parallel_size,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "batching": batching,
    }
    if campaign.is_asked(scheduler, output, format):
        return _campaign(model, hardware, {**own, **options}, output or "", scheduler)
    names = [name.strip() for name in hardware.split(",")]
    kind = views.check_output(format, output, (model, *names))
    if emit:
        _check_emit(emit, format, options)
    with progress(2 * len(chips_of(hardware))) as advance:
        made = size(model, hardware, advance=advance, best_so_far=lambda text: advance(0, text), **own, **options)
    if emit and made.best is not None:
        write(manifest(emit, made.best.to_dict()), output)
        return 0
    views.show(_views(made, explain=explain), kind, output)
    return 0 if made.best else 1


def _check_emit(target: str, format: str, options: dict[str, Any]) -> None:  # noqa: A002
    """Raise UserError for an unknown target of a manifest and for options that it cannot follow."""
    check_target(target)
    if format:
        raise UserError(f"--emit {target} prints a manifest; remove --format")
    if options.get("efficiency") == "ideal":
        raise UserError(f"--emit {target} launches an engine, and ideal times have none; remove --efficiency ideal")


def _campaign(model: str, hardware: str, options: dict[str, Any], folder: str, scheduler: str) -> int:
    """Size every chip for every model and load of the lists, one row each."""
    from llmviewer.api.calls import combinations
    from llmviewer.planning.campaign import size_campaign

    loads = {name: value for name, value in options.items() if name in LOAD}
    unset = {name: one.default for name, one in OPTIONS.items()} | {name: one.default for name, one in SIZE.items()}
    rest = {
        name: value for name, value in options.items() if name not in LOAD and value not in ("", None, unset.get(name))
    }
    lists = {"model": opt.values("model", model, ","), "hardware": list(map(str, chips_of(hardware)))}
    made = combinations({**lists, **campaign.lists_of_loads(loads)})
    return campaign.run(size_campaign([{**one, **rest} for one in made]), folder, scheduler)


def _views(made: Sizing, *, explain: bool) -> views.Views:
    def page() -> Any:
        from llmviewer.reports import sizing_page

        return sizing_page.page(made, explain=explain)

    return views.Views(page=page, document=made.to_dict, rows=made.rows)

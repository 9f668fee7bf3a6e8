"""`llmviewer analyze`."""

from __future__ import annotations

from typing import Annotated

import typer

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli.output import write
from llmviewer.errors import unknown
from llmviewer.result import Result

FORMATS = ("table", "json", "csv", "markdown")


def command(
    model: opt.Model,
    hardware: opt.Hardware,
    batch_size: Annotated[int, typer.Option(help="Sequences in the batch.")] = 1,
    input_len: Annotated[int, typer.Option(help="Prompt tokens of each sequence.")] = 1024,
    output_len: Annotated[int, typer.Option(help="Tokens each sequence generates.")] = 128,
    dtype: opt.Dtype = "auto",
    quantization: opt.Quantization = "none",
    kv_cache_dtype: opt.KvCacheDtype = "auto",
    attention: opt.Attention = "flash",
    efficiency: opt.Efficiency = "ideal",
    gpu_memory_utilization: opt.Utilization = 0.9,
    max_num_batched_tokens: opt.TokenBudget = 0,
    ignore_field: opt.IgnoreField = None,
    format: opt.Format = "table",  # noqa: A002
    output: opt.Output = "",
    no_fit_check: Annotated[bool, typer.Option("--no-fit-check", help="Exit 0 even if it does not fit.")] = False,
) -> int:
    """Operators with FLOPs, bytes, intensity, bound and time; prefill, decode, memory, TTFT and TPOT.

    Exits 1 when the workload does not fit in memory.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    result = api.analyze(
        model,
        hardware,
        batch_size=batch_size,
        input_len=input_len,
        output_len=output_len,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        attention=attention,
        efficiency=efficiency,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        ignore_fields=tuple(ignore_field or ()),
    )
    write(rendered(result, format), output)
    return 0 if result.fits or no_fit_check else 1


def rendered(result: Result, form: str) -> str:
    """The answer in the format asked for."""
    if form == "json":
        return result.to_json()
    if form == "csv":
        return str(result.operators().to_csv(index=False))
    from reports.table import analysis_table

    return analysis_table(result, form)

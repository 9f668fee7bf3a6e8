"""`llmviewer compare`."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from llmviewer import api
from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.comparison import Comparison
from llmviewer.errors import UserError, quoted

if TYPE_CHECKING:
    from reports.page import Page

#: More columns than this are a sweep, not a comparison.
MOST = 12


def command(
    model: Annotated[str, typer.Argument(help="Models, a comma list: names or paths.")],
    hardware: Annotated[str, typer.Option(help="Chips, a comma list: names or paths.")],
    batch_size: opt.BatchSize = 1,
    input_len: opt.InputLen = 1024,
    output_len: opt.OutputLen = 128,
    dtype: Annotated[str, typer.Option(help="Dtypes, a comma list: auto, bf16, fp16, fp32.")] = "auto",
    quantization: Annotated[str, typer.Option(help="Schemes, a comma list: none,w8a8,w4a16.")] = "none",
    kv_cache_dtype: Annotated[str, typer.Option(help="KV cache formats, a comma list: auto,fp8.")] = "auto",
    attention: opt.Attention = "flash",
    efficiency: opt.Efficiency = "ideal",
    gpu_memory_utilization: opt.Utilization = 0.9,
    max_num_batched_tokens: opt.TokenBudget = 0,
    ignore_field: opt.IgnoreField = None,
    format: opt.Format = "table",  # noqa: A002
    output: opt.Output = "",
    no_fit_check: Annotated[bool, typer.Option("--no-fit-check", help="Exit 0 even if one does not fit.")] = False,
) -> int:
    """Every combination of the comma lists, one column each, with ratios to the first.

    Exits 1 when one of them does not fit in memory.
    """
    views.check(format)
    request = api.request(batch_size, input_len, output_len)
    combinations = _combinations(
        model=model, hardware=hardware, dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype
    )
    shared = {
        "attention": attention,
        "efficiency": efficiency,
        "gpu_memory_utilization": gpu_memory_utilization,
        "max_num_batched_tokens": max_num_batched_tokens,
        "ignore_fields": tuple(ignore_field or ()),
    }
    results = (
        api.configuration(name, chip, **shared, dtype=kept, quantization=scheme, kv_cache_dtype=cache).answer(request)
        for name, chip, kept, scheme, cache in combinations
    )
    comparison = Comparison(results=tuple(results))
    views.show(_views(comparison), format, output)
    return 0 if comparison.fits or no_fit_check else 1


def _combinations(**lists: str) -> list[tuple[str, ...]]:
    """The product of the comma lists, the first varying slowest."""
    names = {option: [word.strip() for word in words.split(",")] for option, words in lists.items()}
    for option, words in names.items():
        if not all(words):
            raise UserError(f"{option} is {quoted(lists[option])}: a name between the commas is missing")
    combinations = list(product(*names.values()))
    if len(combinations) > MOST:
        counts = " x ".join(str(len(words)) for words in names.values() if len(words) > 1)
        raise UserError(
            f"{counts} = {len(combinations)} configurations; compare shows at most {MOST}, sweep any number"
        )
    return combinations


def _views(comparison: Comparison) -> views.Views:
    def page() -> Page:
        from reports import comparison_page

        return comparison_page.page(comparison)

    return views.Views(page=page, document=comparison.to_dict, rows=comparison.rows)

"""`llmviewer calibrate validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llmviewer.cli import candidates, views
from llmviewer.cli import options as opt
from llmviewer.core import arguments
from llmviewer.result.columns import parquet_library
from llmviewer.timing import profile as profiles

if TYPE_CHECKING:
    import pandas as pd

    from llmviewer.reports.page import Page

Tables = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help=f"Results of benchmarks ({arguments.BENCHMARKS}), or measured tables."),
]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware", autocompletion=candidates.chips, help="Chip of every row, overriding what the file states."
    ),
]
Profile = Annotated[str, typer.Option("--profile", help="Your profile, searched before the shipped ones.")]
Model = Annotated[
    str, typer.Option("--model", autocompletion=candidates.models, help="Model of a benchmark that does not state it.")
]
Engine = Annotated[str, typer.Option("--engine", help="Engine of a benchmark that does not state it: vllm, sglang ...")]
Quantization = Annotated[str, typer.Option("--quantization", help="Quantization of the benchmark's model.")]
KvCacheDtype = Annotated[str, typer.Option("--kv-cache-dtype", help="Format of the benchmark's KV cache.")]
TensorParallelSize = Annotated[
    int, typer.Option("--tensor-parallel-size", "-tp", "--tp", min=0, help="Tensor-parallel size of the benchmark.")
]
PipelineParallelSize = Annotated[
    int, typer.Option("--pipeline-parallel-size", "-pp", "--pp", min=0, help="Pipeline-parallel size of the benchmark.")
]
BatchSize = Annotated[int, opt.integer_option("batch_size", "Concurrent requests of the benchmark.", least=0)]
InputLen = Annotated[int, opt.integer_option("input_len", "Mean prompt length of the benchmark.", least=0)]
OutputLen = Annotated[int, opt.integer_option("output_len", "Mean output length of the benchmark.", least=0)]
Stage = Annotated[str, typer.Option("--stage", help="Stage of a torch profile: prefill or decode.")]
Passes = Annotated[int, opt.integer_option("passes", "Forward passes of a torch profile.", least=0)]
Lent = Annotated[
    bool, typer.Option("--lent", help="Predict kernels with constants of other chips only, as for a chip without rows.")
]
Rows = Annotated[str | None, typer.Option("-o", "--output", help="Write the rows with predictions to this file.")]


def command(
    table: Tables,
    hardware: Hardware = "",
    profile: Profile = "",
    lent: Lent = False,
    model: Model = "",
    engine: Engine = "",
    quantization: Quantization = "",
    kv_cache_dtype: KvCacheDtype = "",
    tensor_parallel_size: TensorParallelSize = 0,
    pipeline_parallel_size: PipelineParallelSize = 0,
    batch_size: BatchSize = 0,
    input_len: InputLen = 0,
    output_len: OutputLen = 0,
    stage: Stage = "",
    passes: Passes = 0,
    format: opt.PrintedFormat = "table",  # noqa: A002
    output: Rows = None,
) -> int:
    """Predict what was measured: how far off is each figure of a benchmark, each kernel of a table.

    Benchmarks are told apart by content; options state what a file does not.  Tables are those of
    docs/guide/calibration.md (kernels, whole requests, whole systems) and docs/reference/memory.md (what engines log
    about memory at start-up).  No row is dropped: what cannot be predicted is named and counted.
    """
    views.check_output(format, output, (*map(str, table), profile))
    from llmviewer.calibrate import judge
    from llmviewer.calibrate.readers.run import Stated

    own = profiles.load(Path(profile)) if profile else None
    stated = Stated(
        hardware=hardware, model=model, engine=engine, quantization=quantization, kv_cache_dtype=kv_cache_dtype,
        tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size,
        batch_size=batch_size, input_len=input_len, output_len=output_len, stage=stage, passes=passes,
    )  # fmt: skip
    predictions = judge.predict_tables(table, hardware, own, stated, lent=lent)
    document = judge.document(predictions)
    if output is not None:
        _write(predictions, output)
    _show(document, format, ", ".join(path.name for path in table))
    return 0


def _show(document: dict[str, Any], format: str, title: str) -> None:  # noqa: A002
    def page() -> Page:
        from llmviewer.reports import validation_page

        return validation_page.page(document, title)

    views.show(
        views.Views(
            page=page, document=lambda: document, rows=lambda: document["scores"] or document.get("memory", [])
        ),
        format,
        None,
    )


def _of_one_type(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with text in columns that hold values of several types, which Parquet cannot store."""
    mixed = [
        name for name in rows.columns if rows[name].dtype == object and rows[name].dropna().map(type).nunique() > 1
    ]
    return rows.assign(**{name: rows[name].map(str) for name in mixed})


def _write(predictions: list[pd.DataFrame], path: str) -> None:
    """Write the rows of all tables, as Parquet or CSV depending on the file name."""
    import pandas as pd

    from llmviewer.reports.tables import safe_frame

    rows = predictions[0] if len(predictions) == 1 else pd.concat(predictions, ignore_index=True)
    with views.atomic_file(path) as temporary:
        if path.endswith(".parquet"):
            parquet_library()
            _of_one_type(rows).to_parquet(temporary)
        else:
            safe_frame(rows).to_csv(temporary, index=False)

"""Options that state what a file of a benchmark does not."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from llmviewer.cli import candidates
from llmviewer.cli import options as opt

#: Field of `Stated` -> its option.
STATED: dict[str, Any] = {
    "hardware": Annotated[
        str,
        typer.Option(
            "--hardware", autocompletion=candidates.chips, help="Chip of every row, overriding what the file states."
        ),
    ],
    "model": Annotated[
        str,
        typer.Option("--model", autocompletion=candidates.models, help="Model of a benchmark that does not state it."),
    ],
    "engine": Annotated[
        str, typer.Option("--engine", help="Engine of a benchmark that does not state it: vllm, sglang ...")
    ],
    "quantization": Annotated[str, typer.Option("--quantization", help="Quantization of the benchmark's model.")],
    "kv_cache_dtype": Annotated[str, typer.Option("--kv-cache-dtype", help="Format of the benchmark's KV cache.")],
    "tensor_parallel_size": Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", "--tp", min=0, help="Tensor-parallel size of the benchmark.")
    ],
    "pipeline_parallel_size": Annotated[
        int,
        typer.Option("--pipeline-parallel-size", "-pp", "--pp", min=0, help="Pipeline-parallel size of the benchmark."),
    ],
    "batch_size": Annotated[int, opt.integer_option("batch_size", "Concurrent requests of the benchmark.", least=0)],
    "input_len": Annotated[int, opt.integer_option("input_len", "Mean prompt length of the benchmark.", least=0)],
    "output_len": Annotated[int, opt.integer_option("output_len", "Mean output length of the benchmark.", least=0)],
    "stage": Annotated[str, typer.Option("--stage", help="Stage of a torch profile: prefill or decode.")],
    "passes": Annotated[int, opt.integer_option("passes", "Forward passes of a torch profile.", least=0)],
}


def with_stated(command: Callable[..., int]) -> Callable[..., int]:
    """Add to a command the options of STATED that it does not declare, which it receives as **words."""
    declared = signature(command, eval_str=True)
    own = [one for one in declared.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=one.__origin__(), annotation=one)
        for name, one in STATED.items()
        if name not in declared.parameters
    ]
    at = [one.name for one in own].index("format")
    last = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in own[at:]]
    command.__signature__ = declared.replace(parameters=[*own[:at], *added, *last])  # type: ignore[attr-defined]
    return command

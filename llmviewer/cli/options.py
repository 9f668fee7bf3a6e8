"""Options that several commands share; the names follow vLLM."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from llmviewer import arguments


def _number(check: Callable[[str, object], object], name: str, text: object) -> object:
    """The number that a word of the command line says; a wrong one gets the error that Python gets."""
    return check(name, arguments.number_in(text) if isinstance(text, str) else text)


def _whole(name: str, help: str, *flags: str, least: int = 1) -> Any:  # noqa: A002
    check = partial(arguments.whole, least=least)
    return typer.Option(*flags, help=help, parser=partial(_number, check, name), metavar="INTEGER")


Model = Annotated[str, typer.Argument(help="A model's name, or a path to its config.json or the folder holding it.")]
Hardware = Annotated[str, typer.Option("--hardware", help="A chip's name, or a path to its YAML.")]
BatchSize = Annotated[int, _whole("batch_size", "Sequences in the batch.")]
InputLen = Annotated[int, _whole("input_len", "Prompt tokens of each sequence.")]
OutputLen = Annotated[int, _whole("output_len", "Tokens each sequence generates.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, bf16, fp16, fp32: dtype of weights and activations.")]
Quantization = Annotated[str, typer.Option("--quantization", help="w4a16, w8a8-fp8, awq ...: none keeps the model's.")]
KvCacheDtype = Annotated[str, typer.Option("--kv-cache-dtype", help="auto, fp8, int8, kv4 ...")]
Attention = Annotated[str, typer.Option("--attention", help="flash, eager.")]
LatentAttention = Annotated[
    str, typer.Option("--latent-attention", help="Form of MLA: cheaper (in FLOPs), naive, absorbed.")
]
Efficiency = Annotated[str, typer.Option("--efficiency", help="ideal: the data sheet's roofline.")]
Utilization = Annotated[
    float,
    typer.Option(
        "--gpu-memory-utilization",
        help="Fraction of the memory an engine may use, 0 to 1.",
        parser=partial(_number, arguments.fraction, "gpu_memory_utilization"),
        metavar="FLOAT",
    ),
]
TokenBudget = Annotated[
    int,
    _whole(
        "max_num_batched_tokens",
        "Most prompt tokens of one prefill pass; 0 = all together.",
        "--max-num-batched-tokens",
        least=0,
    ),
]
IgnoreField = Annotated[
    list[str] | None, typer.Option("--ignore-field", help="Go on without this field of the config.")
]
Format = Annotated[str, typer.Option("--format", help="table, json, csv, markdown.")]
Output = Annotated[str, typer.Option("-o", "--output", help="Write to this file instead of the terminal.")]

"""Options that several commands share; the names follow vLLM."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(help="A model's name, or a path to its config.json or the folder holding it.")]
Hardware = Annotated[str, typer.Option("--hardware", help="A chip's name, or a path to its YAML.")]
Dtype = Annotated[str, typer.Option("--dtype", help="auto, bf16, fp16, fp32: dtype of weights and activations.")]
Quantization = Annotated[str, typer.Option("--quantization", help="w4a16, w8a8-fp8, awq ...: none keeps the model's.")]
KvCacheDtype = Annotated[str, typer.Option("--kv-cache-dtype", help="auto, fp8, int8, kv4 ...")]
Attention = Annotated[str, typer.Option("--attention", help="flash, eager.")]
LatentAttention = Annotated[
    str, typer.Option("--latent-attention", help="Form of MLA: cheaper (in FLOPs), naive, absorbed.")
]
Efficiency = Annotated[str, typer.Option("--efficiency", help="ideal: the data sheet's roofline.")]
Utilization = Annotated[
    float, typer.Option("--gpu-memory-utilization", help="Fraction of the memory an engine may use, 0 to 1.")
]
TokenBudget = Annotated[
    int, typer.Option("--max-num-batched-tokens", help="Most prompt tokens of one prefill pass; 0 = all together.")
]
IgnoreField = Annotated[
    list[str] | None, typer.Option("--ignore-field", help="Go on without this field of the config.")
]
Format = Annotated[str, typer.Option("--format", help="table, json, csv, markdown.")]
Output = Annotated[str, typer.Option("-o", "--output", help="Write to this file instead of the terminal.")]

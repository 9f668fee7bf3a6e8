"""Options that several commands share; the names follow vLLM."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from itertools import product
from typing import Annotated, Any

import typer

from llmviewer.cli import candidates
from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted
from llmviewer.techniques.registry import TECHNIQUES


def _number(check: Callable[[str, object], object], name: str, text: object) -> object:
    """The number that a word of the command line says; a wrong one gets the error that Python gets."""
    return check(name, arguments.number_in(text) if isinstance(text, str) else text)


def whole(name: str, help: str, *flags: str, least: int = 1) -> Any:  # noqa: A002
    """The option of a whole number."""
    check = partial(arguments.whole, least=least)
    return typer.Option(*flags, help=help, parser=partial(_number, check, name), metavar="INTEGER")


Model = Annotated[
    str,
    typer.Argument(
        autocompletion=candidates.models, help="A model's name, or a path to its config.json or the folder holding it."
    ),
]
Hardware = Annotated[
    str, typer.Option("--hardware", autocompletion=candidates.chips, help="A chip's name, or a path to its YAML.")
]
Models = Annotated[str, typer.Argument(autocompletion=candidates.models, help="Models, a comma list: names or paths.")]
Chips = Annotated[
    str, typer.Option("--hardware", autocompletion=candidates.chips, help="Chips, a comma list: names or paths.")
]
BatchSize = Annotated[int, whole("batch_size", "Sequences in the batch.")]
InputLen = Annotated[int, whole("input_len", "Prompt tokens of each sequence.")]
OutputLen = Annotated[int, whole("output_len", "Tokens each sequence generates.")]
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
    whole(
        "max_num_batched_tokens",
        "Most prompt tokens of one prefill pass; 0 = all together.",
        "--max-num-batched-tokens",
        least=0,
    ),
]
IgnoreFields = Annotated[
    list[str] | None, typer.Option("--ignore-field", help="Go on without this field of the config.")
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype",
        autocompletion=candidates.fixed("auto", "bf16", "fp16", "fp32"),
        help="auto, bf16, fp16, fp32: dtype of weights and activations.",
    ),
]
NoFitCheck = Annotated[bool, typer.Option("--no-fit-check", help="Exit 0 even if it does not fit.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        autocompletion=candidates.fixed("table", "json", "csv", "markdown"),
        help="table, json, csv, markdown.",
    ),
]
Output = Annotated[str | None, typer.Option("-o", "--output", help="Write to this file instead of the terminal.")]

#: option of api.Options -> (annotation, default); techniques come after them, from the registry.
RUN: dict[str, tuple[Any, Any]] = {
    "dtype": (Dtype, "auto"),
    "latent_attention": (
        Annotated[
            str,
            typer.Option(
                "--latent-attention",
                autocompletion=candidates.fixed("cheaper", "naive", "absorbed"),
                help="Form of MLA: cheaper (in FLOPs), naive, absorbed.",
            ),
        ],
        "cheaper",
    ),
    "efficiency": (
        Annotated[
            str,
            typer.Option(
                "--efficiency",
                autocompletion=candidates.fixed("calibrated", "ideal"),
                help="ideal: the data sheet's roofline, a bound; calibrated: what kernels reach.",
            ),
        ],
        "ideal",
    ),
    "engine": (
        Annotated[
            str,
            typer.Option(
                "--engine",
                autocompletion=candidates.engines,
                help="What serves the model, with calibrated: kernels (alone), vllm, trtllm ...",
            ),
        ],
        "kernels",
    ),
    "profile": (
        Annotated[str, typer.Option("--profile", help="A profile of your own, from `llmviewer calibrate fit`.")],
        "",
    ),
    "gpu_memory_utilization": (Utilization, 0.9),
    "max_num_batched_tokens": (TokenBudget, 0),
    "ignore_fields": (IgnoreFields, None),
}
#: Options of api.Options that sweep and compare take a comma list of, beside listed techniques.
LISTED = ("dtype",)
#: Configurations of one command, each of which is loaded before the first is answered.
MOST_COMBINATIONS = 10**4


def running(command: Callable[..., int], **defaults: str) -> Callable[..., int]:
    """Give a command, which takes them as **options, every option of a run: those of api.Options and all techniques.

    defaults: those of this command that differ.
    """
    extra = RUN | {name: _technique(name) for name in TECHNIQUES}
    own = signature(command, eval_str=True)
    kept = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name, default), annotation=annotation)
        for name, (annotation, default) in extra.items()
    ]

    def run(**words: Any) -> int:
        words["ignore_fields"] = tuple(words["ignore_fields"] or ())
        return command(**words)

    run.__doc__ = command.__doc__
    run.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*kept, *added)} | {"return": int}
    return run


def _parts(text: str, separator: str) -> list[str]:
    return [word.strip() for word in text.split(separator)]


def _technique(name: str) -> tuple[Any, str]:
    option = TECHNIQUES[name]
    flag = "--" + name.replace("_", "-")
    words = candidates.values_of(name)
    return Annotated[str, typer.Option(flag, *option.flags, autocompletion=words, help=option.help)], option.default


def combinations(options: dict[str, Any], **leading: str) -> list[dict[str, Any]]:
    """Every combination of the lists, `leading` ones (model, hardware) varying slowest.

    Values are separated by commas, those of options whose texts hold commas by semicolons."""
    lists = leading | {name: options[name] for name in (*LISTED, *TECHNIQUES)}
    semicolons = {name for name, option in TECHNIQUES.items() if option.separator == ";"}
    parts = {name: _parts(text, ";" if name in semicolons else ",") for name, text in lists.items()}
    for name, words in parts.items():
        between = "semicolons" if name in semicolons else "commas"
        if not all(words):
            raise UserError(f"{name} is {quoted(lists[name])}: a name between the {between} is missing")
    count = math.prod(map(len, parts.values()))
    if count > MOST_COMBINATIONS:
        raise UserError(f"the comma lists make {count:,} configurations; allowed: at most {MOST_COMBINATIONS:,}")
    return [{**options, **dict(zip(parts, chosen, strict=True))} for chosen in product(*parts.values())]


def titled(chosen: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every combination once, by the values in which it differs; a single one by its model and chip."""
    from llmviewer.result.crossover import configuration_names  # commands of one configuration need none

    own = [one for at, one in enumerate(chosen) if one not in chosen[:at]]
    if len(own) == 1:
        return {f"{own[0]['model']} on {own[0]['hardware']}": own[0]}
    return dict(zip(configuration_names(own), own, strict=True))

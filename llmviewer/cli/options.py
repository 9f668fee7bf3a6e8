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
from llmviewer.techniques.options import OPTIONS, WORKLOAD, Declaration, ValueKind


def _parsed(declaration: Declaration, name: str, text: object) -> object:
    """The number that a word of the command line says; a wrong one gets the error that Python gets."""
    return declaration.checked(name, arguments.parse_number(text) if isinstance(text, str) else text)


def annotation(name: str) -> Any:
    """The annotation by which typer offers an option of a run."""
    declaration = OPTIONS[name]
    flags = declaration.flags if declaration.kind is ValueKind.WORDS else (_flag(name), *declaration.flags)
    if declaration.kind is ValueKind.WORDS:
        return Annotated[list[str] | None, typer.Option(*flags, help=declaration.help)]
    if declaration.kind is ValueKind.WORD:
        words = candidates.for_option(name, declaration.choices)
        return Annotated[str, typer.Option(*flags, autocompletion=words, help=declaration.help)]
    parser = partial(_parsed, declaration, name)
    kind = int if declaration.kind is ValueKind.WHOLE else float
    option = typer.Option(*flags, help=declaration.help, parser=parser, metavar=declaration.kind.value)
    return Annotated[kind, option]


def integer_option(name: str, summary: str, *, least: int = 1) -> Any:
    """The option of a whole number that belongs to one command."""
    declaration = Declaration(kind=ValueKind.WHOLE, default=None, help=summary, least=least)
    return typer.Option(help=summary, parser=partial(_parsed, declaration, name), metavar=declaration.kind.value)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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
BatchSize, InputLen, OutputLen = map(annotation, WORKLOAD)
BATCH_SIZE, INPUT_LEN, OUTPUT_LEN = (declaration.default for declaration in WORKLOAD.values())
Dtype, IgnoreFields = annotation("dtype"), annotation("ignore_fields")
NoFitCheck = Annotated[bool, typer.Option("--no-fit-check", help="Exit 0 even if it does not fit.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        autocompletion=candidates.one_of("table", "json", "csv", "markdown"),
        help="table, json, csv, markdown.",
    ),
]
Output = Annotated[str | None, typer.Option("-o", "--output", help="Write to this file instead of the terminal.")]

#: Configurations of one command, each of which is loaded before the first is answered.
MAX_COMBINATIONS = 10**4


def with_run_options(command: Callable[..., int], **defaults: str) -> Callable[..., int]:
    """Give a command, which takes them as **options, every option of a run that is not its own.

    defaults: those of this command that differ.
    """
    own = signature(command, eval_str=True)
    kept = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    added = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=defaults.get(name, None if declaration.default == () else declaration.default),
            annotation=annotation(name),
        )
        for name, declaration in OPTIONS.items()
        if declaration.group != "workload"
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


def combinations(options: dict[str, Any], **leading: str) -> list[dict[str, Any]]:
    """Every combination of the lists, `leading` ones (model, hardware) varying slowest.

    Values are separated by commas, those of options whose texts hold commas by semicolons."""
    lists = leading | {name: options[name] for name, one in OPTIONS.items() if one.separator}
    semicolons = {name for name, one in OPTIONS.items() if one.separator == ";"}
    parts = {name: _parts(text, ";" if name in semicolons else ",") for name, text in lists.items()}
    for name, words in parts.items():
        between = "semicolons" if name in semicolons else "commas"
        if not all(words):
            raise UserError(f"{name} is {quoted(lists[name])}: a name between the {between} is missing")
    count = math.prod(map(len, parts.values()))
    if count > MAX_COMBINATIONS:
        raise UserError(f"the comma lists make {count:,} configurations; allowed: at most {MAX_COMBINATIONS:,}")
    return [{**options, **dict(zip(parts, chosen, strict=True))} for chosen in product(*parts.values())]


def unique_by_name(chosen: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Every combination once, by the values in which it differs; a single one by its model and chip."""
    from llmviewer.result.crossover import configuration_names  # commands of one configuration need none

    own = [one for at, one in enumerate(chosen) if one not in chosen[:at]]
    if len(own) == 1:
        return {f"{own[0]['model']} on {own[0]['hardware']}": own[0]}
    return dict(zip(configuration_names(own), own, strict=True))

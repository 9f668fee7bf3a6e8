"""Options shared by several commands; names follow vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from llmviewer.cli import candidates, launched, views
from llmviewer.cli.help import UNSET
from llmviewer.core.errors import UserError, naming, quoted
from llmviewer.hardware.hypothetical import alternatives
from llmviewer.language.option import Kind, Option, Panel
from llmviewer.techniques.options import BITS, OPTIONS, WORKLOAD, with_bits

#: Options of techniques that the command line takes several times, each with values of its own.
REPEATED = tuple(name for name, declaration in OPTIONS.items() if declaration.repeated)
#: Defaults that `--help` leaves out because they change nothing.
SWITCHED_OFF = ("none", "off", "", ())
#: Groups of options whose values are checked where Python callers' are.
CHECKED_LATER = ("load", "sizing")


def _parsed(option: Option, name: str, text: object) -> object:
    """Value of a number, checked unless its call does."""
    value = option.parsed(text) if isinstance(text, str) else text
    return value if option.group in CHECKED_LATER else option.checked(name, value)


def annotation(name: str, option: Option | None = None) -> Any:
    """Typer annotation of an option, by default of that of a run."""
    declared = option or OPTIONS[name]
    made = partial(
        typer.Option,
        *declared.spellings(name),
        help=declared.help,
        rich_help_panel=declared.panel.value,
        show_default=declared.default not in SWITCHED_OFF,
    )
    if declared.kind is Kind.WORDS or declared.repeated:
        return Annotated[list[str] | None, made()]
    if declared.kind is Kind.SWITCH:
        return Annotated[bool, made()]
    if declared.kind in (Kind.WORD, Kind.TEXT, Kind.TIME):
        offered = candidates.for_option(name, declared.choices) if name in OPTIONS or declared.choices else None
        return Annotated[str if name in OPTIONS else str | None, made(autocompletion=offered)]
    kind: Any = int if declared.kind is Kind.WHOLE else float
    number = made(parser=partial(_parsed, declared, name), metavar=declared.kind.metavar)
    return Annotated[object | None if declared.group in CHECKED_LATER else kind, number]


def listed(name: str, summary: str) -> Any:
    """Typer option for a size that may be a list or ranges."""
    declaration = OPTIONS[name]
    return typer.Option(*declaration.spellings(name), help=summary, rich_help_panel=declaration.panel.value)


def format_option(*formats: str, otherwise: str = "; else by -o.") -> Any:
    """Typer option for the format of the output, which the suffix of the output file also states."""
    summary = ", ".join(formats) + otherwise
    return typer.Option("--format", autocompletion=candidates.one_of(*formats), help=summary, show_default=False)


def integer_option(name: str, summary: str, *, least: int = 1) -> Any:
    """Typer option for an integer that only one command has."""
    option = Option(kind=Kind.WHOLE, help=summary, least=least)
    spellings = OPTIONS[name].spellings(name) if name in OPTIONS else ()
    return typer.Option(*spellings, help=summary, parser=partial(_parsed, option, name), metavar=option.kind.metavar)


Model = Annotated[
    str,
    typer.Argument(
        autocompletion=candidates.models, help="Model name, Hub id, or path to a folder, config.json or GGUF file."
    ),
]
Hardware = Annotated[
    str,
    typer.Option("--hardware", autocompletion=candidates.chips, help="Chip name (2x4090: two), or path to its YAML."),
]
Models = Annotated[
    str, typer.Argument(autocompletion=candidates.models, help="Models, comma-separated: names or paths.")
]
Chips = Annotated[
    str,
    typer.Option(
        "--hardware", autocompletion=candidates.chips, help="Chips (2x4090: two), comma-separated: names or paths."
    ),
]
BatchSize, InputLen, OutputLen = map(annotation, WORKLOAD)
InputLens = Annotated[str, listed("input_len", "Prompt lengths: a list or ranges.")]
OutputLens = Annotated[str, listed("output_len", "Output lengths: a list or ranges.")]
BATCH_SIZE, INPUT_LEN, OUTPUT_LEN = (declaration.default for declaration in WORKLOAD.values())
Dtype, IgnoreFields = annotation("dtype"), annotation("ignore_fields")
NoFitCheck = Annotated[
    bool,
    typer.Option(
        "--no-fit-check",
        rich_help_panel=Panel.OUTPUT.value,
        help="Exit 0 even if the workload does not fit in memory.",
    ),
]
Format = Annotated[str, format_option(*views.FORMATS)]
#: Format of commands whose output file has another format.
PrintedFormat = Annotated[str, format_option(*views.FORMATS, otherwise=".")]
Output = Annotated[
    str | None,
    typer.Option(
        "-o",
        "--output",
        callback=lambda path: None if path == "-" else path,
        help="Write to this file instead of the terminal (-).",
    ),
]


def with_declared(
    options: Mapping[str, Option],
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Decorator that adds declared options to a command, which receives them among its **options."""

    def added_to(command: Callable[..., int]) -> Callable[..., int]:
        declared = signature(command, eval_str=True)
        own = [one for one in declared.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        rest = [one for one in declared.parameters.values() if one.kind is Parameter.VAR_KEYWORD]
        added = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=one.default, annotation=annotation(name, one))
            for name, one in options.items()
            if name not in declared.parameters
        ]
        command.__signature__ = declared.replace(parameters=[*own, *added, *rest])  # type: ignore[attr-defined]
        setattr(command, UNSET, {one.name for one in added})
        return command

    return added_to


def with_run_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add to a command every option of a run that it does not declare; it receives those typed as **options.

    Options of a run that the command declares itself are None where they were not typed."""
    declared = signature(command, eval_str=True)
    kept = [p for p in declared.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    added = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=None if declaration.default == () or declaration.repeated else declaration.default,
            annotation=annotation(name),
        )
        for name, declaration in OPTIONS.items()
        if declaration.group != "workload" and name not in declared.parameters
    ]

    if any(one.default is Parameter.empty for name, one in declared.parameters.items() if name in ("model", "models")):
        shown = typer.Option(launched.OPTION, help=launched.SUMMARY, rich_help_panel=Panel.COMMON.value)
        added.append(
            Parameter(launched.NAME, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, shown])
        )

    left_out = {one.name for one in added} | getattr(command, UNSET, set())

    def run(**words: Any) -> int:
        words = {name: value for name, value in words.items() if value is not None or name not in left_out}
        if not any("," in str(words.get(name)) for name in BITS):
            words = with_bits(words)  # lists of compare and sweep are combined first
        if "ignore_fields" in words:
            words["ignore_fields"] = tuple(words["ignore_fields"])
        for name in REPEATED:
            if given := words.get(name):
                with naming(OPTIONS[name].spellings(name)[0]):
                    words[name] = given[0] if given == [OPTIONS[name].default] else alternatives(given)
        return command(**words)

    run.__doc__ = command.__doc__
    run.__signature__ = declared.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in (*kept, *added)} | {"return": int}
    own = {name for name in declared.parameters if name in OPTIONS and name not in WORKLOAD}
    setattr(run, UNSET, left_out | own)
    return run


def combinations(options: Mapping[str, Any], **leading: Any) -> list[dict[str, Any]]:
    """Every combination of the lists; `leading` ones (model, hardware, loads) vary slowest.

    Values are separated by commas, or by semicolons for options whose values contain commas."""
    from llmviewer.api import calls  # not needed by commands without a model

    lists = {name: values(name, text, ",") for name, text in leading.items()}
    declared = ((name, one.separator) for name, one in OPTIONS.items() if options.get(name) is not None)
    return calls.combinations(lists | {name: values(name, options[name], sep) for name, sep in declared})


def values(name: str, text: Any, separator: str) -> Any:
    """The values of a list; an option without a separator has one value."""
    if not separator or not isinstance(text, str):
        return text
    words = [word.strip() for word in text.split(separator)]
    if separator == "," and ";" in text and "/" not in text:  # a path may contain one
        raise UserError(f"{name} is {quoted(text)}; its values are separated by commas: {text.replace(';', ',')}")
    if not all(words):
        between = {",": "commas", ";": "semicolons"}[separator]
        raise UserError(f"{name} is {quoted(text)}: a value between the {between} is missing")
    return words


def unique_by_name(configurations: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Distinct configurations, named by the values in which they differ; a single one by its model and chip."""
    from llmviewer.result.crossover import configuration_names  # not needed by commands of one configuration

    unique = [one for position, one in enumerate(configurations) if one not in configurations[:position]]
    if len(unique) == 1:
        return {f"{unique[0]['model']} on {unique[0]['hardware']}": unique[0]}
    return dict(zip(configuration_names(unique), unique, strict=True))

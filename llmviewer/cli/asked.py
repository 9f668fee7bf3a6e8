"""Commands that are made from the declaration of their question: arguments, options, page, JSON, CSV, exit status."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature, signature
from typing import Annotated, Any

import typer

from llmviewer.cli import options as opt
from llmviewer.cli import views
from llmviewer.cli.views import print_warnings
from llmviewer.language.option import Option
from llmviewer.questions import Question
from llmviewer.techniques.options import RUN_OPTIONS, WORKLOAD

#: Arguments of many questions.
COMMON = {"model": opt.Model, "hardware": opt.Hardware}


def command_of(question: Question) -> Callable[..., int]:
    """The command of a question, whose arguments are those of its Python function."""

    def command(format: str = "", output: str | None = None, **words: Any) -> int:  # noqa: A002
        kind = views.check_output(format, output, [words[name] for name in COMMON if name in words])
        found = question.function()(**{name: value for name, value in words.items() if value is not None})
        if question.warns:
            print_warnings(found.warnings)
        views.show(views.of(question, found), kind, output)
        return 0 if getattr(found, "holds", True) else 1

    own, accepted = question.options(), signature(question.function()).parameters
    named = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=_default(one, own.get(name)), annotation=_annotation(name, own))
        for name, one in accepted.items()
        if name in {*COMMON, *own, *WORKLOAD}
    ]
    named += [
        Parameter("format", Parameter.KEYWORD_ONLY, default="", annotation=opt.Format),
        Parameter("output", Parameter.KEYWORD_ONLY, default=None, annotation=opt.Output),
    ]
    rest = [Parameter("options", Parameter.VAR_KEYWORD)] if RUN_OPTIONS.keys() & accepted.keys() else []
    command.__doc__ = question.detail
    command.__signature__ = Signature([*named, *rest])  # type: ignore[attr-defined]
    return opt.with_run_options(command) if rest else command


def _annotation(name: str, own: Any) -> Any:
    if name not in own:
        return COMMON.get(name) or opt.annotation(name)
    option: Option = own[name]
    if option.argument:
        return Annotated[str, typer.Argument(metavar=name.upper(), help=option.help)]
    return opt.annotation(name, option)


def _default(accepted: Parameter, option: Option | None) -> Any:
    """The default of Python, which the command line writes as a text where it takes one."""
    text = option is not None and isinstance(accepted.default, float)
    return f"{accepted.default:g}" if text else accepted.default

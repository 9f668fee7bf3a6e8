"""Help of a command with many options: a panel of common options first, then one panel per subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from llmviewer.core.errors import UserError, nearest, printable
from llmviewer.language.option import Panel

#: Messages of the parser repeat the word they reject, which may be long.
MAX_MESSAGE_CHARACTERS = 300
#: Options of servers, of their benchmarks and of other commands -> the options to use where a command has them.
INSTEAD = {
    "--concurrency": ("--batch-size",),
    "--max-concurrency": ("--batch-size",),
    "--bs": ("--batch-size",),
    "--size": ("--style",),
    "--fsdp": ("--zero",),
    "--input-len": ("--context",),
    "--context": ("--input-len",),
    "--seq-len": ("--input-len",),
    "--prompt-len": ("--input-len",),
    "--max-tokens": ("--output-len",),
    "--max-new-tokens": ("--output-len",),
    "--device": ("--hardware",),
    "--gpu": ("--hardware",),
    "--hw": ("--hardware",),
    "--chip": ("--hardware",),
    "--rate": ("--request-rate",),
    "--qps": ("--request-rate",),
    "-v": ("--version",),
    "--cpu-moe": ("--n-cpu-moe",),
    "-cmoe": ("--n-cpu-moe",),
}
#: What `why` takes instead of options of a run.
TWO_RUNS = "write each run in quotes: llmviewer why 'MODEL --hardware A' 'MODEL --hardware B'"


def one_line(error: Exception, words: Sequence[str]) -> Exception:
    """A usage error of the parser as a UserError; any other exception unchanged."""
    message = getattr(error, "format_message", None)
    if message is None:
        return error
    context = getattr(error, "ctx", None)
    if context is not None and hasattr(error, "option_name"):
        return UserError(_no_such_option(error.option_name, context))
    if context is not None and type(error).__name__ == "MissingParameter":
        return UserError(_missing(error.param, context, words))  # type: ignore[attr-defined]
    text = " ".join(str(message()).split())
    if "unexpected extra argument" in text:
        text += "; a value has no spaces, and a list has commas without spaces"
    return UserError(printable(text, MAX_MESSAGE_CHARACTERS))


def _no_such_option(option: str, context: Any) -> str:
    """The message for an option that the command does not have, with the one that is meant."""
    parameters = context.command.params
    known = [word for one in parameters for word in one.opts if one.param_type_name == "option"]
    instead = [word for word in INSTEAD.get(option, ()) if word in known]
    told = printable(option, MAX_MESSAGE_CHARACTERS)
    if instead:
        return f"no such option: {told}; use {' and '.join(instead)}"
    if context.command.name == "why":
        return f"no such option: {told}; {TWO_RUNS}"
    if option == "--model" and any(one.name == "model" for one in parameters):
        return f"no such option: {told}; the model stands alone: {context.command_path} MODEL ..."
    meant = nearest(option.replace("_", "-"), (word for word in known if word.startswith("--")))
    guess = f"; did you mean {meant}?" if meant else ""
    return f"no such option: {told}{guess} ({context.command_path} --help lists all)"


def _missing(parameter: Any, context: Any, words: Sequence[str]) -> str:
    """The message for an option or an argument that is not given, with its help."""
    path = context.command_path
    if parameter.param_type_name == "argument":
        pieces = [one.make_metavar(context) for one in context.command.params if one.param_type_name == "argument"]
        return f"missing {parameter.make_metavar(context)}: {_help(parameter)} ({' '.join([path, *pieces])})"
    name = max(parameter.opts, key=len)
    chip = next(_chips(words), "") if name == "--hardware" else ""
    meant = f"; did you mean --hardware {chip}?" if chip else ""
    return f"missing {name}: {_help(parameter)}{meant} ({path} --help lists all)"


def _help(parameter: Any) -> str:
    return (parameter.help or "").strip().rstrip(".")


def _chips(words: Sequence[str]) -> Iterator[str]:
    """Words of a command line that are names of chips."""
    from llmviewer.cli import candidates

    return (word for word in words[2:] if word and word in candidates.chips(word))


#: Columns of a wide terminal that help fills; longer lines are hard to read.
MAX_WIDTH = 160
#: Widest first column of help on a terminal of usual width, and of at least WIDE columns.
WIDE = 110
FIRST_COLUMN = {False: 30, True: 42}
#: Characters of a first sentence of help, more than any has.
LONGEST_SENTENCE = 1000
#: Options that close their panel.
LAST = ("format", "output", "help")
#: Attribute of a command's function: parameters that are None unless they were typed, whatever default help shows.
UNSET = "none_unless_typed"


class Listing(TyperGroup):
    """A group whose help tells the whole first sentence of every command, on several lines where it is long."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, one.get_short_help_str(LONGEST_SENTENCE)) for name, one in found if one is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class PanelCommand(TyperCommand):
    """A command whose help shows options by panel; options without one belong to the command and are common."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; options that were not typed are None, so that a typed default is told from none."""
        for name in getattr(self.callback, UNSET, ()):
            if ctx.get_parameter_source(name).name != "COMMANDLINE":
                ctx.params[name] = None
        return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the panels."""
        parameters = self.get_params(ctx)
        sections = {"Arguments": [one for one in parameters if one.param_type_name == "argument"]}
        options = [one for one in parameters if one.param_type_name == "option"]
        for option in sorted(options, key=lambda one: (_panel(one), one.name in LAST)):
            sections.setdefault(list(Panel)[_panel(option)].value, []).append(option)
        if set(sections) <= {"Arguments", Panel.COMMON.value, Panel.OUTPUT.value}:
            common = [*sections.pop(Panel.COMMON.value, ()), *sections.pop(Panel.OUTPUT.value, ())]
            sections["Options"] = common
        for title, members in sections.items():
            width = FIRST_COLUMN[formatter.width >= WIDE]
            rows = [(row[0].ljust(width), row[1]) for member in members if (row := _row(member, ctx))]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=width)


def _panel(option: Any) -> int:
    """Position of the option's panel."""
    title = getattr(option, "rich_help_panel", None)
    default = Panel.OUTPUT if option.name == "help" else Panel.COMMON
    return [panel.value for panel in Panel].index(title or default.value)


def _row(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    """Spellings and help of an option, the longest spelling in front; without TEXT, which says nothing."""
    row = parameter.get_help_record(ctx)
    if row is None or parameter.param_type_name == "argument":
        return row  # type: ignore[no-any-return]
    _, _, metavar = row[0].rpartition(" ")
    value = f" {metavar}" if metavar in ("INTEGER", "FLOAT") else ""
    return _spelled(parameter.opts, value), row[1]


def _spelled(spellings: Sequence[str], value: str) -> str:
    """The spellings of an option with its value, without long ones beside its own that its column has no place for."""
    every = ", ".join(spellings) + value
    if len(every) <= FIRST_COLUMN[True]:
        return every
    return ", ".join(word for word in spellings if word == spellings[0] or not word.startswith("--")) + value

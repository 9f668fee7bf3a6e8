"""Help of a command with many options: a panel of common options first, then one panel per subject."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from llmviewer.language.option import Panel

#: Columns of a wide terminal that help fills; longer lines are hard to read.
MAX_WIDTH = 160
#: Widest first column of help on a terminal of usual width, and of at least WIDE columns.
WIDE = 110
FIRST_COLUMN = {False: 30, True: 42}
#: Options that close their panel.
LAST = ("format", "output", "help")
#: Attribute of a command's function: parameters that are None unless they were typed, whatever default help shows.
UNSET = "none_unless_typed"


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
    return ", ".join(parameter.opts) + value, row[1]

"""`--from 'vllm serve ...'`: the words of a command with the model and options of a server's launch line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llmviewer.cli.views import print_warnings
from llmviewer.core.errors import UserError, naming, printable

OPTION, NAME = "--from", "launch_line"
SUMMARY = "Model and options of a launch line ('vllm serve ...'), or of a YAML file with one."


def with_launch_line(words: Sequence[str], command: Any) -> tuple[list[str], dict[str, str]]:
    """The words with those of the launch line in place of `--from`; options that are typed come after it, and count.

    Also spelling of an option -> its flag on the launch line.
    Warns of what is not read and of what is replaced.  Raises UserError.
    """
    at = next((at for at, word in enumerate(words) if word.partition("=")[0] == OPTION), None)
    if at is None:
        return list(words), {}
    depth, asked = 0, command
    while depth < at and words[depth] in getattr(asked, "commands", {}):
        asked, depth = asked.commands[words[depth]], depth + 1
    options = {one.name: one for one in getattr(asked, "params", ()) if one.param_type_name == "option"}
    if NAME not in options:  # the parser refuses it
        return list(words), {}
    value = words[at].partition("=")[2] if "=" in words[at] else "".join(words[at + 1 : at + 2])
    if not value:
        raise UserError(f"{OPTION} needs a launch line in quotes, such as 'vllm serve MODEL --max-model-len 8192'")
    from llmviewer.planning.manifests.launch_line import launch_line

    with naming(OPTION):
        line = launch_line(value)
    rest = [*words[:at], *words[at + (1 if "=" in words[at] else 2) :]][depth:]
    typed = {word.partition("=")[0] for word in rest}
    replaced = [name for name in line.options if typed & {*options[name].opts}] if options else []
    print_warnings(
        [
            *line.notes,
            *(
                f"{_typed(options[name])} replaces {printable(str(line.options[name]))} of the launch line"
                for name in replaced
            ),
        ]
    )
    kept = {name: text for name, text in line.options.items() if name not in replaced}
    flags = {_typed(options[name]): flag for name, flag in line.flags.items() if name in kept}
    return [*words[:depth], line.model, *_words(kept, options), *rest], flags


def _words(stated: dict[str, str | bool], options: dict[str, Any]) -> Iterator[str]:
    for name, value in stated.items():
        yield _typed(options[name])
        if isinstance(value, str):
            yield value


def _typed(option: Any) -> str:
    """The main spelling of an option."""
    return str(option.opts[0])

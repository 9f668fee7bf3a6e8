"""Arguments of the calls as JSON Schema, from the declarations that Python and the command line read too.

Requests are checked against these descriptions, and OpenAPI and the tools of assistants print them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from inspect import Parameter, signature
from typing import Any, TypeAlias

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.parsing import from_json
from llmviewer.questions import QUESTIONS
from llmviewer.techniques.options import OPTIONS, RUN_OPTIONS

Schema: TypeAlias = dict[str, Any]

#: Types of JSON, as errors call them.
TYPES: Mapping[str, str] = {
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of fields",
    "null": "null",
}
#: Arguments that name a file or run the code of another package: nothing on a server.
OF_FILES = ("profile", "trace", "lengths", "trace_model", "measured", "prices")
#: Arguments of most calls that are no options.
NAMED: Mapping[str, Schema] = {
    "model": {
        "type": ["string", "object"],
        "description": "A model: its name (llama-3.1-8b), a Hub id of the catalogue, or the fields of its config.json.",
    },
    "hardware": {
        "type": ["string", "object"],
        "description": "A chip: its name (h100-sxm, 4090; 8xh100: a tensor group of 8), or the fields of a spec file.",
    },
}
#: Texts of lists and ranges of whole numbers.
RANGES = "^[0-9.kKmMbB:*+, ]+$"
#: Argument of a request that stands for a model and options.
LAUNCH_LINE = "launch_line"
LINE = "A launch line (vllm serve ..., llama-server ...) in place of model and options; what stands beside it counts."
#: Key of a schema: the value of an option that is not stated, where that is not the same as stating it.  Clients that
#: are generated send what is called `default` with every request.
UNSET = "x-unset"
#: Arguments of Python that are functions.
LEFT_OUT = ("advance", "best_so_far")


@cache
def schema(call: str) -> Schema:
    """The JSON Schema of the arguments of a call: an object whose keys are those of the Python function."""
    found = {name: _described(call, one) for name, one in _parameters(call).items()}
    required = [name for name, one in _parameters(call).items() if one.default is Parameter.empty]
    if not _takes_lines(call):
        return {"type": "object", "properties": found, "required": required, "additionalProperties": False}
    return {
        "type": "object",
        "properties": {**found, LAUNCH_LINE: {"type": "string", "description": LINE}},
        "required": [name for name in required if name != "model"],
        "additionalProperties": False,
    }


def _takes_lines(call: str) -> bool:
    """Whether a launch line may state model and options; rows of a sweep have no place for notes on it."""
    names = _parameters(call)
    return "model" in names and "engine" in names and call != "sweep"


def launched(call: str, given: Any) -> tuple[Any, list[str]]:
    """The arguments of a request with model and options of its launch line, and what is told of the line.

    What stands beside the line counts.  Raises UserError for a path, since a server reads no file, and for a line that
    launches no known server.
    """
    if not isinstance(given, Mapping) or LAUNCH_LINE not in given or not _takes_lines(call):
        return given, []
    rest = {name: value for name, value in given.items() if name != LAUNCH_LINE}
    if given[LAUNCH_LINE] is None:
        return rest, []
    from llmviewer.planning.manifests.launch_line import launch_line

    text = arguments.word(LAUNCH_LINE, given[LAUNCH_LINE])
    if text.endswith((".yaml", ".yml")):
        raise UserError(f"{LAUNCH_LINE} is {quoted(text)}; a server reads no file: give the line itself")
    line = launch_line(text)
    replaced = [name for name in ("model", *line.options) if name in rest]
    notes = [*line.notes, *(f"{name} replaces that of the launch line" for name in replaced)]
    return {"model": line.model, **line.options, **rest}, notes


def noted(document: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The document of an answer, with what is told of a launch line before its own warnings."""
    return {**document, "warnings": [*notes, *document.get("warnings", ())]} if notes else document


@cache
def _parameters(call: str) -> dict[str, Parameter]:
    """Parameters of a call by name."""
    own = signature(QUESTIONS[call].function()).parameters
    return {name: one for name, one in own.items() if name not in LEFT_OUT}


def _described(call: str, parameter: Parameter) -> Schema:
    """The schema of one argument with its help and default."""
    name, question = parameter.name, QUESTIONS[call]
    own = question.options()
    made: Schema = dict(NAMED[name]) if name in NAMED else (own[name] if name in own else OPTIONS[name]).schema()
    if name in question.lists and "pattern" in made:
        made |= {"pattern": RANGES, "description": f"{made['description']} Also lists and ranges: 1,2,4 or 1:64:*2."}
    if name in question.lists or (question.lists_of_options and name in RUN_OPTIONS and name != "ignore_fields"):
        made = _listed(made)
    default = [] if parameter.default == () else parameter.default
    if name in RUN_OPTIONS and default is not Parameter.empty:  # null, as a default written out is one that is stated
        return {**_nullable(made), **({} if default is None else {UNSET: default})}
    if default is not Parameter.empty and default is not None:
        made["default"] = list(default) if isinstance(default, tuple) else default
    return _nullable(made) if default is None else made


def _listed(one: Schema) -> Schema:
    """A value, or a list of values to combine with the other lists."""
    plain = {key: value for key, value in one.items() if key != "description"}
    either = {"anyOf": [plain, {"type": "array", "items": plain, "minItems": 1}]}
    return {**either, "description": one["description"]}


def _nullable(one: Schema) -> Schema:
    if "anyOf" in one:
        return {**one, "anyOf": [*one["anyOf"], {"type": "null"}]}
    kinds = one["type"] if isinstance(one["type"], list) else [one["type"]]
    enum = {"enum": [*one["enum"], None]} if "enum" in one else {}
    return {**one, "type": [*kinds, "null"], **enum}


def check(call: str, given: object) -> dict[str, Any]:
    """The arguments of a request, their names and types of JSON checked; the call itself checks the values.

    Whole numbers may be texts, as on the command line: "4k" is 4096.  null leaves an option of a run unset; its default
    written out is stated.

    Raises UserError with the line that a caller of Python reads.
    """
    if not isinstance(given, Mapping):
        raise UserError(f"the request is {quoted(given)}; expected a mapping of the arguments of {call}")
    known = schema(call)
    given = {name: value for name, value in given.items() if value is not None or not _is_unset(call, name)}
    for name in given:
        if name not in known["properties"]:
            raise unknown("option", name, known["properties"], hint=_main_spelling(call, name))
    missing = [name for name, one in _parameters(call).items() if one.default is Parameter.empty and name not in given]
    if missing:
        raise UserError(f"{call} needs {' and '.join(missing)}")
    for name, value in given.items():
        _check_type(call, name, value, known["properties"][name])
    return {name: _whole(value, known["properties"][name]) for name, value in given.items()}


def of_query(call: str, query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Arguments of a call as an address has them; a name that comes several times is a list.

    A text is JSON where its argument takes no text, and where it is an object or a list.
    """
    found: dict[str, list[Any]] = {}
    for name, text in query:
        described = schema(call)["properties"].get(name)
        plain = (described is None or _takes(described, "string")) and not text.startswith(("{", "["))
        found.setdefault(name, []).append(text if plain else _json_or_text(text))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


def _json_or_text(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return text


def _is_unset(call: str, name: str) -> bool:
    """Whether null, which callers of Python write as None, leaves an argument at its default."""
    return UNSET in schema(call)["properties"].get(name, {})


def _whole(value: Any, described: Schema) -> Any:
    """A value, of an argument that takes whole numbers with its texts read; one that is no number stays a text."""
    if not _takes(described, "integer"):
        return value
    if isinstance(value, list):
        return [_whole(one, described) for one in value]
    return arguments.parse_size(value) if isinstance(value, str) else value


def _main_spelling(call: str, alias: str) -> str:
    """The name of an argument of a call that is spelled as on the command line, as a hint; else empty."""
    named = {spelling.lstrip("-"): name for name, one in OPTIONS.items() for spelling in one.spellings(name)}
    name = named.get(str(alias).lstrip("-"), str(alias).lstrip("-").replace("-", "_"))
    return f"use {name}" if name in schema(call)["properties"] else ""


def _check_type(call: str, name: str, value: object, described: Schema) -> None:
    """Raise UserError for a value of a type that no value of this argument has.

    Numbers and texts of options go on to the call, whose errors say what is allowed.
    """
    plain_option = name in OPTIONS and value is not None and not isinstance(value, list | dict)
    if plain_option or matches(value, described):
        return
    if isinstance(value, list) and not _takes(described, "array"):
        raise UserError(f"{name} is a list; {call} takes one value{_where_listed(call, name)}")
    allowed = [TYPES[kind] for kind in _kinds(described)]
    if isinstance(value, list) and "items" in described:  # one of its entries is of a wrong type
        allowed = [f"a list of which each is {' or '.join(TYPES[kind] for kind in _kinds(described['items']))}"]
    raise UserError(f"{name} is {quoted(value)}; expected {', or '.join(dict.fromkeys(allowed))}")


def _where_listed(call: str, name: str) -> str:
    """The call that takes a list of this argument, for the end of an error."""
    if name not in OPTIONS or call in ("simulate", "size"):
        return ""
    return "; compare takes lists" if name in RUN_OPTIONS else "; `llmviewer sweep` takes lists"


def matches(value: object, described: Schema) -> bool:
    """Whether a value has one of the types of a schema, and the entries of a list those of its items."""
    if "anyOf" in described:
        return any(matches(value, one) for one in described["anyOf"])
    if not any(_is_of(value, kind) for kind in _kinds(described)):
        return False
    items = described.get("items")
    return items is None or not isinstance(value, list) or all(matches(one, items) for one in value)


def _is_of(value: object, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    types: Mapping[str, tuple[type, ...]] = {
        "string": (str,),
        "number": (int, float),
        "integer": (int, float),
        "array": (list,),
        "object": (dict,),
    }
    return isinstance(value, types.get(kind, ()))


def _kinds(described: Schema) -> list[str]:
    if "anyOf" in described:
        return [kind for one in described["anyOf"] for kind in _kinds(one)]
    kind = described["type"]
    return list(kind) if isinstance(kind, list) else [kind]


def _takes(described: Schema, kind: str) -> bool:
    return kind in _kinds(described)


def without(described: Schema, names: Iterable[str]) -> Schema:
    """The schema of a call without some of its arguments, as where no file may be named."""
    left = set(names)
    kept = {name: one for name, one in described["properties"].items() if name not in left}
    return {**described, "properties": kept}

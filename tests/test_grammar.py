"""Parameters declared by a signature: parsing, bounds, defaults, help, JSON Schema and the text back from the value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any

import pytest

from llmviewer.core.errors import UserError
from llmviewer.language.grammar import Choice, Entry, Flag, Form, Grammar, Number, RefusedError
from llmviewer.techniques.registry import TECHNIQUES, WITHOUT_OPTION, load
from llmviewer.techniques.technique import Declared, Whole, read


class Where(Enum):
    """Places of a tensor."""

    DEVICE = "device"
    HOST = "host"


def rates(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split("/")))


def example(
    nodes: Annotated[float, Whole("tokens of a tree", 0, 4096)],
    depth: Annotated[float, Whole("levels", 1, 64)] = 10.0,
    *,
    share: Annotated[float | None, Number("share that stays", 0.0, 1.0, unset="all")] = None,
    place: Annotated[Where, Choice("where it is stored", Where)] = Where.DEVICE,
    rates: Annotated[tuple[float, ...], Form(help="rates by level", parse=rates, default="0.8/0.7")],
    two_words: Annotated[bool, Flag("stored once", name="two-words")] = False,
    size: Annotated[float | str, Whole("tokens, or best", 1, 16, words=("best",))] = 4.0,
) -> None:
    """An example of a signature."""


GRAMMAR = Grammar.of(example)


def test_a_text_becomes_the_arguments_of_the_function() -> None:
    assert GRAMMAR.read("64,depth=2,share=0.5,place=host,rates=0.9/0.1,two-words,size=best") == {
        "nodes": 64.0,
        "depth": 2.0,
        "share": 0.5,
        "place": Where.HOST,
        "rates": (0.9, 0.1),
        "two_words": True,
        "size": "best",
    }
    example(**GRAMMAR.read("1k"))


def test_what_is_not_given_has_its_default() -> None:
    defaults = {
        "depth": 10.0,
        "share": None,
        "place": Where.DEVICE,
        "rates": (0.8, 0.7),
        "two_words": False,
        "size": 4.0,
    }
    assert GRAMMAR.read("nodes=3") == {"nodes": 3.0, **defaults}


def test_positional_parameters_go_without_names_in_their_order() -> None:
    assert GRAMMAR.read("64,2") == GRAMMAR.read("depth=2, nodes=64")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "--x: nodes is missing; write --x nodes=... (tokens of a tree)"),
        ("nodes=5000", "--x: nodes is '5000'; allowed: a whole number from 0 to 4,096"),
        ("nodes=1.5", "--x: nodes is '1.5'; allowed: a whole number"),
        ("nodes=nan", "--x: nodes is 'nan'; allowed: a whole number"),
        ("1,share=1.01", "--x: share is '1.01'; allowed: a number from 0 to 1"),
        ("1,share=1k", "--x: share is '1k'; allowed: a number"),
        ("1,size=17", "--x: size is '17'; allowed: a whole number from 1 to 16, or best"),
        ("1,place=hots", "--x: unknown value of place 'hots'; allowed: device, host; did you mean 'host'?"),
        ("1,rates=a/b", "--x: rates is 'a/b'; could not convert"),
        ("1,shard=1", "unknown parameter of --x 'shard'; allowed: "),
        ("1,shard=1", "did you mean 'share'?"),
        ("1,2,3", "unknown parameter of --x '3'"),
        ("1,share", "--x: share needs a value; write share=..."),
        ("1,two-words=on", "--x: two-words takes no value"),
        ("1,depth=2,depth=3", "--x: depth is given twice"),
        ("1,,depth=2", "has nothing between two commas"),
    ],
)
def test_an_error_names_what_is_allowed_and_the_nearest_match(text: str, line: str) -> None:
    with pytest.raises(UserError) as raised:
        read("--x", GRAMMAR, text)
    assert line in raised.value.marked and "\n" not in raised.value.marked


def test_help_has_the_default_of_the_value() -> None:
    assert GRAMMAR.help() == {
        "nodes": "tokens of a tree",
        "depth": "levels (default: 10)",
        "share": "share that stays (default: all)",
        "place": "where it is stored (default: device)",
        "rates": "rates by level (default: 0.8/0.7)",
        "two-words": "stored once",
        "size": "tokens, or best (default: 4)",
    }


def test_the_text_of_arguments_is_read_as_the_same_arguments() -> None:
    for text in ("64", "64,depth=2,two-words", "3,share=0.25,place=host,size=best"):
        arguments = GRAMMAR.read(text)
        written = GRAMMAR.write({name: value for name, value in arguments.items() if name != "rates"})
        assert GRAMMAR.read(written) == arguments
    assert GRAMMAR.write({"nodes": 64.0, "depth": 10.0, "share": 0.5}) == "nodes=64,share=0.5"


def test_the_schema_has_bounds_words_defaults_and_what_is_required() -> None:
    schema = GRAMMAR.schema()
    assert schema["required"] == ["nodes"] and schema["additionalProperties"] is False
    properties = schema["properties"]
    assert properties["nodes"] == {"type": "integer", "minimum": 0, "maximum": 4096, "description": "tokens of a tree"}
    assert properties["place"]["enum"] == ["device", "host"] and properties["place"]["default"] == "device"
    assert properties["two-words"]["type"] == "boolean"
    assert {"enum": ["best"]} in properties["size"]["anyOf"]
    assert properties["rates"]["default"] == "0.8/0.7"


DECLARED = {name: technique for name in (*TECHNIQUES, *WITHOUT_OPTION) if isinstance(technique := load(name), Declared)}


def numbers() -> Iterator[tuple[str, Entry, Number]]:
    """Every number that a technique takes."""
    for name, technique in DECLARED.items():
        for entry in technique.grammar.entries.values():
            if isinstance(entry.form, Number):
                yield name, entry, entry.form


@pytest.mark.parametrize(
    ("name", "entry", "form"), [pytest.param(*one, id=f"{one[0]} {one[1].name}") for one in numbers()]
)
def test_every_number_is_refused_beyond_its_bounds_and_taken_at_them(name: str, entry: Entry, form: Number) -> None:
    for bound, beyond in ((form.low, form.low - 1.0), (form.high, form.high * 2.0 + 1.0)):
        assert form.read(entry.name, f"{bound:.17g}") == bound
        with pytest.raises(RefusedError):
            form.read(entry.name, f"{beyond:.17g}")
    if isinstance(entry.value, int | float):
        assert form.low <= entry.value <= form.high and form.read(entry.name, form.write(entry.value)) == entry.value


@pytest.mark.parametrize("name", DECLARED)
def test_the_card_of_a_technique_has_its_schema(name: str) -> None:
    technique = DECLARED[name]
    schema: dict[str, Any] = json.loads(json.dumps(technique.grammar.schema()))
    assert [*schema["properties"]] == [*technique.parameters] == [*technique.grammar.entries]
    for one in schema["properties"].values():
        assert one["description"]

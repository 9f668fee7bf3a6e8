"""The state of the viewer, all of which is in the URL: what is asked, and which part of the answer is shown."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from llmviewer.core import arguments
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.language.option import Kind
from llmviewer.questions import QUESTIONS, WEB, Question
from llmviewer.techniques.options import OPTIONS, WORKLOAD

#: Model and chip of a visitor who has chosen none.
MODEL, HARDWARE = "llama-3.1-8b", "h100-sxm"
#: Options that read files of the machine, or run code of a model; the viewer does not have them.
LOCAL = ("profile", "trace_model", "ignore_fields")
#: Questions that have a form made from their declaration, by the name of their tab.
OF_FORMS: Mapping[str, Question] = {name: one for name, one in QUESTIONS.items() if one.has(WEB) and not one.tab}
#: What is shown of the answer, with its default.
SHOWN = {"tab": "verdict", "stage": "decode", "block": "", "operator": "", "colour": "bound", "against": "",
         "chains": "", "columns": "", "sums": "", "number": "", "run": ""}  # fmt: skip
_OWN = (name for one in OF_FORMS.values() for name in one.options() if name not in OPTIONS)
#: Load and limits of the tabs that size and simulate, and options of questions, on top of those of a run.
ASKED = ("request_rate", "concurrency", "chips", *dict.fromkeys(("ttft", "tpot", "max_gpus", *_OWN)))
#: Longest URL [characters], and largest config.json, whose packed form is a part of it [byte].
MAX_QUERY, MAX_CONFIG = 8_000, 65_536
#: Most fields of a URL, and most further configurations that are compared.
MAX_FIELDS = 200
MAX_OTHERS = 5
TRUE = ("true", "on", "1")
#: A text of JSON, which is kept, or white space outside of texts.
SPACES = re.compile(rb'("(?:[^"\\]|\\.)*")|\s+')


@frozen
class State:
    """A question and the part of its answer that is shown.

    words: stated option -> its text as on the command line, which may be its default.  config: a visitor's own
    config.json, packed; "" for a model of the catalogue.  asked: load and limits.  others: queries of configurations
    that are compared with this one.
    """

    model: str = MODEL
    hardware: str = HARDWARE
    config: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, str] = field(default_factory=lambda: dict(SHOWN))
    others: tuple[str, ...] = ()

    @property
    def tab(self) -> str:
        """Name of the open tab."""
        return self.shown["tab"]

    def showing(self, **shown: str) -> State:
        """The state with another part of the answer shown."""
        return replace(self, shown={**self.shown, **shown})

    def subject(self) -> str | dict[str, Any]:
        """The model by name, or the fields of the visitor's config.json.  Raises UserError."""
        return unpacked(self.config) if self.config else self.model

    def options(self) -> dict[str, Any]:
        """Keyword arguments of `lv.analyze`, sizes included.  Raises UserError."""
        return {name: _value(name, text) for name, text in self.words.items()}

    def query(self) -> str:
        """The query of the URL, without `?`."""
        parts = {"model": self.model, "hardware": self.hardware, "config": self.config, **self.words, **self.asked}
        shown = [(name, text) for name, text in self.shown.items() if text != SHOWN[name]]
        known = [(name, text) for name, text in parts.items() if text]
        return urlencode([*known, *shown, *(("with", other) for other in self.others)])


def parsed(search: str) -> State:
    """The state that a URL's query has.  Raises UserError for an unknown name and a query that is too long."""
    text = (search or "").removeprefix("?")
    if len(text) > MAX_QUERY:
        raise UserError(f"the address is {len(text):,} characters long; allowed: at most {MAX_QUERY:,}")
    try:
        pairs = parse_qsl(text, max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise UserError(f"the address has more than {MAX_FIELDS} fields") from error
    given = {name: value.strip() for name, value in pairs if name != "with"}
    others = tuple(value for name, value in pairs if name == "with")[:MAX_OTHERS]
    options = [name for name in OPTIONS if name not in LOCAL]
    for name in given:
        if name not in (*options, *SHOWN, *ASKED, "model", "hardware", "config"):
            raise unknown("option", name, [*options, "model", "hardware"], where="the address")
    words = {name: given[name] for name in options if given.get(name)}
    return State(
        model=given.get("model") or MODEL,
        hardware=given.get("hardware") or HARDWARE,
        config=given.get("config", ""),
        words=words,
        asked={name: given[name] for name in ASKED if given.get(name)},
        shown={name: given.get(name, default) for name, default in SHOWN.items()},
        others=others,
    )


def default_text(name: str) -> str:
    """Text of an option's default; "" if it has none."""
    default = OPTIONS[name].default
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _value(name: str, text: str) -> Any:
    """The value that an option's text states.  Raises UserError."""
    kind = OPTIONS[name].kind
    if name in WORKLOAD or kind is Kind.WHOLE:
        return arguments.parse_size(text)
    if kind is Kind.FRACTION:
        try:
            return float(text)
        except ValueError:
            raise UserError(f"{name} is {quoted(text)}; allowed: a number from 0 to 1") from None
    return text.lower() in TRUE if kind is Kind.SWITCH else text


def packed(content: bytes) -> str:
    """A config.json as text for a URL, without white space between its fields.

    Raises UserError for one that is too large or no JSON object.
    """
    if len(content) > MAX_CONFIG:
        raise UserError(f"the file has {len(content):,} bytes; a config.json of at most {MAX_CONFIG:,} is read")
    _fields(content)
    text = base64.urlsafe_b64encode(zlib.compress(SPACES.sub(rb"\1", content), 9)).decode("ascii")
    if len(text) > MAX_QUERY:
        raise UserError(f"the file takes {len(text):,} characters of the address, which has at most {MAX_QUERY:,}")
    return text


def unpacked(text: str) -> dict[str, Any]:
    """The fields of a packed config.json.  Raises UserError."""
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.urlsafe_b64decode(text.encode("ascii")), MAX_CONFIG)
    except (ValueError, binascii.Error, zlib.error) as error:
        raise UserError("the config.json in the address is damaged; drop the file again") from error
    if not unpacker.eof:
        raise UserError(f"the config.json in the address is larger than {MAX_CONFIG:,} bytes, or cut off")
    return _fields(content)


def _fields(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError("the file is no JSON; a model's config.json is needed") from error
    if not isinstance(fields, dict):
        raise UserError("the file has no fields; a model's config.json is needed")
    if not fields:
        raise UserError('the file is empty; a config.json needs a model_type, like "llama", and the sizes of the model')
    return fields

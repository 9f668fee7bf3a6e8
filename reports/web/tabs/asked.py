"""Questions whose tab is made from their declaration: a form of their own options, and the page of the answer."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import signature
from typing import Any

from llmviewer.questions import Question
from llmviewer.reports.web.controls import label
from llmviewer.reports.web.markup import Piece, block, page, piece
from llmviewer.reports.web.questions import MOST_ANSWERS, Field, answer, form, text_of
from llmviewer.reports.web.state import OF_FORMS
from llmviewer.reports.web.view import View, view_of
from llmviewer.techniques.options import OPTIONS


def content(view: View) -> list[Piece]:
    """The form, which a button answers since most of these take seconds."""
    question = OF_FORMS[view.state.tab]
    ignored = [label(name) for name in view.options if name not in signature(question.function()).parameters]
    note = f"{question.use.partition(' Use it for:')[0]} It takes what is set on the left."
    ignored += [] if is_of_a_model(question.function()) else ["the model"]
    note += f" Not used: {', '.join(ignored)}." if ignored else ""
    return [form(view, fields_of(question), question.title, note), *answer(view, words_of, _answered)]


def fields_of(question: Question) -> list[Field]:
    """The fields of a question's own options, which start with those of its example, else with their defaults.

    Options of a run that it reads in its own way are set on the left.
    """
    defaults = signature(question.function()).parameters
    own = {name: one for name, one in question.options().items() if name not in OPTIONS}
    starts = {name: question.example.get(name, defaults[name].default) for name in own}
    return [
        Field(name=name, label=one.help.rstrip("."), start="" if starts[name] is None else str(starts[name]))
        for name, one in own.items()
    ]


def words_of(view: View) -> dict[str, Any]:
    """Arguments of the question beside model and chip.  Raises UserError."""
    question = OF_FORMS[view.state.tab]
    accepted, own = signature(question.function()).parameters, question.options()
    texts = {one.name: text_of(view, one) for one in fields_of(question)}
    asked = {name: own[name].parsed(text) for name, text in texts.items() if text}
    return {**asked, **{name: value for name, value in view.options.items() if name in accepted}}


def answered_of(view: View) -> Any:
    """The answer of a view, which its page and its files share.  Raises UserError."""
    return _asked(view.state.query())


@lru_cache(maxsize=MOST_ANSWERS)
def _asked(query: str) -> Any:
    view = view_of(query, "light")
    function = OF_FORMS[view.state.tab].function()
    subject = {"model": view.state.subject()} if is_of_a_model(function) else {}
    return function(**subject, hardware=view.state.hardware, **words_of(view))


def is_of_a_model(function: Callable[..., Any]) -> bool:
    """Whether a question is about the model on the left, and not about the chip alone."""
    return "model" in signature(function).parameters


def _answered(view: View) -> list[Piece]:
    question, found = OF_FORMS[view.state.tab], answered_of(view)
    notes = [block(piece("note", text)) for text in found.warnings] if question.warns else []
    return [*notes, block(page(question.page_of(found)))]

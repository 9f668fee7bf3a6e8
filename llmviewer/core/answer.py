"""Answers of questions print as their command prints them; views stand above, so the package hands those down."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar


class Answer:
    """The answer of a question.  `print(answer)` shows its tables, a notebook the same as HTML."""

    __slots__ = ()
    #: Name of the question, whose page shows the answer.
    QUESTION: ClassVar[str]
    #: Answer and `text` or `html` -> the page of its question; set by the package.
    view: ClassVar[Callable[[Answer, str], str] | None] = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}; print() shows it>"

    def __str__(self) -> str:
        return repr(self) if (view := Answer.view) is None else view(self, "text")

    def _repr_html_(self) -> str | None:
        return None if (view := Answer.view) is None else view(self, "html")

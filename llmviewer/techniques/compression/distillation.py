"""Distillation: a small model taught by a large one.  Two models side by side, no change of a graph."""

from __future__ import annotations

from llmviewer.core.errors import UserError
from llmviewer.techniques.technique import Change, Technique


def _make(_: str) -> Change:
    raise UserError("distillation has no option: compare teacher and student, `llmviewer compare TEACHER,STUDENT`")


TECHNIQUE = Technique(
    name="distillation",
    kind="compression",
    summary="Trains a smaller model on the answers of a larger one; what that saves is a comparison of the two.",
    formula="the student's graph in the place of the teacher's: every count is that of its own config.json",
    source="arXiv 1503.02531; of language models MiniLLM arXiv 2306.08543",
    example="llmviewer compare llama-2-70b,llama-2-7b --hardware h100 --no-fit-check",
    make=_make,
)

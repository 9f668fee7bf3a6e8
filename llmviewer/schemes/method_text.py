"""The text after a method's name: its words, and how results list it."""

from __future__ import annotations

from collections.abc import Collection

from llmviewer.technique import Parameter, named

#: Most tokens that `tokens=best` tries to draft.
MOST = 16
TOKENS = Parameter(name="tokens", low=0, high=1024, whole=True)
#: What the registry says of parameters that most methods take.
TOKENS_SAID = f"drafted in a round, or best: the fastest of 0 to {MOST} at every point"
ACCEPTANCE_SAID = "rate of a drafted token: 0.8, by position 0.8/0.7/0.6 (the last goes on), or a published preset"


def words(where: str, text: str, known: Collection[str]) -> dict[str, str]:
    """`tokens=4,acceptance=0.8` by name; a method may be asked for by its name alone."""
    return named(where, text, known) if text.strip() else {}


def listed(method: str, text: str) -> str:
    """What results call it: speculative(ngram,tokens=4)."""
    return f"speculative({','.join(filter(None, (method, text)))})"

"""Parsing of the parameters `acceptance` and `ranks`: rates, or the name of a published preset."""

from __future__ import annotations

from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.techniques.speculation.acceptance import Acceptance
from llmviewer.techniques.speculation.ranks import Ranks, check_ranks

#: Hint in error messages on where to find the preset names.
PRESETS_HINT = "`llmviewer techniques show speculative` lists them"


def read_acceptance(where: str, text: str) -> Acceptance:
    """Parse `0.8`, `0.8/0.7/0.6` or a preset's name.  where: name of the option in messages."""
    from llmviewer.techniques.speculation.acceptance_presets import PRESETS

    if not text:
        raise UserError(
            f"{where}: acceptance is missing; write acceptance=0.8, 0.8/0.7/0.6 by position, or a preset "
            f"({PRESETS_HINT})"
        )
    if text in PRESETS:
        return PRESETS[text].acceptance
    try:
        rates = tuple(float(part) for part in text.split("/"))
    except ValueError:
        hint = f"{PRESETS_HINT}; or rates from 0 to 1: 0.8, or 0.8/0.7/0.6 by position"
        raise unknown("acceptance", text, PRESETS, where=where, hint=hint) from None
    for rate in rates:
        if not 0.0 <= rate <= 1.0:
            raise UserError(f"{where}: acceptance is {quoted(text)}; allowed: rates from 0 to 1, or a preset's name")
    return Acceptance(rates=rates)


def read_ranks(where: str, text: str) -> Ranks:
    """Parse `0.6/0.15/0.08`, rates of ranks 1, 2, 3 at every depth, or a preset's name."""
    from llmviewer.techniques.speculation.acceptance_presets import RANKS

    if text in RANKS:
        return RANKS[text].ranks
    try:
        row = tuple(float(part) for part in text.split("/"))
    except ValueError:
        hint = "or falling rates by rank that sum to at most 1: 0.6/0.15/0.08"
        raise unknown("ranks", text, RANKS, where=where, hint=hint) from None
    check_ranks(f"{where}: ranks {quoted(text)}", row)
    return Ranks(rates=(row,))

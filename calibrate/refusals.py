"""Reasons not to fit samples and not to store a fit, with what helps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmviewer.calibrate.fit import MIN_ROWS
from llmviewer.calibrate.fit_tables import MAX_ERROR, FitData, is_absurd
from llmviewer.calibrate.sources import TableSource
from llmviewer.core.errors import UserError, printable
from llmviewer.timing.profile import Fit

#: Most kinds of kernels that a message lists.
MAX_LISTED = 3
#: The reason to refuse a fit.
LIMIT = f"mean error on held-out rows above {MAX_ERROR * 100.0:.0f} %, that of predicting zero"


def lacking(gathered: FitData, sources: Sequence[TableSource]) -> str:
    """Rows that lack for a fit, the kinds that lack the fewest first, and the command that measures them."""
    more = more_rows(gathered, sources)
    advice = f"; `{more}` adds rows to these" if more else ""
    if not gathered.too_few:
        others = "; ".join(f"{rows} rows: {reason}" for reason, rows in gathered.left_out.items())
        return others or "no rows of kernels"
    kinds = [f"{kind} has {rows}" for kind, rows in gathered.too_few.most_common()]
    return f"a kind of kernel needs {MIN_ROWS} rows, and {_listed(kinds)}{advice}"


def more_rows(gathered: FitData, sources: Sequence[TableSource]) -> str:
    """The command that adds rows to kinds that have too few; empty if none has, or if the rows are of others."""
    own = [source for source in sources if source.environment]
    return f"llmviewer calibrate run -o {in_shell(own[0].folder)}" if own and gathered.too_few else ""


def in_shell(path: Path) -> str:
    """The path as an argument of a command that can be copied: whole, and in quotes if the shell needs them."""
    import shlex

    return shlex.quote(printable(path, 4096))


def without_absurd(fits: Sequence[Fit], gathered: FitData) -> tuple[Fit, ...]:
    """The fits that a profile stores; the rows of absurd ones are counted as left out.

    Raises UserError if none remains.
    """
    absurd = [fit for fit in fits if is_absurd(fit)]
    for fit in absurd:
        gathered.left_out[f"{fit.key}: {LIMIT}, {_error(fit)}; --force stores it"] += int(fit.rows["fitted"])
        gathered.unstable.pop(fit.key, None)
    if len(absurd) == len(fits):
        worst = sorted(absurd, key=lambda fit: -fit.error["all"]["mape"])
        errors = _listed([f"{fit.key} {fit.error['all']['mape']:,.0%}" for fit in worst])
        raise UserError(
            f"no profile is written: {LIMIT} in every fit: {errors}; measure on an idle machine, or --force"
        )
    return tuple(fit for fit in fits if fit not in absurd)


def _error(fit: Fit) -> str:
    return f"{fit.error['all']['mape'] * 100.0:,.0f} %"


def _listed(words: Sequence[str]) -> str:
    rest = f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + rest

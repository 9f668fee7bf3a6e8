"""Reasons not to fit samples and not to store a fit, with what helps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmviewer.calibrate.fit import MIN_ROWS
from llmviewer.calibrate.fit_tables import MAX_ERROR, FitData, is_absurd
from llmviewer.calibrate.sources import TableSource
from llmviewer.calibrate.timer import MAX_SPREAD
from llmviewer.core.errors import UserError, printable
from llmviewer.timing.profile import Fit

#: Most kinds of kernels that a message lists.
MAX_LISTED = 3
#: Largest mean error on held-out rows of a fit of mostly unstable rows: what is above is the machine's, not the
#: formula's.
MAX_UNSTABLE_ERROR = 0.3
#: The reasons to refuse a fit.
UNSTABLE = f"most of its rows are unstable, and mean error on held-out rows above {MAX_UNSTABLE_ERROR * 100.0:.0f} %"
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


def check_stable(gathered: FitData, sources: Sequence[TableSource]) -> None:
    """Raise UserError, with what to do, if every row that would be fitted is unstable."""
    rows = sum(len(fold) for sample in gathered.samples for fold in sample.folds)
    if gathered.unstable.total() < rows:
        return
    own = next((source for source in sources if source.environment), None)
    again = f": `llmviewer calibrate run --full -o {in_shell(Path(f'{own.folder}-again'))}`" if own else ""
    raise UserError(
        f"no profile is written: all {rows:,} rows are unstable, their times spread by more than {MAX_SPREAD:.0%}; "
        f"measure again on an idle machine, and longer{again}; --force fits them as they are"
    )


def _refusal(fit: Fit, gathered: FitData) -> str:
    """The reason not to store a fit; empty if there is none."""
    if is_absurd(fit):
        return LIMIT
    return UNSTABLE if fit.key in gathered.unstable and fit.error["all"]["mape"] > MAX_UNSTABLE_ERROR else ""


def without_absurd(fits: Sequence[Fit], gathered: FitData) -> tuple[Fit, ...]:
    """The fits that a profile stores; the rows of others are counted as left out.

    Raises UserError if none remains.
    """
    refused = {fit.key: why for fit in fits if (why := _refusal(fit, gathered))}
    for fit in fits:
        if fit.key in refused:
            reason = f"{fit.key}: {refused[fit.key]}, {_error(fit)}; `calibrate fit --force` stores it"
            gathered.left_out[reason] += int(fit.rows["fitted"])
            gathered.unstable.pop(fit.key, None)
    if len(refused) == len(fits):
        worst = sorted(fits, key=lambda fit: -fit.error["all"]["mape"])
        errors = _listed([f"{fit.key} {fit.error['all']['mape']:,.0%}" for fit in worst])
        why = LIMIT if LIMIT in refused.values() else UNSTABLE
        raise UserError(
            f"no profile is written: {why} in every fit: {errors}; measure on an idle machine and longer "
            "(`calibrate run --full`), or --force"
        )
    return tuple(fit for fit in fits if fit.key not in refused)


def _error(fit: Fit) -> str:
    return f"{fit.error['all']['mape'] * 100.0:,.0f} %"


def _listed(words: Sequence[str]) -> str:
    rest = f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
    return ", ".join(words[:MAX_LISTED]) + rest

"""Checks of profiles against the kernel families whose constants they hold."""

from __future__ import annotations

from llmviewer.core.errors import UserError, printable, unknown
from llmviewer.timing.kernels.families import FAMILIES
from llmviewer.timing.profile import Fit, Profile

#: Constants are written with five digits, so rounding may move them past a bound by this fraction.
ROUNDING = 1e-4


def check_fit(fit: Fit, source: Profile) -> None:
    """Raise UserError if constants are missing, unknown or out of bounds for the formula of their family."""
    known = {constant.name: constant for constant in FAMILIES[fit.family].constants}
    where = f"'{printable(source.path)}': {fit.key}"
    hint = "this version of llmviewer needs them; run `llmviewer calibrate fit` again"
    if missing := [name for name in known if name not in fit.constants]:
        raise UserError(f"{where} lacks {', '.join(missing)}; {hint}")
    for name, value in fit.constants.items():
        if name not in known:
            raise unknown(f"constant of {fit.key}", name, known, where=f"'{printable(source.path)}'")
        low, high = known[name].low, known[name].high
        if not low * (1.0 - ROUNDING) <= value <= high * (1.0 + ROUNDING):
            raise UserError(f"{where}: constants.{name} is {value:g}; allowed: {low:g} to {high:g}")


def check_families(own: Profile) -> None:
    """Raise UserError for fits of an unknown kernel family."""
    for key in own.texts:
        if key.partition("/")[0] not in FAMILIES:
            raise unknown("kernel family", key.partition("/")[0], FAMILIES, where=f"'{printable(own.path)}'")

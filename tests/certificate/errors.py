"""Errors for configurations that cannot be counted.

A test may skip on `UnavailableError`; on `BrokenCountError` it must fail.
"""

from __future__ import annotations


class UnavailableError(Exception):
    """The library's code cannot be run here; the message says what is missing."""


class LibraryMissingError(UnavailableError):
    """torch or transformers is not installed."""


class MissingClassError(UnavailableError):
    """The installed transformers has no such model class (too old, or the class was removed)."""


class UnknownFamilyError(UnavailableError):
    """The model type has no row in `families.FAMILIES`."""


class BrokenCountError(Exception):
    """The count would be wrong."""


class UncountedProductError(BrokenCountError):
    """An operation multiplies matrices, but PyTorch's counter has no formula for it: the total would be too low."""


class UnfiledProductError(BrokenCountError):
    """A matrix product was issued by a module that no rule of `product_filing` knows."""


class CounterDisagreesError(BrokenCountError):
    """The filed products do not add up to FlopCounterMode's own total."""

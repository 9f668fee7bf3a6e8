"""Why a configuration cannot be counted. A test may skip on `Unavailable`; on `Broken` it must fail."""

from __future__ import annotations


class Unavailable(Exception):
    """The library's code cannot be run here; the message says what is missing."""


class LibraryMissing(Unavailable):
    """torch or transformers is not installed."""


class MissingClass(Unavailable):
    """The installed transformers has no such model class (too old, or the class was removed)."""


class UnknownFamily(Unavailable):
    """The model type has no row in `families.FAMILIES`."""


class Broken(Exception):
    """The count would be wrong."""


class UncountedProduct(Broken):
    """An operation multiplies matrices, but PyTorch's counter has no formula for it: the total would be too low."""


class UnfiledProduct(Broken):
    """A matrix product was issued by a module that no rule of `product_filing` knows."""


class CounterDisagrees(Broken):
    """The filed products do not add up to FlopCounterMode's own total."""

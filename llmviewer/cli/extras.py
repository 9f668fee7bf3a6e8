"""What a command says whose extra is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmviewer.core.errors import UserError

#: Packages of the extra `calibrate`.
CALIBRATION_PACKAGES = ("torch", "scipy", "pyarrow", "fastparquet")


@contextmanager
def calibration_extra() -> Iterator[None]:
    """Name the extra where one of its packages is missing."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing in CALIBRATION_PACKAGES or "pyarrow" in str(error):
            raise UserError(f"calibration needs {missing or 'pyarrow'}: pip install 'llmviewer[calibrate]'") from error
        raise

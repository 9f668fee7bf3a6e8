"""Error message for commands whose optional dependencies are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmviewer.core.errors import UserError

#: Packages of the extra `calibrate`.
CALIBRATION_PACKAGES = ("torch", "scipy", "pyarrow", "fastparquet")


@contextmanager
def calibration_extra() -> Iterator[None]:
    """Turn an ImportError of one of the extra's packages into a UserError that names the extra."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        if missing in CALIBRATION_PACKAGES or "pyarrow" in str(error):
            raise UserError(f"calibration needs {missing or 'pyarrow'}: pip install 'llmviewer[calibrate]'") from error
        raise

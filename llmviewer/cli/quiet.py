"""Warnings of libraries, about which a user of the command line can do nothing, are kept off stderr."""

from __future__ import annotations

import os
import sys
import warnings


def silence_warnings() -> None:
    """Silence numpy and others, unless the user asks Python or us for warnings (-W, LLMVIEWER_DEBUG)."""
    if not sys.warnoptions and not os.environ.get("LLMVIEWER_DEBUG"):
        warnings.simplefilter("ignore")


def silence_matplotlib() -> None:
    """Silence matplotlib's log: caches that it cannot write, fonts that it does not find, settings it does not know."""
    import logging  # only plots need it

    if not os.environ.get("LLMVIEWER_DEBUG"):
        logging.getLogger("matplotlib").setLevel(logging.CRITICAL)

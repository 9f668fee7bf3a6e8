"""llmviewer: how fast an LLM runs on a chip, why, and what to change.

import llmviewer as lv
lv.analyze("llama-2-7b", "a6000", batch_size=[1, 8, 64], input_len=2048).to_frame()
"""

from __future__ import annotations

from llmviewer.core.version import __version__

__all__ = ["Result", "UserError", "__version__", "analyze"]

TYPE_CHECKING = False  # `typing` takes as long to import as all of this, and Ctrl-C there prints a traceback
if TYPE_CHECKING:
    from typing import Any

    from llmviewer.api import analyze
    from llmviewer.core.errors import UserError
    from llmviewer.result.result import Result

#: Public names are imported when first used, so that the command line can set up the process before numpy loads.
_HOME = {"analyze": "llmviewer.api", "UserError": "llmviewer.core.errors", "Result": "llmviewer.result.result"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'llmviewer' has no attribute '{name}'")
    from importlib import import_module

    found = getattr(import_module(_HOME[name]), name)
    if name != "UserError":
        import_module("llmviewer.result.result").Result.notebook_view = staticmethod(_notebook_view)
    return found


def _notebook_view(result: Result) -> str:
    """HTML of a result for notebooks.  Views stand above results, so the package hands this one down."""
    from llmviewer.reports import notebook

    return notebook.html(result)

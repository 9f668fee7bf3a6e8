"""llmviewer: how fast an LLM runs on a chip, why, and what to change.

import llmviewer as lv
lv.analyze("llama-2-7b", "a6000", batch_size=[1, 8, 64], input_len=2048).to_frame()
"""

from __future__ import annotations

__version__ = "0.1.0"

from llmviewer.api import analyze
from llmviewer.errors import UserError
from llmviewer.result import Result

__all__ = ["Result", "UserError", "__version__", "analyze"]

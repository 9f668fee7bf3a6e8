"""The headings under which matrix products are counted; free of torch."""

from __future__ import annotations

from collections import Counter
from enum import Enum


class Heading(Enum):
    """Heading under which a product is counted."""

    LINEAR = "linear"
    EXPERTS = "experts"
    ATTENTION = "attention"
    HEAD = "head"
    RECURRENCE = "recurrence"
    CONVOLUTION = "convolution"
    ROTARY = "rotary"
    STREAMS = "streams"


Filed = Counter[tuple[Heading, str]]
"""FLOPs by heading and qualified module name."""

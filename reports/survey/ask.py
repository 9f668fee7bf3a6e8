"""A query that a figure or a claim of the survey needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyQuery:
    """A query of `analyze` or `train`.  Sizes have one value, or one per point.

    options: pairs of option and value.  bandwidths: of hypothetical chips, as multiples of the chip's, one per point.
    """

    model: str = "llama-2-13b"
    hardware: str = "a6000"
    batch_size: tuple[int, ...] = (1,)
    input_len: tuple[int, ...] = (1024,)
    output_len: tuple[int, ...] = (1,)
    options: tuple[tuple[str, Any], ...] = ()
    bandwidths: tuple[float, ...] = ()
    command: str = "analyze"

    def with_options(self, **options: str) -> SurveyQuery:
        """Returns the query with these options; the default is eager attention, as in the survey."""
        chosen = {"efficiency": "ideal", "attention": "eager", **options}
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "options"}
        return SurveyQuery(**kept, options=tuple(chosen.items()))

"""A question that a figure of the survey asks of `analyze`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyQuery:
    """A question to `analyze`.  Sizes are one or as many as there are points.

    options: pairs of an option and its text.  bandwidths: of hypothetical chips, multiples of the chip's, one a point.
    """

    model: str = "llama-2-13b"
    hardware: str = "a6000"
    batch_size: tuple[int, ...] = (1,)
    input_len: tuple[int, ...] = (1024,)
    output_len: tuple[int, ...] = (1,)
    options: tuple[tuple[str, str], ...] = ()
    bandwidths: tuple[float, ...] = ()

    def with_options(self, **options: str) -> SurveyQuery:
        """The same question under other options; eager attention unless they say otherwise, as in the survey."""
        chosen = {"efficiency": "ideal", "attention": "eager", **options}
        kept = {name: getattr(self, name) for name in self.__slots__ if name != "options"}
        return SurveyQuery(**kept, options=tuple(chosen.items()))

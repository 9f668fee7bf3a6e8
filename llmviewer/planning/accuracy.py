"""Published changes of the answers' quality by option and value, from accuracy.yaml."""

from __future__ import annotations

from functools import cache, partial

from llmviewer.core import data
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import keyed

FILE = data.folder("planning") / "accuracy.yaml"
#: Options that change how fast the same numbers are computed, or how many at once.
EXACT = (
    "attention", "batch_size", "fusion", "max_num_batched_tokens", "offload", "tensor_parallel_size",
)  # fmt: skip
NO_RISK = "none: the same arithmetic"
UNKNOWN = "no published figure known"


@frozen
class Risk:
    """The effect of a value on the answers.  source: a page, "" where there is no figure.

    perplexity_increase: of the model that `text` names, relative to 16 bit; None where none was published.
    """

    text: str
    source: str = ""
    perplexity_increase: float | None = None


@frozen
class Published:
    """An entry of the file.  values: of the option, all with the same figures."""

    option: str
    values: tuple[str, ...]
    risk: str
    source: str
    perplexity_increase: float | None = None


#: The entries of the file.
ENTRIES = keyed(entries=record.listed(partial(record.read, Published)))


@cache
def _published() -> dict[tuple[str, str], Risk]:
    """Option and value -> what was published."""
    entries: tuple[Published, ...] = record.of_file(FILE.name, ENTRIES, data.read_yaml(FILE))["entries"]
    return {
        (one.option, value): Risk(text=one.risk, source=one.source, perplexity_increase=one.perplexity_increase)
        for one in entries
        for value in one.values
    }


def risk(option: str, value: str) -> Risk:
    """The risk of a value of an option; of a value with parameters (eagle3,tokens=3) by its method."""
    if option in EXACT:
        return Risk(text=NO_RISK)
    return _published().get((option, value.partition(",")[0]), Risk(text=UNKNOWN))

"""Published changes of the answers' quality by option and value, from accuracy.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from llmviewer.core import data

FILE = data.folder("planning") / "accuracy.yaml"
KEYS = ("option", "values", "risk", "source")
#: Options that change how fast the same numbers are computed, or how many at once.
EXACT = (
    "attention", "batch_size", "fusion", "max_num_batched_tokens", "offload", "tensor_parallel_size",
)  # fmt: skip
NO_RISK = "none: the same arithmetic"
UNKNOWN = "no published figure known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """The effect of a value on the answers.  source: a page, "" where there is no figure."""

    text: str
    source: str = ""


@cache
def _published() -> dict[tuple[str, str], Risk]:
    """Option and value -> what was published."""
    found: dict[tuple[str, str], Risk] = {}
    for row in data.read_yaml(FILE)["entries"]:
        data.check_keys(row, KEYS, KEYS, FILE.name)
        risk = Risk(text=row["risk"], source=row["source"])
        found |= {(row["option"], value): risk for value in row["values"]}
    return found


def risk(option: str, value: str) -> Risk:
    """The risk of a value of an option; of a value with parameters (eagle3,tokens=3) by its method."""
    if option in EXACT:
        return Risk(text=NO_RISK)
    return _published().get((option, value.partition(",")[0]), Risk(text=UNKNOWN))

"""The change that a way of batching makes."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.serving.batching import STATIC, Batching
from llmviewer.techniques.technique import Change


def sharing(batching: Batching) -> Change:
    """The change of how sequences share the machine; nothing for a plain static batch."""
    return lambda system: system if batching is STATIC else replace(system, batching=batching)


def check_mixable(batching: str, system: System) -> None:
    """Raise where passes of one kind cannot be told apart or put together."""
    if system.parallelism.microbatches > 1:
        raise UserError(f"--batching {batching}: micro-batches of a pipeline are not modelled with it; leave out one")
    if system.scheme is not None:
        raise UserError(f"--batching {batching} and {system.scheme.name} are not modelled together; leave out one")

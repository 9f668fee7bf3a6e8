"""The system change of the batching methods, and its checks."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.analysis.system import System
from llmviewer.core.errors import UserError
from llmviewer.serving.batching import STATIC, Batching
from llmviewer.techniques.technique import Change


def with_batching(batching: Batching) -> Change:
    """The change that sets the batching method; no change for the plain static batch."""
    return lambda system: system if batching is STATIC else replace(system, batching=batching)


def check_mixable(batching: str, system: System) -> None:
    """Raise UserError for micro-batches and for speculative decoding, whose passes cannot be mixed or separated."""
    if system.parallelism.microbatches > 1:
        raise UserError(
            f"--batching {batching}: micro-batches of a pipeline are not modelled with it; remove one of them"
        )
    if system.scheme is not None:
        raise UserError(f"--batching {batching} and {system.scheme.name} are not modelled together; remove one of them")

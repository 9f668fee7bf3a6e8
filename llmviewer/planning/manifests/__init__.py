"""Launch manifests of a configuration: engine commands, Kubernetes objects, and graphs and values built on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from llmviewer.core.errors import UserError, unknown
from llmviewer.planning.manifests import commands, dynamo, kubernetes, llm_d
from llmviewer.planning.manifests.resolved import with_limits
from llmviewer.planning.manifests.serving import Serving, serving_of

#: Values of --emit -> the text of a Serving.
EMITTERS: dict[str, Callable[[Serving], str]] = {
    "vllm": partial(commands.emit, "vllm"),
    "sglang": partial(commands.emit, "sglang"),
    "trtllm": partial(commands.emit, "trtllm"),
    "k8s": kubernetes.emit,
    "dynamo": dynamo.emit,
    "llm-d": llm_d.emit,
}
#: Fields of a Serving that a launch states.
STATED = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_fraction",
    "kv_cache_dtype",
)
#: Targets that are engines, for which a configuration of that engine is needed.
ENGINES = ("vllm", "sglang", "trtllm")


def emit(target: str, configuration: Mapping[str, Any]) -> str:
    """The manifest of a CONFIGURATION of `size` for a target of EMITTERS.

    Raises UserError for an unknown target, and for a configuration that the target cannot run.
    """
    check_target(target)
    return EMITTERS[target](_resolved(configuration))


def launch(configuration: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The limits with which each pool of a CONFIGURATION of `size` has to be started; [] where no engine can run it.

    None: the engine has no such limit, or it cannot be predicted.
    """
    try:
        serving = _resolved(configuration)
    except UserError:
        return []
    return [{"role": one.role or None, **{name: getattr(one, name) for name in STATED}} for one in serving.pools]


def _resolved(configuration: Mapping[str, Any]) -> Serving:
    """The pools of a configuration with the limits on which their prediction rests."""
    model, options = str(configuration["model"]), dict(configuration.get("options") or {})
    serving = with_limits(serving_of(configuration), model, options)
    prefill = serving.prefill and with_limits(serving.prefill, model, options)
    return replace(serving, prefill=prefill)


def check_target(target: str) -> None:
    """Raise UserError for an unknown target."""
    if target not in EMITTERS:
        raise unknown("target of a manifest", target, EMITTERS)

"""Notes on stated options that have nothing to act on in a run, such as a link on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from llmviewer.analysis.capacity import step_tokens
from llmviewer.analysis.memory import weights_bytes
from llmviewer.analysis.system import System
from llmviewer.core.frozen import frozen
from llmviewer.core.ir import Graph
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import Request, decode
from llmviewer.hardware.chip import NETWORK
from llmviewer.layers.mla import Mla
from llmviewer.models.model import Model
from llmviewer.ops.gemm import has_routed_experts
from llmviewer.serving.batching import STATIC
from llmviewer.techniques.options import LLAMA_CPP_OPTIONS, OPTIONS, Options
from llmviewer.timing import engine


@frozen
class Run:
    """A run as it was asked.  exchanging: devices that send each other messages."""

    model: Model
    system: System
    options: Options
    workload: Request
    exchanging: int

    @property
    def graph(self) -> Graph:
        """The model's decode step before any pass."""
        return self.model.graph(decode(1.0, 1.0))

    def without(self, name: str) -> bool:
        """Whether the model has the same weights without the passes of a technique."""
        passes = self.system.passes
        fewer = tuple(one for one in passes if not one.name.startswith(name))
        graphs = (replace(self.system, passes=kept).prepared(self.graph) for kept in (passes, fewer))
        first, second = (float(np.max(weights_bytes(graph))) for graph in graphs)
        return first == second

    @property
    def is_alone(self) -> bool:
        """Whether no two devices exchange data."""
        return self.exchanging == 1 and self.system.parallelism.instances == 1


def _has_no_attention(run: Run) -> bool:
    return not any(operator.kind in (Kind.ATTENTION, Kind.SOFTMAX) for _, operator in run.graph)


def _is_one_node(run: Run) -> bool:
    """Whether no two devices are in different machines."""
    system = run.system
    if system.split is not None:
        return max(system.split.machines) == 0
    return run.exchanging <= system.chip.near and system.chip.default_link != NETWORK


def _limit(run: Run) -> float:
    """Most tokens of a pass."""
    return run.options.max_num_batched_tokens or run.system.engine.max_num_batched_tokens


NO_CACHE = (_has_no_attention, "the model has no KV cache")
#: Option -> whether a run has nothing that it acts on, and why.  Only options off their defaults are asked.
IDLE: Mapping[str, tuple[Callable[[Run], bool], str]] = {
    "latent_attention": (
        lambda run: not any(isinstance(layer.mixer, Mla) for layer in run.model.layers),
        "the model has no latent attention",
    ),
    "link": (lambda run: run.is_alone, "one device"),
    "network": (_is_one_node, "one node"),
    "expert_parallel_size": (lambda run: not has_routed_experts(run.graph), "the model has no routed experts"),
    "attention": (_has_no_attention, "the model has no attention"),
    "kv_cache_dtype": NO_CACHE,
    "kv_block_size": NO_CACHE,
    "kv_reserve": NO_CACHE,
    "matformer": (lambda run: run.without("matformer"), "the model has no feed-forward layers"),
    "logical_batch": (
        lambda run: step_tokens(run.system, _limit(run)) == _limit(run) < (run.options.logical_batch or 0),
        "the micro-batch is smaller and decides",
    ),
    "split_mode": (lambda run: run.system.parallelism.devices == 1, "one device"),
    "tensor_split": (lambda run: run.system.parallelism.devices == 1, "one device"),
    "main_gpu": (lambda _: True, "it chooses among several GPUs with -sm none alone"),
    "enforce_eager": (
        lambda run: not 0.0 < engine.load(run.options.engine).graph_tokens < np.inf,
        "the times of this engine are not told apart by CUDA graphs",
    ),
    "prune": (lambda run: run.without("prune"), "the model has nothing of the kind that it removes"),
}


def notes(run: Run) -> Iterator[str]:
    """A line for every stated option that this run does not use."""
    for name, (is_idle, why) in IDLE.items():
        value = run.options.techniques.get(name, getattr(run.options, name, None))
        if value not in (None, OPTIONS[name].default) and is_idle(run):
            yield f"{_typed(name)}: {why}, not used"
    yield from _limits(run)


def _limits(run: Run) -> Iterator[str]:
    """Limits of the engine that this workload is beyond."""
    sequences, length = run.options.max_num_seqs, run.system.engine.slot_context
    batch = float(np.max(run.system.parallelism.replica(run.workload).batch_size))
    if sequences is not None and batch > sequences and run.system.batching is STATIC:
        yield (
            f"{_typed('max_num_seqs')} {sequences}: times are of {batch:.0f} sequences at once, which the engine does "
            "not run; --batching continuous queues those beyond the limit"
        )
    context = float(np.max(run.workload.input_len + run.workload.output_len))
    if length is not None and context > length:
        program = run.system.engine.program
        if program is not None and program.contexts:
            yield f"{program.title} cuts a request of {context:.0f} tokens to its context; -c {context:.0f} holds it"
            return
        each = "" if length == run.options.max_model_len else f", {length:.0f} for each of {sequences} slots"
        yield (
            f"{_typed('max_model_len')} {run.options.max_model_len}{each}: the engine refuses a request of "
            f"{context:.0f} tokens"
        )


def _typed(name: str) -> str:
    return OPTIONS[name].spellings(name)[-1 if name in LLAMA_CPP_OPTIONS else 0]

"""The registry of techniques: one line each, in the order in which they are applied.

What changes the model's shapes comes first, then number formats (kernels look at stored bytes), then what is kept in
the cache, then kernels and fusion, then the share of one device, and last what speaks of the whole machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from importlib import import_module

from llmviewer.techniques.methods import METHODS
from llmviewer.techniques.technique import Change, Technique


class SharedBy(IntEnum):
    """What a technique speaks of, from what most share to what one has alone.

    ENGINE: how any model is run, so that whatever drafts shares it.  WEIGHTS: what is stored, where it lies and which
    of it runs; what drafts from the model's own weights shares it too.  LAYERS: it counts the model's layers; what
    drafts by all of them shares it too.  ALONE: the answer as a whole.
    """

    ENGINE = auto()
    WEIGHTS = auto()
    LAYERS = auto()
    ALONE = auto()


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line offers a technique.

    module: of `llmviewer.techniques`, whose TECHNIQUE it is.  off: the text that asks for nothing.
    help: one line.  default: what is on unless asked otherwise.  flags: further spellings.
    listed: lists of it are separated by commas (its text is a single word); of others by semicolons.
    """

    module: str
    of: SharedBy
    help: str
    off: str = "none"
    default: str = "none"
    flags: tuple[str, ...] = ()
    listed: bool = True


#: option -> how it is offered; the order is the order of application.
TECHNIQUES: dict[str, Option] = {
    "expert_skew": Option(
        "sparsity.expert_skew", SharedBy.WEIGHTS, "alpha of the experts' popularity i^-alpha; 0 is uniform.", "0", "0"
    ),
    # adapters and factors before formats: adapters stay in 16 bit, factors take the format of what they replace
    "lora": Option(
        "compression.lora",
        SharedBy.WEIGHTS,
        "Unmerged adapters: rank=16,adapters=8,targets=q_proj+v_proj.",
        listed=False,
    ),
    "low_rank": Option(
        "compression.low_rank", SharedBy.WEIGHTS, "Rank of the two factors of every linear layer: 1024."
    ),
    "contextual_sparsity": Option(
        "sparsity.contextual_sparsity",
        SharedBy.WEIGHTS,
        "Shares that a token uses: attention=0.5,mlp=0.1[,predictor=1000].",
        listed=False,
    ),
    "hot_neurons": Option(
        "sparsity.hot_neurons",
        SharedBy.WEIGHTS,
        "Neurons on the GPU, cold ones on the host: gpu=0.2,active=0.1[,host=NAME].",
        listed=False,
    ),
    "quantization": Option(
        "quantization.quantization", SharedBy.WEIGHTS, "w4a16, w8a8-fp8, awq ...: none keeps the model's."
    ),
    "kv_cache_dtype": Option("kv_cache.kv_cache_dtype", SharedBy.ENGINE, "auto, fp8, int8, kv4 ...", "auto", "auto"),
    # sparse weights know their stored format; fewer channels, heads and layers commute with it
    "matformer": Option(
        "compression.matformer", SharedBy.WEIGHTS, "Share of the feed-forward channels that run: 0.5.", "1", "1"
    ),
    "prune": Option(
        "compression.prune", SharedBy.WEIGHTS, "2:4, unstructured=0.5, width=0.75, depth=0.75, heads=0.75, joined by +."
    ),
    "kv_block_size": Option(
        "kv_cache.kv_block_size", SharedBy.ENGINE, "Tokens of a page of KV cache (PagedAttention); 1 = none.", "1", "1"
    ),
    "kv_reserve": Option(
        "kv_cache.kv_reserve", SharedBy.ENGINE, "Tokens of KV cache every sequence reserves, or max.", "0", "0"
    ),
    "prefix_cache": Option(
        "kv_cache.prefix_cache",
        SharedBy.ENGINE,
        "Share of every prompt found in the cache: 0.5, or 0.5,shared.",
        "0",
        "0",
        listed=False,
    ),
    "kv_evict": Option(
        "kv_cache.kv_evict", SharedBy.ENGINE, "Share of the cached tokens that eviction keeps: 0.2.", "1", "1"
    ),
    "kv_cache_free_gpu_memory_fraction": Option(
        "kv_cache.kv_cache_free_fraction",
        SharedBy.ENGINE,
        "0.9 of what weights and activations leave (TensorRT-LLM).",
        "none",
        "none",
    ),
    "attention": Option(
        "kernels.flash_attention",
        SharedBy.ENGINE,
        "flash, eager, flash-decoding, flash-decoding=SPLITS.",
        "eager",
        "flash",
    ),
    # what joins devices is known before they are counted
    "network": Option("parallel.network", SharedBy.ENGINE, "What joins devices beyond their link: infiniband-ndr ..."),
    "tensor_parallel_size": Option(
        "parallel.tensor_parallel",
        SharedBy.ENGINE,
        "Devices that share heads, channels and vocabulary.",
        "1",
        "1",
        ("-tp",),
    ),
    "sequence_parallel": Option(
        "parallel.sequence_parallel", SharedBy.ENGINE, "on: norms and residual sums shared by tokens.", "off", "off"
    ),
    "data_parallel_size": Option(
        "parallel.data_parallel", SharedBy.ENGINE, "Replicas that divide the batch.", "1", "1", ("-dp",)
    ),
    "expert_parallel_size": Option(
        "parallel.expert_parallel",
        SharedBy.ENGINE,
        "Devices to which whole experts are dealt; 1 splits each expert.",
        "1",
        "1",
        ("-ep",),
    ),
    "context_parallel_size": Option(
        "parallel.context_parallel",
        SharedBy.ENGINE,
        "Devices that share the tokens of every sequence.",
        "1",
        "1",
        ("-cp",),
    ),
    "pipeline_parallel_size": Option(
        "parallel.pipeline_parallel",
        SharedBy.ALONE,
        "Stages of layers: 4, or 4,microbatches=8.",
        "1",
        "1",
        ("-pp",),
        listed=False,
    ),
    "spatial": Option(
        "parallel.spatial",
        SharedBy.ALONE,
        "on, or the tokens of cache to hold: as many chips as it takes.",
        "off",
        "off",
        listed=False,
    ),
    # after the share of one device: sharding knows operators by the names they have before they are fused
    "fusion": Option("kernels.fuse", SharedBy.ENGINE, "none, all, or rules joined by +: qkv+gate-up+norm-linear ..."),
    # what one device holds, under the names its kernels have in the end
    "offload": Option(
        "offload.offload",
        SharedBy.WEIGHTS,
        "weights=0.4[,kv=0.5,compute=host], zero-inference, flexgen, experts ...",
        listed=False,
    ),
    # after the share of one device, so that the collectives of a skipped layer are skipped with it
    "skip_layers": Option(
        "sparsity.skip_layers", SharedBy.WEIGHTS, "Share of the layers that every step leaves out.", "0", "0"
    ),
    "early_exit": Option(
        "sparsity.early_exit", SharedBy.LAYERS, "mean=0.6, exits=8:0.3/16:0.4, two-exit=8:0.7 ...", listed=False
    ),
    # which passes are run, whatever they are
    "speculative": Option(
        "speculation.speculative",
        SharedBy.ALONE,
        "draft=llama-3.2-1b,tokens=4,acceptance=0.8, or eagle3,tokens=3 ...",
        listed=False,
    ),
    "branches": Option(
        "branching.branches",
        SharedBy.ALONE,
        "skeleton,outline=36,points=6, or apar,branches=3[,parallel=0.75].",
        listed=False,
    ),
    # last: it counts machines, and looks at what passes generate
    "batching": Option(
        "batching.batching",
        SharedBy.ENGINE,
        "static, continuous, chunked,tokens=512 or disaggregated,prefill=2,decode=1.",
        "static",
        "static",
        listed=False,
    ),
}

#: Techniques without an option of their own, because other words of the command line say them -> module.
WITHOUT_OPTION: dict[str, str] = {
    "distillation": "compression.distillation",
    **{method: module for methods in METHODS.values() for method, module in methods.items()},
}


def load(name: str) -> Technique:
    """The technique behind an option, or without one."""
    module = WITHOUT_OPTION[name] if name in WITHOUT_OPTION else TECHNIQUES[name].module
    found: Technique = import_module(f"llmviewer.techniques.{module}").TECHNIQUE
    return found


def changes(asked: Mapping[str, str]) -> Iterator[Change]:
    """The changes that options ask for, in the order of the registry."""
    for name, option in TECHNIQUES.items():
        text = asked.get(name, option.default)
        if text != option.off:
            yield load(name).make(text)

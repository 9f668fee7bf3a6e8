"""The registry of techniques, in the order in which they are applied.

Order: the chip, the model's shapes, number formats (kernels read stored bytes), contents and allocation of the KV
cache, kernels, the share of one device, fusion, and last the techniques that concern the whole replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from llmviewer.techniques.methods import METHODS
from llmviewer.techniques.technique import Change, SharedBy, Technique, TechniqueOption, refusing

#: Option name -> command-line option; the order is the order of application.
TECHNIQUES: dict[str, TechniqueOption] = {
    # the chip itself, before whatever is chosen for it
    "set": TechniqueOption(
        "kernels.set_figures:FIGURES",
        SharedBy.ENGINE,
        "A figure of the chip, repeatable: bandwidth=6TB/s, peak.fp8=x2, capacity=+50%.",
        separator=";",
        repeated=True,
    ),
    "power_limit": TechniqueOption(
        "kernels.set_figures:POWER_LIMIT", SharedBy.ENGINE, "Board power below the chip's own: 400W (nvidia-smi -pl)."
    ),
    "expert_skew": TechniqueOption(
        "sparsity.expert_skew:expert_skew_option",
        SharedBy.WEIGHTS,
        "Expert popularity i^-alpha: 0.7, or alpha=0.7,repeat=0.38; 0: uniform, none: engine's.",
        separator=";",
    ),
    # adapters and factors before number formats: adapters stay in 16 bits, factors get the format of what they replace
    "lora": TechniqueOption(
        "compression.lora:lora_option",
        SharedBy.WEIGHTS,
        "Unmerged LoRA: rank=16,adapters=8,targets=q_proj+v_proj.",
        separator=";",
    ),
    "low_rank": TechniqueOption(
        "compression.low_rank:low_rank_option",
        SharedBy.WEIGHTS,
        "Rank of the two factors that replace every linear layer: 1024.",
    ),
    "contextual_sparsity": TechniqueOption(
        "sparsity.neurons:contextual_sparsity_option",
        SharedBy.WEIGHTS,
        "Shares that a token uses: attention=0.5,mlp=0.1[,predictor=1000].",
        separator=";",
    ),
    "hot_neurons": TechniqueOption(
        "sparsity.neurons:hot_neurons_option",
        SharedBy.WEIGHTS,
        "Hot neurons on the GPU, cold ones on the host: gpu=0.2,active=0.1[,host=NAME].",
        separator=";",
    ),
    "quantization": TechniqueOption(
        "quantization.quantization",
        SharedBy.WEIGHTS,
        "w4a16, w8a8-fp8, awq, budget=3:w2a16/w4a16 ...: none keeps the checkpoint's formats.",
        aliases=("-q",),
    ),
    "kv_cache_dtype": TechniqueOption(
        "kv_cache.contents:DTYPE", SharedBy.ENGINE, "KV cache format: auto, fp8, int8, kv4, k8v4 ...", "auto", "auto"
    ),
    # sparse weights depend on their stored format; removing channels, heads and layers commutes with it
    "matformer": TechniqueOption(
        "compression.narrow:MATFORMER",
        SharedBy.WEIGHTS,
        "Share of feed-forward channels that run: 0.5.",
        "1",
        "1",
    ),
    "prune": TechniqueOption(
        "compression.prune", SharedBy.WEIGHTS, "2:4, unstructured=0.5, width=0.75, depth=0.75, heads=0.75, joined by +."
    ),
    "kv_block_size": TechniqueOption(
        "kv_cache.contents:kv_block_size",
        SharedBy.ENGINE,
        "Tokens per page of KV cache (PagedAttention); 1 = none.",
        "1",
        "1",
        ("--block-size",),
    ),
    "kv_reserve": TechniqueOption(
        "kv_cache.contents:kv_reserve",
        SharedBy.ENGINE,
        "Tokens of KV cache reserved per sequence, or max.",
        "0",
        "0",
    ),
    "prefix_cache": TechniqueOption(
        "kv_cache.contents:prefix_cache",
        SharedBy.ENGINE,
        "Share of every prompt found in the cache: 0.5, or 0.5,shared.",
        "0",
        "0",
        separator=";",
    ),
    "kv_evict": TechniqueOption(
        "kv_cache.eviction",
        SharedBy.ENGINE,
        "Cached tokens that eviction keeps: 0.2 of them, tokens=2048, pyramid=2048.",
        "1",
        "1",
    ),
    "kv_cache_free_gpu_memory_fraction": TechniqueOption(
        "kv_cache.contents:kv_cache_free_gpu_memory_fraction",
        SharedBy.ENGINE,
        "Fraction of free memory for the KV cache (TensorRT-LLM): 0.9.",
    ),
    "attention": TechniqueOption(
        "kernels.flash_attention",
        SharedBy.ENGINE,
        "Attention kernel: flash (on, auto), eager (off), flash-decoding, flash-decoding=SPLITS.",
        "eager",
        "flash",
        ("-fa", "--flash-attn"),
    ),
    # links, networks and group sizes are known before the sharding that uses them
    "link": TechniqueOption(
        "parallel.sizes:link",
        SharedBy.ENGINE,
        "Link between devices, if not the chip's default: pcie, pcie-host, pcie-4-x8, nvlink ...",
    ),
    "network": TechniqueOption(
        "parallel.sizes:network",
        SharedBy.ENGINE,
        "Network between groups of devices on one link: infiniband-ndr ...",
    ),
    "tensor_parallel_size": TechniqueOption(
        "parallel.sizes:tensor_parallel_size",
        SharedBy.ENGINE,
        "Devices that split heads, channels, vocabulary.",
        "1",
        "1",
        ("-tp", "--tp"),
    ),
    "sequence_parallel": TechniqueOption(
        "parallel.sizes:sequence_parallel",
        SharedBy.ENGINE,
        "on: norms and residual sums split by tokens.",
        "off",
        "off",
    ),
    "data_parallel_size": TechniqueOption(
        "parallel.sizes:data_parallel_size",
        SharedBy.ENGINE,
        "Replicas that divide the batch.",
        "1",
        "1",
        ("-dp", "--dp"),
    ),
    "expert_parallel_size": TechniqueOption(
        "parallel.sizes:expert_parallel_size",
        SharedBy.ENGINE,
        "Devices that share out whole experts; 1 splits every expert.",
        "1",
        "1",
        ("-ep", "--ep"),
    ),
    "context_parallel_size": TechniqueOption(
        "parallel.sizes:context_parallel_size",
        SharedBy.ENGINE,
        "Devices that split the tokens of every sequence.",
        "1",
        "1",
        ("-cp", "--cp"),
    ),
    "pipeline_parallel_size": TechniqueOption(
        "parallel.sizes:pipeline_parallel_size",
        SharedBy.TARGET,
        "Pipeline stages: 4, or 4,microbatches=8.",
        "1",
        "1",
        ("-pp", "--pp"),
        separator=";",
    ),
    "spatial": TechniqueOption(
        "parallel.sizes:spatial",
        SharedBy.TARGET,
        "on, or tokens of KV cache: as many chips as hold them and the weights on chip.",
        "off",
        "off",
        separator=";",
    ),
    # after sharding, which finds operators by their names before fusion
    "fusion": TechniqueOption(
        "kernels.fuse", SharedBy.ENGINE, "none, all, or rules joined by +: qkv+gate-up+norm-linear ..."
    ),
    # after fusion: it moves the tensors of one device, read by fused kernels
    "offload": TechniqueOption(
        "offload.offload",
        SharedBy.WEIGHTS,
        "weights=0.4[,kv=0.5,compute=host], zero-inference, flexgen, experts ...",
        separator=";",
    ),
    # after sharding, so that the collectives of a skipped layer are skipped too
    "skip_layers": TechniqueOption(
        "sparsity.early_exit:skip_layers_option",
        SharedBy.WEIGHTS,
        "Share of the layers that every step skips.",
        "0",
        "0",
    ),
    "early_exit": TechniqueOption(
        "sparsity.early_exit:EARLY_EXIT",
        SharedBy.LAYERS,
        "mean=0.6, mean=0.9..0.4, exits=8:0.3/16:0.4, two-exit=8:0.7 ...",
        separator=";",
    ),
    # these choose the forward passes and change none of their operators
    "speculative": TechniqueOption(
        "methods:SPECULATIVE",
        SharedBy.TARGET,
        "draft=llama-3.2-1b,tokens=4,acceptance=0.8, or eagle3,tokens=3 ...",
        separator=";",
    ),
    "branches": TechniqueOption(
        "methods:BRANCHES",
        SharedBy.TARGET,
        "skeleton,outline=36,points=6, or apar,branches=3[,parallel=0.75].",
        separator=";",
    ),
    # last: it counts replicas and depends on how passes generate tokens
    "batching": TechniqueOption(
        "methods:BATCHING",
        SharedBy.ENGINE,
        "static, continuous, chunked,tokens=512 or disaggregated,prefill=2,decode=1.",
        "static",
        "static",
        separator=";",
    ),
}

#: Techniques without an option of their own (methods of an option, or other commands) -> entry.
WITHOUT_OPTION: dict[str, str] = {
    "distillation": "compression.narrow:DISTILLATION",
    **{method: entry for methods in METHODS.values() for method, entry in methods.items()},
}


def load(name: str) -> Technique:
    """The technique of an option, or one without an option."""
    entry = WITHOUT_OPTION[name] if name in WITHOUT_OPTION else TECHNIQUES[name].entry
    module, _, attribute = entry.partition(":")
    technique: Technique = getattr(import_module(f"llmviewer.techniques.{module}"), attribute or "TECHNIQUE")
    return technique


def changes(options: Mapping[str, str]) -> Iterator[Change]:
    """The changes that the given option values make, in the order of the registry."""
    for name, option in TECHNIQUES.items():
        text = options.get(name, option.default)
        if text != option.off:
            with refusing(f"--{name.replace('_', '-')}"):
                made = load(name).make(text)
            yield made

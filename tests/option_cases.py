"""For every option a value that is not its default, and the case in which it matters; read by test_every_option.py."""

from __future__ import annotations

from dataclasses import dataclass

DENSE, MOE, LATENT, CHIP = "llama-3.2-1b", "olmoe-1b-7b", "deepseek-v2-lite", "a100-80gb-sxm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A value of an option.  beside: other options as typed.  without: what is typed in place of the option."""

    value: str
    model: str = DENSE
    beside: str = ""
    without: str = ""
    hardware: str = CHIP


def _case(value: str, beside: str = "", model: str = DENSE, without: str = "", hardware: str = CHIP) -> Case:
    return Case(value=value, beside=beside, model=model, without=without, hardware=hardware)


#: Option of a run -> its case, in every command that does not have one of its own.
RUN = {
    "batch_size": _case("8"),
    "input_len": _case("512"),
    "output_len": _case("16"),
    "dtype": _case("fp32"),
    "latent_attention": _case("naive", model=LATENT),
    "efficiency": _case("ideal"),
    "engine": _case("sglang"),
    "profile": _case("calibrate/profiles/h100-sxm.yaml"),
    "gpu_memory_utilization": _case("0.5", "--engine vllm"),
    "max_num_batched_tokens": _case("64"),
    "max_num_seqs": _case("2", "--engine vllm"),
    "max_model_len": _case("600", "--engine vllm"),
    "enforce_eager": _case("", "--engine vllm"),
    "ignore_fields": _case("novelty", model="CONFIG"),
    "trace_model": _case(""),
    "set": _case("bandwidth=x2"),
    "power_limit": _case("200W"),
    "expert_skew": _case("0.7", model=MOE),
    "lora": _case("16"),
    "low_rank": _case("64"),
    "contextual_sparsity": _case("attention=0.5,mlp=0.1"),
    "hot_neurons": _case("gpu=0.2,active=0.1"),
    "quantization": _case("w4a16"),
    "kv_cache_dtype": _case("fp8"),
    "matformer": _case("0.5"),
    "prune": _case("width=0.75"),
    "kv_block_size": _case("4096"),
    "kv_reserve": _case("max"),
    "prefix_cache": _case("0.5"),
    "kv_evict": _case("0.2"),
    "kv_cache_free_gpu_memory_fraction": _case("0.4"),
    "attention": _case("eager"),
    "link": _case("pcie", "-tp 2"),
    "network": _case("infiniband-hdr", "-tp 32 --quantization none", "llama-3.1-8b", "--network infiniband-ndr"),
    "tensor_parallel_size": _case("2"),
    "sequence_parallel": _case("on", "-tp 2"),
    "data_parallel_size": _case("2"),
    "expert_parallel_size": _case("2", "-tp 2", MOE),
    "context_parallel_size": _case("2"),
    "pipeline_parallel_size": _case("2"),
    "spatial": _case("on", hardware="groq-lpu"),
    "fusion": _case("all"),
    "offload": _case("weights=0.4"),
    "skip_layers": _case("0.5"),
    "early_exit": _case("mean=0.6"),
    "speculative": _case("ngram,tokens=3,acceptance=0.5"),
    "branches": _case("skeleton,outline=4,points=2"),
    "batching": _case("continuous"),
}

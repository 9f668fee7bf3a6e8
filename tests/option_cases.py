"""For every option a value that is not its default, and the case in which it matters; read by test_every_option.py."""

from __future__ import annotations

from dataclasses import dataclass

DENSE, MOE, LATENT, CHIP = "llama-3.2-1b", "olmoe-1b-7b", "deepseek-v2-lite", "a100-80gb-sxm"
#: A batch beyond the KV cache, whose admission every option of the cache changes.
CROWDED = "--engine vllm --batching continuous --batch-size 512"
CROWD = f"{CROWDED} --gpu-memory-utilization 0.15"


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
    "profile": _case("calibrate/profiles/l40s.yaml"),
    "gpu_memory_utilization": _case("0.1", CROWDED),
    "max_num_batched_tokens": _case("64"),
    "max_num_seqs": _case("2", "--engine vllm"),
    "max_model_len": _case("200", "--engine vllm"),
    "enforce_eager": _case("", "--engine vllm"),
    "ignore_fields": _case("novelty", model="CONFIG"),
    "model_set": _case("num_hidden_layers=8"),
    "trace_model": _case(""),
    "weight_bits": _case("4"),
    "activation_bits": _case("8"),
    "kv_bits": _case("8"),
    "gpu_layers": _case("8"),
    "n_cpu_moe": _case("4", model=MOE),
    "override_tensor": _case("exps=CPU", model=MOE),
    "cache_type_k": _case("q8_0"),
    "cache_type_v": _case("q4_0"),
    "logical_batch": _case("64", "--engine llama.cpp"),
    "split_mode": _case("tensor", "-ts 1,1"),
    "backend": _case("vulkan", "--engine llama.cpp"),
    "tensor_split": _case("1,1"),
    "main_gpu": _case("1", "--engine llama.cpp"),
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
    "kv_block_size": _case("4096", CROWD),
    "kv_reserve": _case("max", CROWD),
    "prefix_cache": _case("0.5"),
    "kv_evict": _case("0.2"),
    "kv_cache_free_gpu_memory_fraction": _case("0.005", CROWD),
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
    "batching": _case("chunked,tokens=64"),
}
IMAGES = {"images": _case("1x640x480", model="qwen2.5-vl-7b")}
AUDIO = {"audio": _case("20s", model="whisper-large-v3")}
#: Options of a load, in `simulate`; of `size` where they are not among SIZING.
LOAD = {
    "request_rate": _case("2"),
    "concurrency": _case("4", without="--request-rate 20"),
    "trace": _case("TRACE", without="--request-rate 20"),
    "burst": _case("", without="--request-rate 20"),
    "rate_curve": _case("0h:5,12h:20", without="--request-rate 20"),
    "arrivals": _case("fixed"),
    "input_len": _case("512"),
    "output_len": _case("16"),
    "lengths": _case("TRACE"),
    "sessions": _case("turns=3,first=300,then=50,output=8"),
    "kv_tiers": _case(
        "host=8",
        "--sessions turns=4,think=2s,first=2000,output=8 --gpu-memory-utilization 0.06 --requests 200",
    ),
    "schedule_policy": _case(
        "shortest-prompt", "--input-len uniform,low=16,high=2000 --request-rate 400", without="--request-rate 20"
    ),
    "speed_up": _case("4", "--trace TRACE"),
    "duration": _case("1s"),
    "requests": _case("30"),
    **IMAGES,
    **AUDIO,
    "seed": _case("3"),
    "warm_up": _case("1s"),
    "replications": _case("2"),
    "router": _case("least-loaded", "--replicas 3"),
    "replicas": _case("2"),
    "pools": _case("prefill=1xtp1,decode=1xtp1"),
    "find_rate": _case("", "--ttft 2s"),
    "ttft": _case("1us"),
    "tpot": _case("1us"),
    "e2e": _case("1us"),
}
#: Options of the cache of a server, whose share in use they change.
OF_ROOM = {
    "gpu_memory_utilization": _case("0.06"),
    "kv_block_size": _case("4096"),
    "kv_cache_free_gpu_memory_fraction": _case("0.002"),
}
#: Options of money and energy, in commands that print them.
COSTS = {
    "price": _case("a100-80gb-sxm=9.99"),
    "prices": _case("prices.yaml"),
    "price_kind": _case("neocloud"),
    "owned": _case("capex=30000,years=4,utilization=0.8,usd_per_kwh=0.08,pue=1.3"),
    "carbon": _case("400"),
    "api_price": _case("in=0.3,out=1.2"),
}
#: Options of one command -> their cases, before those of RUN.
OWN = {
    "analyze": {**COSTS, **IMAGES, **AUDIO},
    "sweep": COSTS,
    "compare": COSTS,
    "report": {
        "schedule_policy": _case("shortest-prompt", "--lengths TRACE --request-rate 4000", without="--request-rate 20"),
    },
    "crossover": {
        "context": _case("512"),
        "output_len": _case("16", "--metric e2e_s"),
        "over": _case("bandwidth=1TB/s:4TB/s:*2"),
        "metric": _case("tpot_s"),
        "max_num_batched_tokens": _case("64", "--metric ttft_s"),
        "logical_batch": _case("64", "--metric ttft_s --engine llama.cpp"),
        "power_limit": _case("200W", "--metric ttft_s --batch-size 64"),
        "prefix_cache": _case("0.5", "--metric ttft_s"),
        "branches": _case("skeleton,outline=4,points=2", "--metric e2e_s --output-len 64"),
        "batching": _case("chunked,tokens=64", "--metric e2e_s"),
    },
    "elasticity": {
        "metric": _case("ttft_s"),
        "gpu_memory_utilization": _case("0.06", f"{CROWDED} --metric e2e_s"),
        "max_num_batched_tokens": _case("64", "--metric ttft_s"),
        "logical_batch": _case("64", "--metric ttft_s --engine llama.cpp"),
        "power_limit": _case("200W", "--metric ttft_s --batch-size 64"),
        "prefix_cache": _case("0.5", "--metric ttft_s"),
    },
    "explain": {
        "gpu_memory_utilization": _case("0.06", CROWDED),
        **COSTS,
        **IMAGES,
        **AUDIO,
    },
    "why": {"metric": _case("ttft_s", "-q w4a16")},
    "advise": {
        "metric": _case("ttft_s"),
        "ttft": _case("1us"),
        "tpot": _case("1us"),
        "max_gpus": _case("2"),
        "batch_size": _case("8"),
    },
    "require": {
        "vary": _case("peak.bf16"),
        "gpu_memory_utilization": _case("0.5", "--vary capacity"),
        "max_num_batched_tokens": _case("64", "--ttft 30ms"),
        "logical_batch": _case("64", "--ttft 30ms --engine llama.cpp"),
        "power_limit": _case("200W", "--ttft 30ms --batch-size 64"),
        "prefix_cache": _case("0.5", "--ttft 30ms"),
        "ttft": _case("500ms", without="--tpot 100ms"),
        "tpot": _case("50ms", without="--tpot 100ms"),
        "e2e": _case("5s", without="--tpot 100ms"),
        "tokens_per_s": _case("100", without="--tpot 100ms"),
    },
    "trace": {
        "steps": _case("3"),
        "network": _case("infiniband-hdr", "-tp 32 -q none --chips 1", "llama-3.1-8b", "--network infiniband-ndr"),
        "spatial": _case("on", "--chips 1", hardware="groq-lpu"),
        "chips": _case("1", "-tp 2"),
        "output_len": _case("2", "--steps 7"),
        "gpu_memory_utilization": _case("0.01"),
        "branches": _case("skeleton,outline=4,points=2", "--steps 7"),
    },
    "fit": {
        "context": _case("1024"),
        "min_speed": _case("1000.0"),
        "models": _case("llama-3.2-3b"),
        "top": _case("1", "--models llama-3.2-1b,llama-3.2-3b"),
        "expert_skew": _case("2", "--context 4", MOE),
        "gpu_memory_utilization": _case("0.5"),
        "kv_block_size": _case("4096"),
        "kv_reserve": _case("max"),
        "kv_cache_free_gpu_memory_fraction": _case("0.005"),
    },
    "train": {
        "optimizer": _case("sgd"),
        "kv_block_size": _case("4096"),
        "kv_reserve": _case("max"),
        "kv_cache_free_gpu_memory_fraction": _case("0.05"),
        "recompute": _case("0.5"),
        "zero": _case("3", "-dp 2"),
        "micro_batch_size": _case("1", "--batch-size 4"),
        "virtual_stages": _case("2", "-pp 2 --batch-size 4"),
        "cpu_offload": _case("optimizer"),
        "teacher": _case("llama-3.2-3b"),
        "second_stage": _case("batch=128,length=256,ratio=0.4"),
        "tokens": _case("1e9"),
        "price": _case("2.5", "--tokens 1e9"),
        "latent_attention": _case("absorbed", model=LATENT),
        "expert_skew": _case("0.7", "--batch-size 1 --input-len 4", MOE),
    },
    "simulate": {**OF_ROOM, "kv_reserve": _case("max")},
    "check": {
        "gpu_memory_utilization": _case("0.06", CROWDED),
        "prefix_cache": _case("0.5"),
    },
    "diagnose": {
        **OF_ROOM,
        "kv_reserve": _case("max"),
        "stage": _case("prefill", without="--stage decode"),
        "passes": _case("20"),
        "batch_size": _case("8"),
        "input_len": _case("512"),
    },
    "plot": {
        "batch_size": _case("8,16"),
        "bandwidth": _case("1000,2000"),
        "target": _case("20ms"),
        "vary": _case("bandwidth,peak.bf16", "--target 100ms", without="--vary bandwidth,capacity"),
        "metric": _case("e2e_s", "--quantization none,w4a16"),
        "over": _case("bandwidth=1TB/s:4TB/s:*2", without="--over peak.bf16=250TFLOP/s:1PFLOP/s:*2"),
        "measured": _case("timed.csv"),
        "all_roofs": _case(""),
        "duration": _case("1s"),
    },
    "size": {
        **OF_ROOM,
        "kv_block_size": _case("4096", "--gpu-memory-utilization 0.06"),
        "kv_reserve": _case("max"),
        "router": _case("least-loaded", "--max-num-seqs 1 --output-len 64 --requests 30"),
        "rate_curve": _case("0h:5,12h:40", without="--request-rate 20"),
        **COSTS,
        "max_usd_per_hour": _case("0.01"),
        "max_gpus": _case("1", "--ttft 1us"),
        "objective": _case("latency", "--max-gpus 4"),
        "confidence": _case("0.99", "--ttft 26ms"),  # about 16 ms: it holds with some 95 %
        "spare": _case("1"),
        "front": _case("usd", f"--price h100-sxm=9,{CHIP}=1", hardware=f"{CHIP},h100-sxm"),  # fast and dear, or cheap
        "autoscale": _case("1m", "--rate-curve 0h:5,12h:20"),
        "start_up": _case("3m", "--rate-curve 0h:5,12h:20 --autoscale 5m"),
        "trace": _case("TRACE", without="--request-rate 20"),
    },
}
#: Option of `plot` -> the kind of plot that draws it; of a load "latency-cdf", of a run "latency".
PLOTS = {
    "bandwidth": "bandwidth",
    "target": "bandwidth",
    "vary": "frontier",
    "metric": "waterfall",
    "over": "figure",
    "measured": "roofline",
    "all_roofs": "roofline",
    "find_rate": "latency-rate",
    "gpu_memory_utilization": "memory",
}
#: Options of the output: they change no figure, but where, how and how much of an answer is printed, or its status.
OUTPUT = {
    *("format", "output", "no_fit_check", "scheduler", "timeline", "depth", "rows", "emit", "explain", "table", "page"),
    *("brief", "full", "theme", "style", "help", "waterfall", "junit"),
}
#: Commands without a run of their own, or with the answers of analyze -> the file that tests them.
ELSEWHERE = {
    "page": "test_offline_page.py: it holds the answers of analyze, in which every option is tried",
    "survey": "test_survey.py",
    "serve": "test_server_safety.py",
    "mcp": "test_mcp.py",
    "calibrate": "test_calibrate_run.py, test_calibrate_fit.py, test_ledger.py",
    "models": "test_cli.py",
    "hardware": "test_cli.py",
    "techniques": "test_cli.py",
}

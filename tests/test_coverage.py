"""The page of what the survey and the other first documents name: complete, true, and every command runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from llmviewer.cli import main
from llmviewer.techniques.registry import TECHNIQUES

DOCS = Path(__file__).resolve().parent.parent / "docs"
#: Methods and systems that the documents name, in their order.
NAMED = """
diffusion decoders; DiT; Mask-Predict; OPT; BLOOM; Llama; ChatGPT; Gemini 1.5; Roofline model; LLM-Viewer; KV cache;
web viewer; LLM-QAT; TSLD; PB-LLM; LUT-GEMM; BCQ; LLM.int8(); ZeroQuant; GPTQ; AWQ; OWQ; SpQR; QuantEase; QuIP; Norm
Tweaking; BiLLM; SmoothQuant; RPTQ; OliVe; OVP; Outlier Suppression+; ZeroQuant-FP; FPTQ; KVQuant; KIVI; WKVQuant;
LoRA; PEQA; DFT; QLoRA; LQ-LoRA; LoftQ; QA-LoRA; pruning; low-rank factorization; distillation; Elbayad et al.;
CALM; FREE; ConsistentEE; SkipDecode; EE-LLM; linear jump; Deja Vu; PowerInfer; MatFormer; Sparse Mixer; GLaM;
GPT-3; ST-MoE; PaLM; Mixtral 8x7B; RECOMPILE; DeepSpeed-MoE; architecture search of experts; EdgeMoE; BiLD;
Leviathan et al.; Chen et al.; SpecTr; SpecInfer; LLMCad; DistillSpec; online speculative decoding; self-speculative
decoding; blockwise parallel decoding; Medusa; PaSS; EAGLE; FeatExtrapolator; LLMA; REST; Copy Is All You Need;
Skeleton-of-Thought; APAR; Jacobi; Gauss-Seidel; GS-Jacobi; lookahead decoding; NAT; SUNDAE; operator fusion; TVM;
FlashAttention; Flash-Decoding; DeepSpeed-inference; Deep-Fusion; xFormers; TensorRT-LLM; FlashDecoding++;
PagedAttention; ZeRO-Inference; Hugging Face Accelerate; FlexGen; LLM in a flash; ORCA; SARATHI; DeepSpeed-FastGen;
LightLLM; split and fuse; NVIDIA A6000; NVIDIA H100; hard disk; spatial architecture; Groq LPU; Graphcore IPU;
pipeline parallelism; GPipe; tensor parallelism; Megatron-LM; sequence parallelism; data parallelism; multi-query;
grouped-query attention; internal fragmentation; external fragmentation; sparsity; DistilBERT; Distilling Step by
Step; in-flight batching; assisted generation; vLLM; TGIS; PyTorch FSDP; IBM FMS; fms-extras;
Llama2 13B chat speculator; Granite 20B code
"""


@cache
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_page", DOCS / "coverage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows() -> list[list[Any]]:
    return [row for section in page().sections() for row in section["rows"]]


def test_the_page_is_that_of_its_rows() -> None:
    assert (DOCS / "coverage.md").read_text(encoding="utf-8") == page().page()


def test_every_named_method_and_system_has_a_row() -> None:
    listed = " / ".join(str(row[0]) for row in rows())
    named = [one.strip() for one in NAMED.replace("\n", " ").split(";")]
    assert [name for name in named if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", listed)] == []


def test_no_name_has_two_rows() -> None:
    listed = [name for row in rows() for name in page().names(row)]
    assert sorted(listed) == sorted(set(listed))


def test_every_option_of_a_technique_is_shown_or_none_that_is_named() -> None:
    """Options that no row shows answer what these documents do not ask."""
    commands = " ".join(row[2] for row in rows())
    spellings = {name: (f"--{name.replace('_', '-')}", *one.aliases) for name, one in TECHNIQUES.items()}
    shown = {name for name, texts in spellings.items() if any(f"{text} " in commands for text in texts)}
    assert set(TECHNIQUES) - shown == {
        "power_limit", "prefix_cache", "kv_cache_free_gpu_memory_fraction",
        "context_parallel_size",
    }  # fmt: skip


@pytest.mark.parametrize("section", range(len(page().sections())))
def test_every_command_runs(section: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _, _, command, *status in page().sections()[section]["rows"]:
        found = main(shlex.split(command.format(folder=tmp_path)))
        printed = capsys.readouterr()
        assert found == (status[0] if status else 0), (command, printed.err)
        assert len(printed.err.splitlines()) == 1 if status else printed.out or "plot" in command

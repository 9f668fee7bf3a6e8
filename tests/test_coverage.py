"""The page of what the survey and the other first documents name: complete, true, and every command runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from llmviewer.cli import main
from llmviewer.techniques.registry import TECHNIQUES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SEEDS = ROOT.parent / "shared" / "seeds"
SURVEY = SEEDS / "003_ce5c1f9de3b263a9.txt"
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
Step; static batching; in-flight batching; assisted generation; vLLM; TGIS; PyTorch FSDP; IBM FMS; fms-extras;
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
    assert (DOCS / "evidence" / "coverage.md").read_text(encoding="utf-8") == page().page()


@cache
def cited() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "tests" / "data" / "cited.yaml").read_text(encoding="utf-8"))
    return found


def without_row(names: list[str]) -> list[str]:
    """The names that are in no row, whatever their capitals."""
    listed = " / ".join(str(row[0]) for row in rows())
    pattern = r"(?<![\w-]){}(?![\w-])"
    return [name for name in names if not re.search(pattern.format(re.escape(name)), listed, re.IGNORECASE)]


def test_every_named_method_and_system_has_a_row() -> None:
    assert without_row([one.strip() for one in NAMED.replace("\n", " ").split(";")]) == []


def test_every_cited_work_has_a_row_or_is_background() -> None:
    assert without_row([*cited()["works"], *cited()["spellings"].values()]) == []
    listed = [one for group in ("works", "background") for works in cited()[group].values() for one in works]
    assert len(listed) == len(set(listed)) > 120


@pytest.mark.skipif(not SEEDS.exists(), reason="the texts of the documents are not here")
class TestDocuments:
    """Nothing that the texts cite or name is missing in tests/data/cited.yaml or in a row."""

    def test_every_citation_of_the_survey_is_listed(self) -> None:
        text = " ".join(SURVEY.read_text(encoding="utf-8").split())
        author = r"([A-Z][\w’'-]+)"
        found = re.findall(rf"{author}(?: et ?al\.?| and [A-Z][^ ,\[]+)?,? ?\[?(\d{{4}}[a-z]?)", text, re.ASCII)
        second = set(re.findall(rf"(?: and|和) {author}´?,? ?\[?\d", text, re.ASCII))
        listed = {one for group in ("works", "background") for works in cited()[group].values() for one in works}
        assert {f"{name} {year}" for name, year in found if name not in second} == listed

    def test_every_word_that_looks_like_a_name_has_a_row_or_is_listed(self) -> None:
        text = " ".join(path.read_text(encoding="utf-8") for path in sorted(SEEDS.glob("*.txt")))
        text = re.sub(r"<img[^>]*>|!\[[^]]*\]\([^)]*\)|https?://\S+|```.*?```|\$[^$]*\$", " ", text, flags=re.DOTALL)
        found = set(re.findall(r"(?<![\w./-])[A-Z][a-z]*[A-Z0-9][\w+-]*(?:\(\))?", text, re.ASCII))
        spelled = {cited()["spellings"].get(name, name) for name in found - set(cited()["words"])}
        assert len(found) > 100 and without_row(sorted(spelled)) == []
        assert set(cited()["words"]) <= found


def test_errors_in_rows_are_those_of_the_ledger() -> None:
    """FlexGen with its own placements on a T4, and KTransformers."""
    text = (DOCS / "evidence" / "ledger.md").read_text(encoding="utf-8")
    answers = {row[0]: row[1] for row in rows()}
    (mean,) = re.findall(r"^\| ktransformers \|.*?\| ([\d.]+)% \|", text, re.MULTILINE)
    assert f"the mean error of its four published figures is {float(mean):.0f} %" in answers["KTransformers"]
    section = text.partition("## flexgen\n")[2].partition("\n## ")[0]
    words = "Errors of its published throughputs on a T4, with its own placements: "
    for model, name in (("opt-30b", "OPT-30B"), ("opt-175b", "OPT-175B")):
        found = re.findall(rf"{model} .*offload weights[^|]*gpu_batches.* ([+-]\d+)% \|", section)
        assert len(found) == 4
        words += f"{name} {min(found, key=int)} to {max(found, key=int)} %, "
    assert words.removesuffix(", ") in answers["FlexGen"]


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
    """The server has a test of its own; test_survey.py runs the survey and reads what it writes."""
    for _, _, command, *status in page().sections()[section]["rows"]:
        if command.startswith(("serve ", "survey ")):
            continue
        found = main(shlex.split(command.format(folder=tmp_path)))
        printed = capsys.readouterr()
        assert found == (status[0] if status else 0), (command, printed.err)
        assert len(printed.err.splitlines()) == 1 if status else printed.out or command.split()[0] == "plot"


def test_the_web_viewer_answers_at_the_address_that_it_prints() -> None:
    pytest.importorskip("flask")
    (words,) = (row[2] for row in rows() if row[0] == "web viewer")
    with subprocess.Popen(
        [sys.executable, "-m", "llmviewer", *words.split()], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            (address,) = re.findall(r"http://\S+", server.stderr.readline())
            with urlopen(address, timeout=60) as answer:
                assert answer.status == 200 and "llmviewer" in answer.read().decode("utf-8")
        finally:
            server.terminate()

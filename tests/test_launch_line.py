"""Launch lines of servers are read as the model and options of a run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import emit
from llmviewer.planning.manifests.launch_line import launch_line
from llmviewer.server import calls
from llmviewer.server.tools import TOOLS

LINES = {
    "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --max-model-len 32k --port 8000": (
        "meta-llama/Llama-3.1-8B-Instruct",
        {"engine": "vllm", "tensor_parallel_size": "2", "max_model_len": "32000"},
        (),
    ),
    "VLLM_USE_V1=1 vllm serve Qwen/Qwen3-30B-A3B -tp 4 --enable-expert-parallel --max_model_len=8K -q fp8 --foo 3": (
        "Qwen/Qwen3-30B-A3B",
        {
            **{"engine": "vllm", "tensor_parallel_size": "4", "expert_parallel_size": "4"},
            **{"max_model_len": "8192", "quantization": "fp8"},
        },
        ("--foo 3",),
    ),
    "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.19.0 --model Qwen/Qwen3-8B --enforce-eager "
    "--dtype bfloat16 --kv-cache-dtype fp8_e4m3 --quantization compressed-tensors": (
        "Qwen/Qwen3-8B",
        {"engine": "vllm", "enforce_eager": True, "dtype": "bf16", "kv_cache_dtype": "fp8"},
        (),
    ),
    "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 16 --dp 8 --enable-dp-attention "
    "--mem-fraction-static 0.85 --chunked-prefill-size -1 --trust-remote-code": (
        "deepseek-ai/DeepSeek-V3",
        {
            **{"engine": "sglang", "tensor_parallel_size": "2", "data_parallel_size": "8"},
            **{"expert_parallel_size": "16", "gpu_memory_utilization": "0.85", "max_num_batched_tokens": "0"},
        },
        (),
    ),
    "trtllm-serve nvidia/Llama-3.3-70B-Instruct-FP8 --tp_size 4 --max_batch_size 256 --max_seq_len 4096": (
        "nvidia/Llama-3.3-70B-Instruct-FP8",
        {"engine": "trtllm", "tensor_parallel_size": "4", "max_num_seqs": "256", "max_model_len": "4096"},
        (),
    ),
    "./build/bin/llama-server -m /models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf -ngl 99 -c 16384 -fa on -np 4 -t 8": (
        "Meta-Llama-3.1-8B-Instruct",
        {
            **{"engine": "llama.cpp", "gpu_layers": "all", "max_model_len": "16384", "attention": "on"},
            **{"max_num_seqs": "4", "quantization": "q4_k_m"},
        },
        ("-t 8",),
    ),
    "llama-server -hf ggml-org/gpt-oss-20b-GGUF -c 0 --jinja --cpu-moe": (
        "ggml-org/gpt-oss-20b-GGUF",
        {"engine": "llama.cpp", "max_model_len": "0", "n_cpu_moe": "all"},
        (),
    ),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_states_a_model_and_options(line: str) -> None:
    found = launch_line(line)
    assert (found.model, dict(found.options), found.unread) == LINES[line]


@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("vllm", {"tensor_parallel_size": 2, "max_model_len": 8192, "max_num_seqs": 64, "kv_cache_dtype": "fp8"}),
        ("vllm", {"data_parallel_size": 2, "expert_parallel_size": 4, "tensor_parallel_size": 2, "dtype": "bf16"}),
        ("sglang", {"tensor_parallel_size": 2, "max_model_len": 8192, "gpu_memory_utilization": 0.8}),
        ("sglang", {"tensor_parallel_size": 1, "data_parallel_size": 4, "expert_parallel_size": 4}),
        ("trtllm", {"tensor_parallel_size": 2, "max_num_batched_tokens": 4096, "max_model_len": 8192}),
    ],
)
def test_what_is_launched_is_read_again(engine: str, options: dict[str, object]) -> None:
    asked = {"model": "mixtral-8x7b", "hardware": "h100-sxm", "engine": engine, "options": options}
    text = emit(engine, asked)
    found = launch_line("\n".join(line for line in text.splitlines() if not line.startswith("#")))
    assert found.model == "mistralai/Mixtral-8x7B-v0.1"
    stated = {name: str(value) for name, value in options.items() if value != 1}
    assert {name: found.options.get(name) for name in stated} == stated


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ls -l", "launches no server that is known; known: vllm serve, "),
        ("vllm serve --port 8000", "names no model"),
        ("vllm serve 'x", "cannot be read"),
        ("llama-server -m nowhere.gguf", "is not here, and its name states no format"),
        ("vllm serve x -tp two --enable-expert-parallel", "tensor_parallel_size is 'two'; allowed: whole numbers"),
        ("sglang serve --model x --dp 0 --enable-dp-attention", "data_parallel_size is"),
        ("python -m sglang.launch_server --model x --tp 6 --dp 4 --enable-dp-attention", "6 is no multiple of 4"),
    ],
)
def test_a_line_that_launches_nothing_is_refused(line: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        launch_line(line)


MANIFESTS = {
    "compose": """
services:
  web: {image: nginx}
  llm:
    image: vllm/vllm-openai:v0.19.0
    command: --model Qwen/Qwen3-8B --max-model-len 8192
""",
    "pod": """
kind: Pod
spec:
  containers:
    - name: server
      image: vllm/vllm-openai:v0.19.0
      command: [vllm, serve]
      args: [Qwen/Qwen3-8B, --max-model-len, 8192]
""",
    "shell": """
kind: Deployment
spec:
  template:
    spec:
      containers: [{image: x, command: [sh, -c], args: ["vllm serve Qwen/Qwen3-8B --max-model-len 8192"]}]
""",
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_container_of_a_manifest_is_read(name: str, tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(MANIFESTS[name], encoding="utf-8")
    found = launch_line(str(path))
    assert (found.model, dict(found.options)) == ("Qwen/Qwen3-8B", {"engine": "vllm", "max_model_len": "8192"})


@pytest.mark.parametrize("text", ["kind: Pod", "a: [", "{}\n---\n[1, x]"])
def test_a_manifest_without_a_server_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"has no container|is not valid YAML"):
        launch_line(str(path))


LINE = "vllm serve Qwen/Qwen3-8B --max-model-len 8192 --enforce-eager --swap-space 4 --foo"


def test_from_is_what_the_line_states(capsys: pytest.CaptureFixture[str]) -> None:
    typed = "--engine vllm --max-model-len 8192 --enforce-eager --hardware l4 --format json"
    assert main(["analyze", "Qwen/Qwen3-8B", *shlex.split(typed)]) == 0
    stated = capsys.readouterr().out
    for words in (["--from", LINE], [f"--from={LINE}"]):
        assert main(["analyze", *words, "--hardware", "l4", "--format", "json"]) == 0
        out, err = capsys.readouterr()
        assert (out, err) == (stated, "warning: of the launch line, not read: --foo\n")
    line = lv.launch_line(LINE)
    assert lv.analyze(line.model, "l4", **line.options).to_dict() == json.loads(stated)


def test_what_is_typed_beside_the_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--from", LINE, "--hardware", "l4", "--max-model-len", "4096", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert '"max_model_len": 4096' in out
    assert "warning: --max-model-len replaces 8192 of the launch line\n" in err


@pytest.mark.parametrize("words", [["simulate", "--request-rate", "1", "--duration", "60s"], ["compare"], ["advise"]])
def test_other_questions_take_a_line_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--from", LINE, "--hardware", "l4"]) == 0
    assert "vllm" in capsys.readouterr().out.lower()


def test_from_without_a_line_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--hardware", "l4", "--from"]) == 2
    assert "--from needs a launch line" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "python -m sglang.launch_server --model-path llama-3.2-1b --mem-fraction-static 7",
            "--mem-fraction-static is 7",
        ),
        ("llama-server -m llama-3.2-1b -c x", "-c is 'x'"),
    ],
)
def test_a_refusal_names_the_flag_of_the_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--hardware", "l4", "--from", line]) == 2
    assert capsys.readouterr().err.startswith(f"error: --from: {message}; allowed: ")


def test_other_doors_take_the_line_as_a_text_and_read_no_file() -> None:
    line = "vllm serve llama-3.2-1b --max-num-seqs 8 --foo 3 --gpu-memory-utilization 0.8"
    asked = {"hardware": "l4", "launch_line": line, "gpu_memory_utilization": 0.7}
    notes = ["of the launch line, not read: --foo 3", "gpu_memory_utilization replaces that of the launch line"]
    answer = json.loads(calls.answer("analyze", asked))
    plain = {"model": "llama-3.2-1b", "hardware": "l4", "engine": "vllm", "max_num_seqs": 8}
    told = json.loads(calls.answer("analyze", {**plain, "gpu_memory_utilization": 0.7}))
    assert answer == {**told, "warnings": [*notes, *told["warnings"]]}
    assert TOOLS["analyze"].called(asked)["warnings"][:2] == notes
    load = {**asked, "request_rate": 1, "requests": 20}
    assert json.loads(calls.answer("simulate", load))["warnings"][:2] == notes
    for text, message in (
        ("server.yaml", "a server reads no file"),
        ("echo hello", "launches no server that is known"),
        (3, "launch_line is 3; expected a string"),
    ):
        with pytest.raises(UserError, match=message):
            calls.answer("analyze", {"hardware": "l4", "launch_line": text})
    with pytest.raises(UserError, match="unknown option 'launch_line'"):
        calls.answer("sweep", {"model": "llama-3.2-1b", "hardware": "l4", "launch_line": line})

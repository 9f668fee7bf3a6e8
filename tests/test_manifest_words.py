"""Launch manifests: words that a shell leaves whole, flags that count what the engine counts, refusals in one line."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import EMITTERS, emit
from llmviewer.planning.manifests.commands import ENGINES
from llmviewer.planning.manifests.serving import serving_of
from tests.manifest_checks import commands, facts
from tests.manifest_grid import LAYOUTS, configuration

PAGE = (Path(__file__).parent.parent / "docs" / "reference" / "manifests.md").read_text(encoding="utf-8")
ODD = ["/models/it's here; rm -rf $HOME", "/m/$(touch x)`id`", "/m/a\nb", '/m/"q" && #x', "./-flag"]


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("path", ODD)
def test_an_odd_path_stays_one_word(engine: str, path: str) -> None:
    """A shell that runs the command with `printf` in front prints the path unchanged, and runs nothing within it."""
    options = {"tensor_parallel_size": "8", "pipeline_parallel_size": "2"}
    one = emit(engine, configuration({}, 2, engine, model=path))
    assert _words_of_a_shell(one)[{"vllm": 2, "sglang": 4, "trtllm": 1}[engine]] == path
    if engine != "trtllm":
        group = next(yaml.safe_load_all(emit("k8s", configuration(options, 32, engine, model=path))))
        for role in ("leader", "worker"):
            script = group["spec"]["leaderWorkerTemplate"][f"{role}Template"]["spec"]["containers"][0]["command"][2]
            assert path in _words_of_a_shell(script.replace("$$(", "$(").removeprefix("exec "))
    plain = next(yaml.safe_load_all(emit("k8s", configuration({}, 2, engine, model=path))))
    spec = plain["spec"]["template"]["spec"] if plain["kind"] == "Deployment" else {}
    assert path.replace("$(", "$$(") in spec["containers"][0]["command"]


def _words_of_a_shell(text: str) -> list[str]:
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("# "))
    script = "LWS_LEADER_ADDRESS=head LWS_WORKER_INDEX=1 HEAD_ADDRESS=head NODE_RANK=1; printf '%s\\0' " + text
    run = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr == ""
    return run.stdout.rstrip("\0").split("\0")


def test_ranks_of_the_second_computer_begin_after_those_of_the_first() -> None:
    """Sixteen data-parallel ranks on computers of 8 devices: the second one's first rank is 1 x 8."""
    group = next(yaml.safe_load_all(emit("k8s", configuration(LAYOUTS["dp 16, ep 16: two computers"][0], 32))))
    script = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["command"][2]
    words = _words_of_a_shell(script.replace("$$(", "$(").removeprefix("exec "))
    assert words[words.index("--data-parallel-start-rank") + 1] == "8"
    assert words[words.index("--data-parallel-address") + 1] == "head"


def test_a_computer_runs_fewer_ranks_than_devices_where_a_rank_has_several() -> None:
    """Eight ranks of two devices on computers of 8: four on each, so the second one's first rank is 1 x 4."""
    layout = {"tensor_parallel_size": "2", "data_parallel_size": "8", "expert_parallel_size": "16"}
    group = next(yaml.safe_load_all(emit("k8s", configuration(layout, 32))))
    script = group["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["command"][2]
    words = _words_of_a_shell(script.replace("$$(", "$(").removeprefix("exec "))
    assert words[words.index("--data-parallel-size-local") + 1] == "4"
    assert words[words.index("--data-parallel-start-rank") + 1] == "4"


def test_sglang_counts_devices_and_requests_of_all_ranks() -> None:
    """Experts over 2 x 4 devices: --tp-size 8 with attention on 4 ranks; 4 ranks x 32 sequences are 128."""
    options = {
        "tensor_parallel_size": "2",
        "data_parallel_size": "4",
        "expert_parallel_size": "8",
        "max_num_seqs": "32",
    }
    words = next(commands(emit("sglang", configuration(options, 16, "sglang"))))
    found = {flag: words[words.index(flag) + 1] for flag in ("--tp-size", "--dp-size", "--ep-size")}
    assert found == {"--tp-size": "8", "--dp-size": "4", "--ep-size": "8"}
    assert words[words.index("--max-running-requests") + 1] == "128"
    assert "--enable-dp-attention" in words


def test_a_format_that_needs_a_checkpoint_is_a_comment_and_no_flag() -> None:
    text = emit("vllm", configuration({"quantization": "w4a16"}, 2))
    assert "# quantization w4a16: MODEL must be a checkpoint stored so" in text
    assert "--quantization" not in text
    assert "--quantization fp8" in emit("vllm", configuration({"quantization": "w8a8-fp8"}, 2))
    assert "--kv-cache-dtype fp8 " in emit("vllm", configuration({"quantization": "w8a8kv8-fp8"}, 2))


def test_options_of_the_llm_api_are_those_of_the_version() -> None:
    options = {"data_parallel_size": "8", "expert_parallel_size": "8", "kv_cache_dtype": "fp8", "enforce_eager": None}
    text = emit("trtllm", configuration(options | {"kv_block_size": "32", "dtype": "bf16"}, 16, "trtllm"))
    extra = yaml.safe_load(text.split("<<'END'\n")[1].split("\nEND")[0])
    known = facts("trtllm")["options"]
    assert set(extra) <= set(known)
    assert extra["kv_cache_config"] == {"dtype": "fp8", "tokens_per_block": 32}
    assert set(extra["kv_cache_config"]) <= set(known["kv_cache_config"])
    assert extra["enable_attention_dp"] is True


def test_drafters_draft_as_many_tokens_as_the_configuration() -> None:
    """Three draft tokens are verified in a pass of four."""
    options = {"speculative": "draft=llama-3.2-1b,tokens=3,acceptance=0.8"}
    words = next(commands(emit("vllm", configuration(options, 2))))
    drafter = json.loads(words[words.index("--speculative-config") + 1])
    assert drafter == {"method": "draft_model", "model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 3}
    words = next(commands(emit("sglang", configuration(options, 2, "sglang"))))
    found = {flag: words[words.index(f"--speculative-{flag}") + 1] for flag in ("num-steps", "num-draft-tokens")}
    assert found == {"num-steps": "3", "num-draft-tokens": "4"}
    extra = emit("trtllm", configuration({"speculative": "mtp,tokens=3"}, 2, "trtllm"))
    assert "num_nextn_predict_layers: 3" in extra


def test_a_model_of_ours_is_served_by_its_hub_id() -> None:
    assert serving_of(configuration({}, 2, model="llama-3.1-8b")).model == "meta-llama/Llama-3.1-8B"
    assert serving_of(configuration({}, 2, model="/m/mine/config.json")).model == "/m/mine"
    assert serving_of(configuration({}, 2, model="Qwen/Qwen3-32B")).model == "Qwen/Qwen3-32B"


def test_pools_of_two_chips_keep_their_chips() -> None:
    wanted = configuration({"pools": "prefill=2xtp2,decode=1xtp8"}, 12, hardware="h100-sxm+h200")
    assert [pool.hardware for pool in serving_of(wanted).pools] == ["h100-sxm", "h200"]
    assert "nodeSelector" in emit("k8s", wanted)


def test_a_command_for_a_chip_without_an_image_says_so() -> None:
    assert "# no image is published for chips of Google" in emit("vllm", configuration({}, 2, hardware="tpu-v6e"))
    assert "no image" not in emit("vllm", configuration({}, 2))


def test_chips_of_amd_have_their_own_resource_and_image() -> None:
    deployment = next(yaml.safe_load_all(emit("k8s", configuration({}, 2, hardware="mi300x"))))
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"amd.com/gpu": "1"}
    assert "rocm" in container["image"]


@pytest.mark.parametrize(
    ("target", "change", "message"),
    [
        ("vllmm", {}, "unknown target of a manifest 'vllmm'; allowed: .*did you mean 'vllm'"),
        ("sglang", {}, "the configuration is one of engine vllm; emit vllm or size for sglang"),
        ("vllm", {"options": {"quantization": "spqr"}}, "no kernels for quantization 'spqr'; allowed: awq"),
        ("vllm", {"options": {"kv_cache_dtype": "int8"}}, "no KV cache in 'int8'; allowed: auto, fp8"),
        (
            "vllm",
            {"options": {"kv_cache_free_gpu_memory_fraction": "0.8"}},
            "no flag for kv_cache_free_gpu_memory_frac",
        ),
        ("vllm", {"options": {"prune": "2:4"}}, "unknown launch option 'prune'"),
        ("vllm", {"options": {"max_num_batched_tokens": "0"}}, "needs a limit of tokens per step"),
        ("vllm", {"options": {"engine": "trtllm-cpp"}}, "TensorRT-LLM before 1.0, whose flags are not emitted"),
        (
            "vllm",
            {"options": {"tensor_parallel_size": "two"}},
            "tensor_parallel_size is 'two'; expected a whole number",
        ),
        ("vllm", {"options": {"tensor_parallel_size": "0"}}, "is '0'; expected a whole number of at least 1"),
        ("vllm", {"options": {"gpu_memory_utilization": "nan"}}, "is 'nan'; expected a number above 0, up to 1"),
        (
            "vllm",
            {"options": {"speculative": "eagle3,tokens=3"}},
            "'eagle3': a launch needs the checkpoint of its heads",
        ),
        ("vllm", {"options": {"speculative": "ngram"}}, "needs the number of draft tokens"),
        ("vllm", {"options": {"batching": "static"}}, "unknown batching of a manifest 'static'"),
        ("vllm", {"devices": 3, "options": {"tensor_parallel_size": "2"}}, "has 3 devices, but its options need 2"),
        ("vllm", {"options": {"tensor_parallel_size": "12"}, "devices": 12, "hardware": "gb200"}, ""),
        ("k8s", {"options": {"tensor_parallel_size": "9"}, "devices": 9}, "9 devices does not divide evenly over 2"),
        ("k8s", {"hardware": "tpu-v6e"}, "publishes no image for tpu-v6e of Google"),
        ("dynamo", {"hardware": "mi300x"}, "images of Dynamo 1.1.0 are for chips of NVIDIA"),
        ("llm-d", {"options": {"engine": "sglang"}}, "starts vLLM; the configuration is one of engine sglang"),
        ("llm-d", {"model": "/models/mine"}, "fetches models from the Hub"),
        ("vllm", {"model": "-x/y"}, "would be read as a flag"),
    ],
)
def test_what_cannot_run_is_one_clear_line(target: str, change: dict[str, Any], message: str) -> None:
    wanted = {"model": "llama-3.1-8b", "hardware": "h100-sxm", "devices": 2, "options": {}} | change
    if not message:
        assert emit(target, wanted).count("vllm serve") == 2
        return
    with pytest.raises(UserError, match=message) as caught:
        emit(target, wanted)
    assert "\n" not in str(caught.value)


def examples() -> list[tuple[str, str, str]]:
    """Target, configuration and output of every example of the page."""
    return re.findall(
        r"^## `--emit ([a-z0-9-]+)`\n.*?^```json\n(.*?)^```\n.*?^```(?:sh|yaml)\n(.*?)^```$", PAGE, re.M | re.S
    )


def test_the_page_shows_an_example_of_every_target() -> None:
    assert [target for target, _, _ in examples()] == list(EMITTERS)


@pytest.mark.parametrize(("target", "wanted", "shown"), examples(), ids=list(EMITTERS))
def test_an_example_of_the_page_is_what_the_code_prints(target: str, wanted: str, shown: str) -> None:
    assert emit(target, json.loads(wanted)) == shown

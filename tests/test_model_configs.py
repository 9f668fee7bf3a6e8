"""Every file of model_configs/: it loads, every field is read, and the parameters are the published number."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer import models
from llmviewer.analysis.memory import weights_bytes
from llmviewer.core import data
from llmviewer.core.ir import check
from llmviewer.core.workload import chunk, decode, mixed, prefill
from llmviewer.hardware import specs
from llmviewer.models.load import parse
from llmviewer.techniques.kernels.flash_attention import flash_attention

NAMES = models.names()
#: Model families required by the first issue -> one of their models.
FAMILIES = {
    "GPT-2": "gpt2",
    "OPT": "opt-13b",
    "OPT-350m and its projections": "opt-350m",
    "GPT-J": "gpt-j-6b",
    "GPT-NeoX": "gpt-neox-20b",
    "Pythia": "pythia-1.4b",
    "BLOOM": "bloom",
    "Falcon-7b": "falcon-7b",
    "Falcon-40b": "falcon-40b",
    "MPT": "mpt-7b",
    "Llama 1": "llama-7b",
    "Llama 2": "llama-2-7b",
    "Llama 3": "llama-3-8b",
    "Llama 3.1": "llama-3.1-8b",
    "Llama 3.2": "llama-3.2-1b",
    "Llama 4": "llama-4-scout",
    "CodeLlama": "codellama-7b",
    "Yi": "yi-6b",
    "InternLM2": "internlm2-7b",
    "Baichuan2-7b": "baichuan2-7b",
    "Baichuan2-13b": "baichuan2-13b",
    "Mistral": "mistral-7b",
    "Mistral-Nemo": "mistral-nemo",
    "Mixtral": "mixtral-8x7b",
    "Qwen1.5": "qwen1.5-7b",
    "Qwen1.5-MoE": "qwen1.5-moe-a2.7b",
    "Qwen2": "qwen2-7b",
    "Qwen2.5": "qwen2.5-7b",
    "Qwen3": "qwen3-8b",
    "Qwen3-MoE": "qwen3-30b-a3b",
    "Qwen3-Next": "qwen3-next-80b-a3b",
    "Gemma 1": "gemma-7b",
    "Gemma 2": "gemma-2-9b",
    "Gemma 3": "gemma-3-4b",
    "Phi-1.5": "phi-1.5",
    "Phi-2": "phi-2",
    "Phi-3": "phi-3-mini",
    "Phi-3.5-MoE": "phi-3.5-moe",
    "Phi-4": "phi-4",
    "GPT-OSS": "gpt-oss-20b",
    "DeepSeek-V2-Lite": "deepseek-v2-lite",
    "DeepSeek-V2": "deepseek-v2",
    "DeepSeek-V3": "deepseek-v3",
    "DeepSeek-R1": "deepseek-r1",
    "Kimi-K2": "kimi-k2",
    "GLM-4": "glm-4-9b",
    "GLM-4.5": "glm-4.5",
    "ChatGLM3": "chatglm3-6b",
    "StarCoder 1": "starcoder",
    "StarCoder 2": "starcoder2-3b",
    "Command-R": "command-r",
    "Command-R+": "command-r-plus",
    "Command-R7B": "command-r7b",
    "Granite": "granite-3.1-8b",
    "DBRX": "dbrx",
    "OLMo-2": "olmo-2-7b",
    "OLMoE": "olmoe-1b-7b",
    "SmolLM3": "smollm3-3b",
    "Nemotron-4": "minitron-8b",
    "Nemotron-H": "nemotron-h-8b",
    "Nemotron-3-Nano": "nemotron-3-nano",
    "Mamba-1": "mamba-2.8b",
    "Mamba-2": "mamba-codestral-7b",
    "Jamba": "jamba-v0.1",
    "MiniMax-Text-01": "minimax-text-01",
    "MiniMax-M2": "minimax-m2",
    "Gemma 4": "gemma-4-31b",
    "Qwen3.5": "qwen3.5-9b",
    "MiMo-V2": "mimo-v2-flash",
}


def spec(name: str) -> dict[str, Any]:
    return data.read_known_yaml(data.folder("model_configs") / f"{name}.yaml")


def test_at_least_180_models() -> None:
    assert len(NAMES) >= 180


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_model(family: str) -> None:
    assert models.load(FAMILIES[family]).parameters > 0


@pytest.mark.parametrize(("name", "context"), [("starcoder", 8192), ("dbrx", 32768), ("gpt2", 1024)])
def test_a_stated_context_is_not_shortened_to_the_default_of_the_class(name: str, context: int) -> None:
    """GPTBigCode's class has 1,024 positions by default, DBRX's 2,048; the configs state more under other names."""
    assert models.load(name).max_context == context


@pytest.mark.parametrize("name", NAMES)
def test_every_file_states_its_source(name: str) -> None:
    fields = spec(name)
    assert fields["name"]
    assert fields["source"].startswith("https://")
    assert fields["parameters"]["source"].startswith("https://")
    assert fields.get("copy", "https://").startswith("https://")
    assert set(fields) <= {"name", "source", "copy", "parameters", "config"}
    assert set(fields["parameters"]) <= {"value", "source", "note", "rounded"}


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_the_published_number(name: str) -> None:
    """Exactly, or within 2 % if the published number is rounded."""
    published = spec(name)["parameters"]
    counted = models.load(name).parameters
    if published.get("rounded"):
        assert counted == pytest.approx(published["value"], rel=0.02)
    else:
        assert counted == published["value"]


@pytest.mark.parametrize("name", NAMES)
def test_an_additional_field_is_never_ignored(name: str) -> None:
    """The config loads, so all fields are read; one more field of the language model is an error."""
    fields = spec(name)["config"]
    parse(fields, name)
    added = {"attention_of_a_new_kind": True}
    text = {"text_config": {**fields["text_config"], **added}} if "text_config" in fields else added
    with pytest.raises(Exception, match="'attention_of_a_new_kind' is not supported"):
        parse({**fields, **text}, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_graph_is_valid(name: str) -> None:
    """Every activation is written before it is read, eager or fused; names of blocks and operators are unique."""
    model = models.load(name)
    fuse = flash_attention(specs.load("h100"))
    for step in (prefill(2.0, 300.0), decode(8.0, 5000.0), mixed(chunk(1.0, 64.0, 100.0), decode(3.0, 9.0))):
        graph = model.graph(step)
        for form in (graph, fuse(graph)):
            check(form)
            names = [(block.name, operator.name) for block, operator in form]
            assert len(set(names)) == len(names)
            assert len({block.name for block in form.blocks}) == len(form.blocks)


@pytest.mark.parametrize("name", NAMES)
def test_one_token_uses_at_most_all_parameters(name: str) -> None:
    model = models.load(name)
    assert 0 < model.active_parameters <= model.parameters


@pytest.mark.parametrize("name", [name for name in NAMES if "quantization_config" not in str(spec(name))])
def test_a_16_bit_checkpoint_takes_two_bytes_a_parameter(name: str) -> None:
    """Buffers that are not parameters (a router's correction) add little."""
    model = models.load(name)
    stored = weights_bytes(model.graph(decode(1.0, 0.0)))
    assert 2 * model.parameters <= stored <= 2 * model.parameters * (1 + 1e-6)


def test_model_names_and_aliases_are_unique() -> None:
    index = data.aliases("model_configs")
    names = [*NAMES, *(alias for listed in index.values() for alias in listed)]
    folded = [name.lower().replace("_", "-").replace(" ", "-") for name in names]
    assert sorted(name for name in set(folded) if folded.count(name) > 1) == []
    assert set(index) <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if "huggingface.co" in spec(name)["source"]])
def test_its_hub_id_is_an_alias(name: str) -> None:
    """https://huggingface.co/meta-llama/Llama-2-7b-hf/blob/main/config.json -> meta-llama/Llama-2-7b-hf."""
    hub_id = "/".join(spec(name)["source"].removeprefix("https://huggingface.co/").split("/")[:2])
    assert data.find("model_configs", hub_id, "model")[1] == name


@pytest.mark.parametrize(("stem", "aliases"), data.aliases("model_configs").items())
def test_an_alias_finds_its_model(stem: str, aliases: tuple[str, ...]) -> None:
    for alias in aliases:
        assert data.find("model_configs", alias, "model")[1] == stem
        assert data.find("model_configs", alias.upper(), "model")[1] == stem


def test_a_hub_id_loads_the_same_model() -> None:
    hub, stem = models.load("meta-llama/Llama-2-7b-hf"), models.load("llama-2-7b")
    assert (hub.name, hub.parameters, hub.dtype) == (stem.name, stem.parameters, stem.dtype)

"""Traffic of a step calculated from configs, and relations that hold for every bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmviewer import api, models
from llmviewer.analysis.evaluation import Evaluation, evaluate
from llmviewer.core import data
from llmviewer.core.ir import Role
from llmviewer.core.workload import Step, chunk, decode, prefill, verify
from llmviewer.hardware import specs

from .answers import analyze, roofline_of

#: Four sequences decode their 9000th token.
BATCH, KEYS = 4, 9000


def distinct_experts(experts: int, chosen: int) -> float:
    """Expected number of distinct experts of four tokens."""
    return experts * (1 - (1 - chosen / experts) ** BATCH)


def published_parameters(name: str) -> int:
    """Published number of parameters of the checkpoint."""
    path, _, _ = data.find("model_configs", name, "model")
    return int(data.read_yaml(path)["parameters"]["value"])


#: Parameters that a step does not read: unused embedding rows and experts.  Of tied tables the head reads all rows, and
#: the lookup reads some of them again.
UNREAD = {
    "llama-2-7b": (32000 - BATCH) * 4096,
    "llama-2-70b": (32000 - BATCH) * 8192,
    "falcon-7b": -BATCH * 4544,
    "gemma-2-9b": -BATCH * 3584,
    "opt-350m": (2050 - BATCH) * 1024 - BATCH * 512,
    "mixtral-8x7b": (32000 - BATCH) * 4096 + 32 * (8 - distinct_experts(8, 2)) * 3 * 4096 * 14336,
    "qwen3-next-80b-a3b": (151936 - BATCH) * 2048 + 48 * (512 - distinct_experts(512, 10)) * 3 * 2048 * 512,
    "jamba-v0.1": (65536 - BATCH) * 4096 + 16 * (16 - distinct_experts(16, 2)) * 3 * 4096 * 14336,
    "llama-4-scout": (202048 - BATCH) * 5120 + 48 * (16 - distinct_experts(16, 1)) * 3 * 5120 * 8192,
    "mamba-codestral-7b": (32768 - BATCH) * 4096,
}
#: Elements of keys, values and latents that one sequence reads: layers x 2 x KV heads x head_dim x keys.
KEYS_AND_VALUES = {
    "llama-2-7b": 32 * 2 * 32 * 128 * KEYS,
    "llama-2-70b": 80 * 2 * 8 * 128 * KEYS,
    "falcon-7b": 32 * 2 * 1 * 64 * KEYS,
    "opt-350m": 24 * 2 * 16 * 64 * KEYS,
    "mixtral-8x7b": 32 * 2 * 8 * 128 * KEYS,
    "gemma-2-9b": 2 * 8 * 256 * (21 * 4096 + 21 * KEYS),
    "gemma-3-12b": 2 * 8 * 256 * (40 * 1024 + 8 * KEYS),
    "gemma-4-26b-a4b": 25 * 2 * 8 * 256 * 1024 + 5 * 2 * 2 * 512 * KEYS,
    "gpt-oss-20b": 2 * 8 * 64 * (12 * 128 + 12 * KEYS),
    "llama-4-scout": 2 * 8 * 128 * (36 * (KEYS - 8192) + 12 * KEYS),
    "deepseek-v3": 61 * (512 + 64) * KEYS,
    "qwen3-next-80b-a3b": 12 * 2 * 2 * 256 * KEYS,
    "jamba-v0.1": 4 * 2 * 8 * 128 * KEYS,
    "mamba-codestral-7b": 0,
}
#: Elements of recurrent and convolution state of one sequence.
STATE = {
    "qwen3-next-80b-a3b": 36 * (32 * 128 * 128 + 4 * (2 * 16 * 128 + 32 * 128)),
    "jamba-v0.1": 28 * (8192 * 16 + 4 * 8192),
    "mamba-codestral-7b": 64 * (128 * 64 * 128 + 4 * (128 * 64 + 2 * 8 * 128)),
}


def step(name: str, what: Step, chip: str = "h200", **options: Any) -> Evaluation:
    return evaluate(models.load(name), roofline_of(chip, **options), what)


def traffic_elements(found: Evaluation, role: Role, *, written: bool = False) -> float:
    def of(operator: Any) -> float:
        return float(operator.write_bytes(role) if written else operator.read_bytes(role))

    return sum(of(row.operator) * row.block.repeats for row in found.rows)


@pytest.mark.parametrize("name", UNREAD)
def test_a_decode_step_reads_every_used_weight_once(name: str) -> None:
    read = traffic_elements(step(name, decode(float(BATCH), KEYS - 1.0)), Role.WEIGHT)
    assert read == pytest.approx(2 * (published_parameters(name) - UNREAD[name]), rel=1e-12)


def test_four_bit_experts_are_read_at_4_25_bits() -> None:
    """GPT-OSS-20B: 24 layers of 32 experts of 3 x 2880 x 2880 in MXFP4, biases and all else in 16 bit."""
    matrices, biases, share = 24 * 32 * 3 * 2880 * 2880, 24 * 32 * 3 * 2880, distinct_experts(32, 4) / 32
    rest = published_parameters("gpt-oss-20b") - matrices - biases - (201088 - BATCH) * 2880
    read = traffic_elements(step("gpt-oss-20b", decode(float(BATCH), KEYS - 1.0)), Role.WEIGHT)
    assert read == pytest.approx(matrices * share * 4.25 / 8 + 2 * (biases * share + rest), rel=1e-12)


@pytest.mark.parametrize("name", KEYS_AND_VALUES)
def test_a_decode_step_reads_its_context_and_writes_one_token(name: str) -> None:
    found, state = step(name, decode(float(BATCH), KEYS - 1.0)), STATE.get(name, 0)
    assert traffic_elements(found, Role.CACHE) == 2 * BATCH * (KEYS_AND_VALUES[name] + state)
    full = analyze(name, "h200").to_dict()["model"]["kv_cache_bytes_per_token"]
    assert traffic_elements(found, Role.CACHE, written=True) == BATCH * (full + 2 * state)


@pytest.mark.parametrize("form", ["naive", "absorbed"])
def test_latent_attention_traffic_matches_its_form(form: str) -> None:
    """DeepSeek-V3, one layer: naive attention reads 128 heads' keys and values of 128 that kv_b_proj has just written,
    and 64 rotated elements; absorbed, queries of 512 + 64 per head and the latent of 576."""
    model = api.configuration("deepseek-v3", "h200", latent_attention=form).model
    found = evaluate(model, roofline_of("h200"), decode(float(BATCH), KEYS - 1.0))
    row = next(row.operator for row in found.rows if row.operator.name == "attention")
    heads, all_keys = 128 * BATCH, BATCH * KEYS
    expected = {
        "naive": (heads * (128 + 64) + all_keys * 128 * (128 + 128), all_keys * 64, heads * 128),
        "absorbed": (heads * (512 + 64), all_keys * (512 + 64), heads * 512),
    }[form]
    got = (row.read_bytes(Role.ACTIVATION), row.read_bytes(Role.CACHE), row.write_bytes(Role.ACTIVATION))
    assert [float(bytes_) for bytes_ in got] == [2 * elements for elements in expected]


NAMES = models.names()
SCHEMES = ["none", "w8a8", "w8a8-fp8", "w4a16", "w4a8", "w4a4", "nvfp4", "mxfp4", "w8a16kv8", "w4a4kv4"]


def storable(model: str, scheme: str) -> str:
    """The scheme without its cache for encoder-decoders, whose caches are not stored in plain integers."""
    return scheme if models.load(model).encoder is None else scheme.partition("kv")[0]


@settings(max_examples=60)
@given(
    model=st.sampled_from(NAMES),
    chip=st.sampled_from(specs.names()),
    scheme=st.sampled_from(SCHEMES),
    attention=st.sampled_from(["flash", "eager"]),
    sizes=st.lists(st.tuples(*(st.integers(1, most) for most in (512, 10**5, 16))), min_size=1, max_size=4),
    budget=st.sampled_from([0, 2048]),
)
def test_no_utilization_exceeds_one(
    model: str, chip: str, scheme: str, attention: str, sizes: list[tuple[int, int, int]], budget: int
) -> None:
    """Neither MFU nor MBU, for any model, chip, number format and workload; otherwise a time is not a bound."""
    if models.load(model).is_encoder:  # whole inputs of up to 512 tokens, nothing decoded
        sizes, budget = [(batch, min(prompt, 512), 1) for batch, prompt, _ in sizes], 0
    if models.load(model).encoder is not None:  # inputs are read whole
        budget = 0
    batch, prompt, output = (list(column) for column in zip(*sizes, strict=True))
    requested: dict[str, Any] = {"batch_size": batch, "input_len": prompt, "output_len": output}
    scheme = storable(model, scheme)
    options: dict[str, Any] = {"quantization": scheme, "attention": attention, "max_num_batched_tokens": budget}
    found = analyze(model, chip, **requested, **options).columns()
    assert (found["prefill_mfu"] <= 1 + 1e-12).all()
    assert (found["decode_mbu"][np.array(output) > 1] <= 1 + 1e-12).all()
    assert np.isfinite(found["ttft_s"]).all()
    assert (found["ttft_s"] > 0).all()


#: Models whose time or traffic may fall as the context grows: a new chunk begins with one key (Llama 4), and latent
#: attention changes its form, chosen by FLOPs (GLM-5: 0.5 % less traffic in chunks of 512 tokens).
CHUNKED = [name for name in NAMES if name.startswith(("llama-4", "glm-5"))]
SIZES = np.unique(np.concatenate((np.arange(1.0, 65.0), np.geomspace(64, 2**20, 200).round())))
GROWING = {
    "longer prompts": prefill(1.0, SIZES),
    "longer prompts, 8 together": prefill(8.0, SIZES),
    "larger batches": prefill(SIZES, 512.0),
    "larger batches in decode": decode(SIZES, 2000.0),
    "longer contexts": decode(4.0 + 0.0 * SIZES, SIZES),
    "longer contexts of drafts": verify(4.0 + 0.0 * SIZES, SIZES, 4.0 + 0.0 * SIZES),
    "longer contexts of chunks": chunk(1.0 + 0.0 * SIZES, 512.0 + 0.0 * SIZES, SIZES),
}


@settings(max_examples=60)
@given(
    model=st.sampled_from(NAMES),
    chip=st.sampled_from(specs.names()),
    scheme=st.sampled_from(SCHEMES),
    attention=st.sampled_from(["flash", "eager"]),
    what=st.sampled_from(list(GROWING)),
)
def test_more_work_never_takes_less_time(model: str, chip: str, scheme: str, attention: str, what: str) -> None:
    if (model in CHUNKED and "contexts" in what) or (models.load(model).is_encoder and not what.endswith("prompts")):
        return
    found = step(model, GROWING[what], chip, quantization=storable(model, scheme), attention=attention)
    for values in (found.time_s, found.traffic_bytes, found.flops):
        grown = np.broadcast_to(np.asarray(values), SIZES.shape)
        assert (np.diff(grown) >= -1e-12 * grown[1:]).all()


def test_the_first_token_of_a_chunk_decodes_faster_than_the_last() -> None:
    """Llama-4-Scout: 36 of 48 layers see 8192 keys at the end of a chunk and 1 after it."""
    full, fresh = (float(step("llama-4-scout", decode(64.0, c)).time_s) for c in (8191.0, 8192.0))
    assert fresh < full

"""Training steps: memory and work of full fine-tuning, of adapters on quantized weights, and of speculators."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.planning.train import Training, train
from tests.answers import refusal

QLORA: dict[str, Any] = {"quantization": "qlora", "lora": "rank=64"}


def held(found: Training) -> float:
    """Bytes without those of the framework."""
    return found.total_bytes - found.framework_bytes


@pytest.mark.parametrize(
    ("model", "gigabytes"), [("llama-7b", 6.9), ("llama-13b", 11.3), ("llama-30b", 24.7), ("llama-65b", 45.0)]
)
def test_qlora_takes_the_published_memory(model: str, gigabytes: float) -> None:
    """Figure 6 of arXiv 2305.14314: adapters of rank 64 on all linear layers, one sequence of 512 tokens."""
    assert held(train(model, "a100", **QLORA)) / 1e9 == pytest.approx(gigabytes, rel=0.12)


def test_qlora_fits_65_billion_weights_on_48_gb() -> None:
    """The abstract of arXiv 2305.14314: from more than 780 GB for 16-bit fine-tuning to less than 48 GB."""
    assert train("llama-65b", "a6000", **QLORA).fits
    full = train("llama-65b", "a6000")
    assert not full.fits
    assert 780e9 < held(full) < 800e9


@pytest.mark.parametrize("attention", ["flash-decoding", "flash-decoding++"])
def test_kernels_that_split_the_context_of_decode_change_no_training_step(attention: str) -> None:
    plain, split = (train("llama-2-7b", "h100", attention=one, input_len=300) for one in ("flash", attention))
    assert split.step == plain.step


def test_mixed_precision_takes_16_bytes_per_weight() -> None:
    """ZeRO, arXiv 1910.02054: 2 of the weight, 2 of its gradient, 12 of AdamW and the weight in fp32."""
    step = train("llama-2-7b", "a100", optimizer="adamw+master").step
    states = step.weights_bytes + step.gradients_bytes + step.optimizer_bytes
    assert states == 16 * step.trained == 16 * 6_738_415_616


def test_work_is_eight_flop_per_weight_and_token_with_recomputation() -> None:
    """2 N T forward, twice that backward, and forward again for the layers; attention adds 1 % at 512 tokens."""
    found = train("llama-2-7b", "a100", input_len=512)
    linear = 6_738_415_616 - 32_000 * 4096
    assert found.step.matmul_flops == pytest.approx(8 * linear * 512, rel=0.02)
    plain = train("llama-2-7b", "a100", input_len=512, recompute=0.0)
    assert plain.step.matmul_flops == pytest.approx(6 * linear * 512, rel=0.02)


def test_adapters_by_hand() -> None:
    """Rank 8 on Llama-2-7b: 8 (4 x 8,192 + 3 x 15,104) per layer; gradients 2 bytes, AdamW 8 bytes each."""
    step = train("llama-2-7b", "a100", lora="rank=8").step
    assert step.trained == 32 * 8 * (4 * 8192 + 3 * 15_104)
    assert (step.gradients_bytes, step.optimizer_bytes) == (2 * step.trained, 8 * step.trained)


def test_frozen_weights_have_no_gradient() -> None:
    """Backward work of adapters is about that of the gradients of the inputs: half of full fine-tuning's."""
    full, adapters = (train("llama-2-7b", "h100", efficiency="ideal", **one) for one in ({}, {"lora": "rank=8"}))
    assert adapters.step.matmul_flops == pytest.approx(full.step.matmul_flops * 6 / 8, rel=0.03)
    assert adapters.step.backward_s < 0.75 * full.step.backward_s  # beside products: norms, sums, adapters


def test_a_draft_that_learns_online_is_trained_alone() -> None:
    """Online speculative decoding (arXiv 2310.07177): verification has computed the distributions that the draft
    learns, so a step is 6 FLOP per weight and token of the draft; Llama-2-7b's forward pass would be 2 per weight."""
    alone = train("tinyllama-1.1b", "a100", batch_size=8, recompute=0.0).step
    beside = train(
        "llama-2-7b", "a100", batch_size=8, recompute=0.0, speculative="draft=tinyllama-1.1b,tokens=4,acceptance=0.7"
    ).step
    products = (1.1e9 - 32_000 * 2048) * 8 * 512
    assert alone.matmul_flops == pytest.approx(6 * products, rel=0.03)  # and attention
    assert alone.trained == beside.trained and alone.time_s < 0.5 * beside.time_s
    assert beside.matmul_flops - alone.matmul_flops == pytest.approx(2 * 6.6e9 * 8 * 512, rel=0.03)


def test_a_speculator_is_trained_on_its_frozen_model() -> None:
    """Medusa-1 (arXiv 2401.10774) trains the heads of Vicuna-7B on one A100: only they have gradients."""
    heads = train("llama-2-7b", "a100-80gb-pcie", batch_size=8, input_len=2048, speculative="medusa")
    assert heads.fits and heads.step.trained == 591_413_248
    alone = lv.analyze("llama-2-7b", "a100-80gb-pcie", batch_size=8, input_len=2048)
    assert heads.step.forward_s > float(alone.ttft_s) > 3 * heads.step.backward_s


def test_heads_run_on_every_token_of_the_batch() -> None:
    """Medusa's four heads, h h and h v each: forward and twice that backward, beside the model's forward pass."""
    step = train("llama-2-7b", "h100", speculative="medusa", recompute=0.0).step
    prompt = lv.analyze("llama-2-7b", "h100", input_len=512).to_dict()["stages"]["prefill"]["matmul_flops"]
    other_logits = 2 * 511 * 4096 * 32_000  # of a prompt only the last has one
    heads = step.matmul_flops - prompt - other_logits
    assert heads == pytest.approx(6 * 512 * 4 * (4096**2 + 4096 * 32_000), rel=1e-6)


def test_the_head_of_eagle_by_hand() -> None:
    """For Llama-2-7b without the vocabulary that it shares: 2 h h of the first matrix, and a layer."""
    found = train("llama-2-7b", "h100", speculative="eagle,tokens=5,acceptance=0.7")
    assert found.step.trained == pytest.approx(2 * 4096**2 + 4 * 4096**2 + 3 * 4096 * 11_008, rel=1e-3)


@pytest.mark.parametrize(("method", "name"), [("eagle", "EAGLE"), ("eagle3", "EAGLE-3")])
def test_a_head_is_trained_once_whatever_the_number_of_draft_tokens(method: str, name: str) -> None:
    five, one = (
        train("llama-2-7b", "h100", speculative=f"{method},tokens={tokens},acceptance=0.7") for tokens in (5, 1)
    )
    assert five.trained == name
    assert five.step == one.step


def test_adapters_of_every_published_preset_train() -> None:
    """QA-LoRA, LoftQ, LQ-LoRA and PEQA differ in the format of the frozen weights alone."""
    names = ("qlora", "loftq", "lq-lora", "qa-lora", "peqa")
    found = {name: train("llama-7b", "a100", lora="rank=16", quantization=name).step.weights_bytes for name in names}
    assert found["loftq"] == found["qlora"]
    assert found["lq-lora"] < found["peqa"] < found["qlora"] < found["qa-lora"]


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 16), length=st.sampled_from([128, 512, 2048]), share=st.floats(0.0, 1.0))
def test_recomputation_trades_time_for_memory(batch: int, length: int, share: float) -> None:
    some, none = (
        train("llama-3.2-1b", "h100", batch_size=batch, input_len=length, recompute=one) for one in (share, 0.0)
    )
    assert some.step.time_s >= none.step.time_s
    every = train("llama-3.2-1b", "h100", batch_size=batch, input_len=length)
    assert every.step.activations_bytes <= none.step.activations_bytes * (1 + 1e-12)


def test_paged_state_is_on_the_host() -> None:
    paged, plain = (train("llama-7b", "a100", optimizer=one, **QLORA).step for one in ("paged-adamw", "adamw"))
    assert (paged.host_bytes, paged.optimizer_bytes) == (plain.optimizer_bytes, 0.0)


def test_paged_state_crosses_the_link_twice_a_step() -> None:
    """Adapters of rank 64 on the 7 matrices of 32 layers of Llama-7b: 64 x (4 x 2 x 4096 + 3 x (4096 + 11008)) x 32 =
    159.9 M weights with 8 bytes of state, in and out over PCIe 4.0: 2 x 1.279 GB / 31.5 GB/s = 81.2 ms, 101.5 ms at 0.8
    of that rate."""
    state = 8 * 64 * 32 * (4 * 2 * 4096 + 3 * (4096 + 11008))
    for efficiency, share in (("ideal", 1.0), ("calibrated", 0.8)):
        paged, plain = (
            train("llama-7b", "a6000", optimizer=one, efficiency=efficiency, **QLORA).step
            for one in ("paged-adamw", "adamw")
        )
        assert paged.optimizer_s - plain.optimizer_s == pytest.approx(2 * state / (31.5e9 * share), rel=1e-9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--optimizer adam", "unknown optimizer 'adam'"),
        ("--recompute 2", "allowed: a share of the layers from 0 to 1"),
        ("-q w4a16", "add --lora, or remove -q"),
        ("--recompute most", "allowed: a share of the layers from 0 to 1, or selective"),
        ("-pp 2,microbatches=4", "allowed: --micro-batch-size"),
        ("-cp 2", "context parallelism (-cp); allowed: -tp, -pp, -dp"),
        ("-dp 4 --batch-size 3", "allowed: a sequence for each of 4 replicas, or more"),
        ("-dp 16", "choose a network for the rest: --network"),
        ("--zero 4 -dp 2", "allowed: 0, 1, 2, 3"),
        ("--zero 3", "there is one replica to divide by"),
        ("--virtual-stages 2", "there is no pipeline"),
        ("--cpu-offload optimizer --optimizer paged-adamw", "both for the host; use one"),
        ("--cpu-offload weights", "unknown --cpu-offload 'weights'"),
        ("--teacher llama-2-13b --speculative medusa", "--teacher beside --speculative"),
        ("-pp 2 --speculative medusa", "--speculative in a pipeline"),
        ("--batching continuous", "batching policies"),
        ("--offload weights=1", "--offload"),
        ("--hardware m2-ultra --optimizer paged-adamw", "m2-ultra has no link to a host"),
        ("--speculative ngram", "speculation without a draft model"),
        ("--speculative pass,tokens=4,acceptance=0.7", "speculation without a draft model or heads"),
        ("--speculative self,attention=0.5,mlp=0.5,tokens=4,acceptance=0.7", "speculation without a draft model"),
        ("--lora rank=8 --speculative medusa", "--lora beside --speculative: a step trains one of them; remove one"),
        ("--batch-size 0", "--batch-size"),
    ],
)
def test_what_a_step_does_not_have_is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(shlex.split(f"train llama-2-7b --hardware a100 {line}"), capsys)


def test_the_document_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("train llama-7b --hardware a100 --lora rank=8 --format json")) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "llmviewer.training/1" and found["fits"]
    parts = ("weights_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes")
    assert found["total_bytes"] == found["framework_bytes"] + sum(found["step"][name] for name in parts)
    assert main(shlex.split("train llama-65b --hardware a100")) == 1
    assert "GiB too many" in capsys.readouterr().out


def test_a_step_of_what_decodes_otherwise_is_refused() -> None:
    with pytest.raises(UserError, match=r"branches \(branches\), diffusion"):
        train("llada-8b", "h100", speculative="diffusion,block=32,steps=8")


WEIGHTS = 6_738_415_616
MIXED: dict[str, Any] = {"optimizer": "adamw+master", "batch_size": 8, "input_len": 256}


@pytest.mark.parametrize(
    ("zero", "bytes_per_weight"), [(0, 16.0), (1, 4.0 + 12.0 / 4), (2, 2.0 + 14.0 / 4), (3, 16.0 / 4)]
)
def test_zero_divides_what_its_stage_says(zero: int, bytes_per_weight: float) -> None:
    """ZeRO, arXiv 1910.02054, figure 1, for four replicas: 2 of the weight, 2 of its gradient, 12 of the optimizer."""
    step = train("llama-2-7b", "a100", data_parallel_size=4, zero=zero, **MIXED).step
    states = step.weights_bytes + step.gradients_bytes + step.optimizer_bytes
    assert states == pytest.approx(bytes_per_weight * WEIGHTS, rel=1e-12)


def test_zero_3_gathers_two_layers_and_the_gradients_of_one() -> None:
    """The largest unit of Llama-2-7b is a layer of 4 h h + 3 h f + 2 h weights, in 16 bit."""
    layer = 4 * 4096**2 + 3 * 4096 * 11_008 + 2 * 4096
    assert train("llama-2-7b", "a100", data_parallel_size=4, zero=3, **MIXED).step.gathered_bytes == 6 * layer
    assert train("llama-2-7b", "a100", data_parallel_size=4, zero=1, **MIXED).step.gathered_bytes == 0


@settings(max_examples=12, deadline=None)
@given(zero=st.integers(0, 3), replicas=st.sampled_from([1, 2, 4]), pipeline=st.sampled_from([1, 2]))
def test_more_devices_never_hold_more(zero: int, replicas: int, pipeline: int) -> None:
    def memory(data: int, stages: int) -> float:
        sizes: dict[str, Any] = {"data_parallel_size": data, "pipeline_parallel_size": stages}
        options = {**sizes, "network": "infiniband-ndr", "micro_batch_size": 1}
        return train("llama-3.2-1b", "h100", batch_size=16, zero=zero if data > 1 else 0, **options).total_bytes

    here = memory(replicas, pipeline)
    gathered = 0.0 if replicas > 1 or zero < 2 else 6 * 262_668_288  # of the embedding, which replicas gather whole
    assert memory(2 * replicas, pipeline) <= here + gathered + 1e-6
    assert memory(replicas, 2 * pipeline) <= here + 1e-6


@pytest.mark.parametrize(("replicas", "gib"), [(8, 77.0), (128, 62.0)])
def test_fsdp_takes_the_published_memory(replicas: int, gib: float) -> None:
    """torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, compiled: half of the products run
    again."""
    sizes: dict[str, Any] = {"batch_size": 2 * replicas, "input_len": 8192, "data_parallel_size": replicas}
    options: dict[str, Any] = {"zero": 3, "recompute": 0.5, "optimizer": "adamw+master", "network": "infiniband-ndr"}
    assert train("llama-3.1-8b", "h100-sxm", **sizes, **options).total_bytes / 2**30 == pytest.approx(gib, rel=0.08)


def test_devices_of_a_tensor_group_hold_their_part_of_the_logits() -> None:
    """The loss of Llama-3.2-1B is computed on 2 + 8 bytes of each of 128,256 logits, a quarter of them on a device
    (Megatron-LM, arXiv 1909.08053): with recomputation the head takes more than a layer."""
    tokens = 4 * 512
    one, four = (
        train("llama-3.2-1b", "h100", batch_size=4, tensor_parallel_size=n).step.activations_bytes for n in (1, 4)
    )
    inputs = (16 + 1) * tokens * 2048 * 2  # of 16 layers, and of the head
    assert one == pytest.approx(inputs + 10 * tokens * 128_256, rel=0.01)
    assert four == pytest.approx(inputs + 10 / 4 * tokens * 128_256, rel=0.01)


def test_a_pipeline_waits_for_p_minus_1_of_m_micro_batches() -> None:
    """(p - 1) / (m + p - 1) of the passes (GPipe, arXiv 1811.06965), 1/v of it with v parts (arXiv 2104.04473)."""
    plain, parts = (
        train("llama-2-7b", "h100", batch_size=8, pipeline_parallel_size=4, virtual_stages=v).step for v in (1, 2)
    )
    passes = plain.forward_s + plain.recompute_s + plain.backward_s
    assert plain.bubble_s / (passes + plain.bubble_s) == pytest.approx(3 / (8 + 3), rel=1e-12)
    again = parts.forward_s + parts.recompute_s + parts.backward_s
    assert parts.bubble_s / again == pytest.approx(3 / 8 / 2, rel=1e-12)


def test_the_first_stage_keeps_a_micro_batch_for_every_stage() -> None:
    """1F1B (arXiv 2205.05198, section 4.2.3): of four stages the first keeps at most four micro-batches."""
    three, four, eight = (
        train("llama-2-7b", "h100", batch_size=one, pipeline_parallel_size=4).step.activations_bytes
        for one in (3, 4, 8)
    )
    assert four - three == 8 * 512 * 4096 * 2  # inputs of the eight layers of a stage
    assert eight == four


def test_fsdp_gathers_weights_twice_and_reduces_gradients_once() -> None:
    """On the data sheet a device of 8 sends 7/8 of 2 N bytes three times over NVLink (450 GB/s); passes of 8 tokens
    hide as much of it as they take."""
    step = train(
        "llama-2-7b", "h100-sxm", data_parallel_size=8, zero=3, input_len=8, recompute=0.0, efficiency="ideal"
    ).step
    sent = 3 * 7 / 8 * 2 * WEIGHTS / 450e9
    assert step.exchange_s == pytest.approx(sent - step.forward_s - step.backward_s, rel=1e-9)


def test_zero_0_reduces_gradients_once_whatever_the_micro_batches() -> None:
    """An all-reduce sends 2 x 7/8 of 2 N bytes, beside the last backward pass."""
    step = train(
        "llama-2-7b", "h100-sxm", data_parallel_size=8, input_len=8, batch_size=16, micro_batch_size=1, recompute=0.0,
        efficiency="ideal",
    ).step  # fmt: skip
    assert step.exchange_s == pytest.approx(4 * 7 / 8 * WEIGHTS / 450e9 - step.backward_s / 2, rel=1e-9)


def test_the_host_holds_the_optimizer_and_runs_it() -> None:
    """ZeRO-Offload, arXiv 2101.06840: 2 bytes of each weight on the device, 2 + 12 on the host; 4 cross the link, and
    the host moves its states twice with gradient and weights."""
    found = train("llama-2-7b", "h100-sxm", cpu_offload="optimizer", efficiency="ideal", **MIXED)
    step, host = found.step, found.layout.host
    assert host is not None
    assert (step.weights_bytes, step.gradients_bytes, step.optimizer_bytes) == (2 * WEIGHTS, 0.0, 0.0)
    assert step.host_bytes == 14 * WEIGHTS and step.optimizer_s == 0.0
    link = float(found.configuration.chip.host_link_rate or 0.0)
    seconds = 4 * WEIGHTS / link + (2 * 12 + 6) * WEIGHTS / host.bandwidth_bytes_per_s
    assert step.offload_s == pytest.approx(seconds, rel=1e-9)
    weights = train("llama-2-7b", "h100-sxm", cpu_offload="parameters", **MIXED)
    assert weights.step.weights_bytes == 0.0 and weights.step.host_bytes == 16 * WEIGHTS


def test_selective_recomputation_lies_between() -> None:
    every, some, none = (
        train("llama-2-7b", "h100", recompute=one, input_len=2048).step for one in (1.0, "selective", 0.0)
    )
    assert every.activations_bytes < some.activations_bytes < none.activations_bytes
    assert every.time_s > some.time_s > none.time_s
    assert some.matmul_flops == none.matmul_flops  # only products are kept


def test_a_run_is_linear_in_its_tokens_and_costs_what_its_hours_do() -> None:
    options: dict[str, Any] = {"data_parallel_size": 8, "zero": 3, "batch_size": 64, "input_len": 2048, "price": 2.5}
    one, two = (train("llama-3.1-8b", "h100-sxm", tokens=tokens, **options).run for tokens in ("1e9", 2e9))
    assert one is not None and two is not None and one.kwh is not None
    for name in ("steps", "hours", "gpu_hours", "usd", "kwh"):
        assert getattr(two, name) == pytest.approx(2 * getattr(one, name), rel=1e-12)
    assert one.steps == 1e9 / (64 * 2048)
    assert one.usd == pytest.approx(2.5 * 8 * one.hours, rel=1e-12)
    assert 0.2 * 700 < 1e3 * one.kwh / one.gpu_hours < 1.4 * 700  # watts of a device of 700 W with its server


def test_mfu_is_work_without_recomputation_over_the_dense_peak() -> None:
    """PaLM, arXiv 2204.02311, appendix B, with causal pairs: 6 per weight and token, and attention."""
    found = train("llama-2-7b", "a100", batch_size=4, input_len=512)
    plain = 6 * (WEIGHTS - 32_000 * 4096) * 4 * 512
    document = found.to_dict()
    assert document["mfu"] == pytest.approx(plain / found.step.time_s / 312e12, rel=0.02)
    assert document["hfu"] > 1.3 * document["mfu"]


def test_a_teacher_runs_forward_beside_the_student() -> None:
    alone, taught = (train("llama-3.2-1b", "h100", teacher=name).step for name in (None, "llama-2-7b"))
    assert taught.weights_bytes - alone.weights_bytes == 2 * WEIGHTS
    assert taught.trained == alone.trained and taught.backward_s == alone.backward_s
    assert taught.matmul_flops - alone.matmul_flops == pytest.approx(2 * 6.6e9 * 512, rel=0.03)


def test_experts_of_one_device_are_divided_by_no_replica() -> None:
    """OLMoE-1B-7B: 64 experts of 3 h f in 16 layers; with one device in two for each half, all else as ZeRO says."""
    options: dict[str, Any] = {"data_parallel_size": 2, "expert_parallel_size": 2, "batch_size": 2}
    whole, zero = (train("olmoe-1b-7b", "h100", zero=zero, **options).step for zero in (0, 3))
    experts = 2 * 16 * 32 * 3 * 2048 * 1024
    assert zero.weights_bytes - experts == pytest.approx((whole.weights_bytes - experts) / 2, rel=1e-12)


def test_a_price_is_of_the_chip_or_named_as_unused() -> None:
    """A number alone is the price of the chip of the run; a list may have others, which a training has no use for."""

    def found(price: str) -> Training:
        return train("llama-3.2-1b", "h100-sxm", tokens=1e9, price=price)

    usd = [one.price.usd_per_hour for price in ("2", "h100=2", "a100=3,h100=2") if (one := found(price)).price]
    assert usd == [2.0, 2.0, 2.0]
    assert "--price has none of h100-sxm" in found("a100=3").warnings


def test_options_of_an_exchange_between_replicas_are_used() -> None:
    """Replicas exchange gradients, over the stated link in a node of eight and over the network beyond it."""
    link, network = {"link": "pcie"}, {"network": "infiniband-ndr"}
    two, all_devices = {"data_parallel_size": 2, "batch_size": 2}, {"data_parallel_size": 16, "batch_size": 16}

    def notes(**options: Any) -> list[str]:
        return [text for text in train("llama-3.2-1b", "h100-sxm", **options).warnings if "not used" in text]

    assert notes(**two, **link) == notes(**all_devices, **network) == []
    assert notes(**link) == ["--link: one device, not used"]
    assert notes(**two, **network) == ["--network: one node, not used"]


def test_what_does_not_fit_names_the_least_layout_that_does() -> None:
    """70.6 G weights of 16 bytes are 1.13 TB: 16 devices of 80 GiB with ZeRO 3, by doublings; 8 have 644 GiB."""
    options: dict[str, Any] = {"optimizer": "adamw+master", "input_len": 2048}
    found = train("llama-3.1-70b", "h100-sxm", **options)
    assert found.least == {"data_parallel_size": "16", "network": "infiniband-ndr", "zero": 3}
    assert not found.fits and train("llama-3.1-70b", "h100-sxm", **options, **found.least).fits
    assert train("llama-3.2-1b", "h100-sxm").to_dict()["least_layout"] is None


def test_two_stages_share_the_tokens_of_a_run_by_their_steps() -> None:
    """A speculator learns from long texts and then from short answers, here in five and two steps: for 5 x 8 x 4,000 +
    2 x 128 x 256 tokens five steps of the first stage and two of the second."""
    options: dict[str, Any] = {"speculative": "speculator,heads=3,acceptance=0.8/0.7/0.6", "batch_size": 8}
    found = train(
        "llama-2-13b", "a100", input_len=4000, second_stage="batch=128,length=256,ratio=0.4",
        tokens=5 * 8 * 4000 + 2 * 128 * 256, **options,
    )  # fmt: skip
    run, second = found.run, train("llama-2-13b", "a100", input_len=256, **{**options, "batch_size": 128})
    assert run is not None and run.steps == pytest.approx(5.0)
    assert run.hours * 3600 == pytest.approx(5 * found.step.time_s + 2 * second.step.time_s)
    with pytest.raises(UserError, match="ratio"):
        train("llama-2-13b", "a100", second_stage="batch=128,length=256")

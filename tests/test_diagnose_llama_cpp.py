"""Recordings of llama.cpp: unmarked passes, products in its order, fused attention and fused gate and up."""

from __future__ import annotations

from typing import Any

import pytest

from llmviewer.api.configuration import configuration
from llmviewer.calibrate.diagnosis.annotation import Stated
from llmviewer.calibrate.diagnosis.call import diagnosis_of
from llmviewer.calibrate.diagnosis.slots import kind_of, orders
from tests.served import cases, served

FLASH, EAGER = "llama.cpp, flash attention", "llama.cpp, prompt without flash attention"
EXPERTS, JOINED = "llama.cpp, prompt of experts", "llama.cpp, gate and up of experts in one kernel"


def _answer(title: str, passes: int, engine: str = "") -> dict[str, Any]:
    case = cases()[title]
    chosen = configuration(case["model"], case["hardware"], engine=engine or case["engine"], **case["options"])
    stated = Stated(**case["stated"])
    return diagnosis_of(served(case, passes=passes).recording, chosen, stated, "served").to_dict()


@pytest.mark.parametrize(
    ("title", "passes"), [(FLASH, 5), *((title, n) for title in (FLASH, EAGER, EXPERTS, JOINED) for n in (1, 2, 3))]
)
def test_unmarked_passes_are_told_apart_and_matched(title: str, passes: int) -> None:
    made = served(cases()[title], passes=passes)
    assigned, right = made.shares()
    assert assigned >= 0.98
    assert right >= 0.95
    answer = _answer(title, passes)
    assert answer["passes"] == passes
    assert not [one for one in answer["warnings"] if "have a kernel" in one]


def test_fused_attention_is_predicted_as_one_kernel() -> None:
    """Older builds have three kernels; one is recorded with its combination of parts in each of 32 layers."""
    answer = _answer(FLASH, 3, "llama.cpp==b6000")
    named = {one["name"]: one for one in answer["operators"]}
    assert "softmax" not in named
    assert sum(named["attention"]["kernels"].values()) == 3 * 2 * 32
    assert any("attention ran as one kernel" in one for one in answer["warnings"])
    assert not any("attention ran as one kernel" in one for one in _answer(FLASH, 3)["warnings"])
    three = {one["name"] for one in _answer(EAGER, 1)["operators"]}
    assert {"qk_matmul", "softmax", "sv_matmul"} <= three


def test_gate_and_up_of_one_kernel_are_one_operator() -> None:
    """One product per layer runs gate and up: it is set against the time of both, and the activation has no kernel."""
    answer = _answer(FLASH, 1)
    named = {one["name"]: one for one in answer["operators"]}
    joined = named["gate_up_proj"]
    assert named["mlp_act"]["verdict"] == "no kernel"
    assert "up_proj" not in named
    assert joined["measured_s"] == pytest.approx(32 * 66e-6)
    apart = {one["name"]: one["predicted_s"] for one in _answer_with_gate()["operators"]}
    whole = apart["gate_proj"] + apart["up_proj"]
    assert joined["predicted_s"] == pytest.approx(whole)
    assert {one["operator"] for one in answer["kernels"]} & {"gate_proj", "up_proj"} == set()
    parts = sum(part["amount_s"] for part in answer["parts"])
    assert parts == pytest.approx(answer["difference_s"], abs=1e-12)


def test_gate_and_up_of_experts_in_one_kernel_are_one_operator() -> None:
    """48 layers of 22 us, with the name of dense products; both products of the prompt have kernels of their own."""
    named = {one["name"]: one for one in _answer(JOINED, 1)["operators"]}
    assert named["expert_gate_up_proj"]["measured_s"] == pytest.approx(48 * 22e-6)
    assert "expert_gate_proj" not in named and "expert_up_proj" not in named
    apart = {one["name"]: one["measured_s"] for one in _answer(EXPERTS, 1)["operators"]}
    assert apart["expert_gate_proj"] == pytest.approx(48 * 240e-6, rel=0.05)
    assert apart["expert_up_proj"] == pytest.approx(48 * 240e-6, rel=0.05)


def _answer_with_gate() -> dict[str, Any]:
    """The diagnosis of the same pass with gate and up as kernels of their own."""
    case = dict(cases()[FLASH])
    fused = next(line for line in case["layers"]["layer"].splitlines() if line.startswith("gate_proj|up_proj"))
    name = fused.split(" ", 2)[2]
    alone = "\n".join(f"{operator} 33 {name}" for operator in ("gate_proj", "up_proj"))
    layer = case["layers"]["layer"].replace(fused, alone + "\nmlp_act 2 void unary_gated_op_kernel<&(op_silu(float))")
    case["layers"] = {"layer": layer}
    chosen = configuration(case["model"], case["hardware"], engine=case["engine"], **case["options"])
    return diagnosis_of(served(case).recording, chosen, Stated(**case["stated"]), "served").to_dict()


def test_the_orders_of_products_keep_every_operator() -> None:
    slots = served(cases()[FLASH]).slots
    found = orders(slots)
    assert len(found) == 3
    for order in found:
        assert {slot.operator for slot in order} == {slot.operator for slot in slots}
    first = [slot.operator for slot in found[2] if slot.layer == 0]
    assert first[first.index("q_proj") : first.index("attention")] == ["q_proj", "rope", "v_proj", "k_proj", "rope"]
    normed = [slot.operator for slot in orders(served(cases()[EXPERTS]).slots)[1] if slot.layer == 0]
    order = ["q_proj", "q_norm", "rope", "k_proj", "k_norm", "rope", "v_proj"]
    assert normed[normed.index("q_proj") : normed.index("attention")] == order


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("kv_write", "void k_set_rows_quant<long, block_q8_0, 32, &(quantize_f32_q8_0_block)>"),
        ("embedding", "void k_get_rows<32, 2, &(dequantize_q4_0(void const*, long, int, float2&))>"),
        ("norm", "void norm_f32<1024>(float const*, float*, int, long, long, long, float)"),
        ("dequantize", "void dequantize_block_q4_K<__half>(void const*, __half*)"),
        ("attention", "void flash_attn_ext_f16<128, 128, 16, 4, false, false>"),
        ("attention_part", "void flash_attn_stream_k_fixup<128, 16, 4>"),
        ("matmul_part", "void mul_mat_q_stream_k_fixup<(ggml_type)12, 128, false>"),
    ],
)
def test_names_of_ggml_tell_their_kind(kind: str, name: str) -> None:
    assert kind_of(name) == kind

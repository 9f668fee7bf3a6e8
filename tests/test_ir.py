"""Tensors, accesses, operators, graphs: bytes follow from the accesses of an operator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from llmviewer import models
from llmviewer.core.dtypes import DTYPES, grouped_int
from llmviewer.core.ir import Access, Block, Graph, Operator, Place, Role, State, Tensor, check, whole
from llmviewer.core.kinds import Kind
from llmviewer.core.workload import decode, prefill

FP16 = DTYPES["fp16"]
WEIGHT = Tensor(name="w", elements=100.0, dtype=FP16, role=Role.WEIGHT)


def activation(name: str, elements: float = 10.0, place: Place = Place.DEVICE) -> Tensor:
    return Tensor(name=name, elements=elements, dtype=FP16, place=place)


def operator(name: str, reads: tuple[Access, ...], writes: tuple[Access, ...]) -> Operator:
    return Operator(name=name, kind=Kind.ELEMENTWISE, reads=reads, writes=writes, output_shape=(1.0,))


def chain(*names: str) -> Block:
    """hidden -> names[0] -> names[1] ..."""
    operators = []
    x = activation("hidden")
    for name in names:
        operators.append(operator(name, (whole(x),), (whole(activation(name)),)))
        x = operators[-1].output
    return Block(name="layer", operators=tuple(operators))


def test_traffic_is_the_sum_of_what_is_read_and_written() -> None:
    op = operator("op", (whole(activation("x")), Access(WEIGHT, 25.0)), (whole(activation("y", 5.0)),))
    assert op.traffic_bytes == 2 * (10 + 25 + 5)
    assert op.read_bytes(Role.WEIGHT) == 2 * 25
    assert op.read_bytes(Role.ACTIVATION) == 2 * 10
    assert op.write_bytes(Role.ACTIVATION) == 2 * 5


def test_stored_bits_may_be_a_fraction() -> None:
    table = replace(WEIGHT, dtype=grouped_int(4))
    op = operator("op", (whole(table),), (whole(activation("y")),))
    assert op.traffic_bytes == 100 * 4.125 / 8 + 2 * 10


@pytest.mark.parametrize("place", [Place.L2, Place.LINK, Place.HOST, Place.DISK])
def test_bytes_in_other_places_are_not_device_memory_traffic(place: Place) -> None:
    op = operator("op", (whole(activation("x", 10.0, place)),), (whole(activation("y")),))
    assert op.traffic_bytes == 2 * 10
    assert op.moved_bytes(place) == 2 * 10


def test_flops_of_an_operator_add_up_over_the_units() -> None:
    op = replace(operator("op", (), ()), matmul_flops=1.0, vector_flops=20.0, recurrence_flops=300.0, conv_flops=4000.0)
    assert op.flops == 4321
    assert op.vector_work == 4320


def test_counts_larger_than_an_int64_do_not_wrap() -> None:
    """2 x 10^12 tokens x 10^6 x 8 bytes: 1.6e19 is beyond 9.2e18."""
    huge = activation("x", 2e12 * 1e6)
    op = operator("op", (whole(replace(huge, dtype=DTYPES["fp64"])),), ())
    assert op.traffic_bytes == 1.6e19


def test_a_tied_table_is_stored_once_and_weights_of_every_layer() -> None:
    look_up = operator("embedding", (Access(replace(WEIGHT, name="embedding.weight"), 5.0),), (whole(activation("e")),))
    head = operator("lm_head", (whole(replace(WEIGHT, name="embedding.weight")),), (whole(activation("h")),))
    layer = operator("proj", (whole(WEIGHT),), (whole(activation("p")),))
    graph = Graph(
        blocks=(
            Block(name="embedding", operators=(look_up,), scope="model"),
            Block(name="layer", operators=(layer, layer), repeats=32),
            Block(name="head", operators=(head,), scope="model"),
        )
    )
    assert sum(tensor.elements * times for tensor, times in graph.stored_weights()) == 100 + 32 * 100


def test_a_graph_that_reads_an_unwritten_tensor_is_rejected() -> None:
    good = chain("a", "b", "c")
    check(Graph(blocks=(good,)))
    with pytest.raises(AssertionError, match="b"):
        check(Graph(blocks=(replace(good, operators=(good.operators[0], good.operators[2])),)))


def test_the_cache_grows_with_the_context_up_to_a_window() -> None:
    grows = State(name="k", dtype=FP16, per_token=8.0)
    slides = State(name="k", dtype=FP16, per_token=8.0, window=100.0)
    stays = State(name="s", dtype=FP16, per_sequence=50.0)
    contexts = np.array([10.0, 100.0, 1000.0])
    assert list(grows.resident_bytes(contexts)) == [160, 1600, 16000]
    assert list(slides.resident_bytes(contexts)) == [160, 1600, 1600]
    assert list(np.broadcast_to(stays.resident_bytes(contexts), 3)) == [100, 100, 100]


def test_prefill_and_decode_run_the_same_operators() -> None:
    model = models.load("llama-2-7b")
    long, short = model.graph(prefill(4.0, 2048.0)), model.graph(decode(1.0, 2047.0))
    assert [op.name for _, op in long] == [op.name for _, op in short]
    assert [op.kind for _, op in long] == [op.kind for _, op in short]


def test_llama_names_its_operators_as_the_interface_says() -> None:
    names = """
        embedding attn_norm q_proj k_proj v_proj rope qk_matmul softmax sv_matmul o_proj attn_add mlp_norm gate_proj
        up_proj mlp_act down_proj mlp_add final_norm lm_head
    """
    assert [op.name for _, op in models.load("llama-2-7b").graph(prefill(1.0, 8.0))] == names.split()


def test_rope_writes_keys_and_v_proj_values_to_the_cache() -> None:
    written = {
        op.name: [a.tensor.name for a in op.writes if a.tensor.role is Role.CACHE]
        for _, op in models.load("llama-2-7b").graph(prefill(1.0, 8.0))
    }
    assert {name: caches for name, caches in written.items() if caches} == {"rope": ["k_cache"], "v_proj": ["v_cache"]}

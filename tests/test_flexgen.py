"""FlexGen's search: shares by linear programs, and what the host computes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

import llmviewer as lv
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs

from .answers import analyze, refusal

WORK = {"input_len": 512, "output_len": 32}


def seconds(model: str, chip: str, batch: int, offload: str) -> float | None:
    """E2E of a request [s]; None if it does not fit, or the placement is refused."""
    try:
        found = analyze(model, chip, batch_size=batch, offload=offload, **WORK)
    except UserError:
        return None
    return float(found.analysis.e2e_s[0]) if found.fits else None


def placements() -> Iterator[str]:
    """Placements that a user may type."""
    shares = itertools.product((0, 0.5, 0.8617, 1), (0, 0.5, 1), (0, 1))
    for weights, kv, activations in shares:
        text = f"weights={weights},kv={kv},activations={activations}"
        yield from (text + way for way in ("", ",overlap=off", ",overlap=layer", ",to=disk"))
        yield from (text + way for way in (",compute=host", ",compute=attention"))
        yield from (f"experts,{text}{way}" for way in ("", ",compute=device"))
        if kv == 1:
            yield from (f"{text},gpu_batches=4{way}" for way in ("", ",compute=attention"))


@pytest.mark.parametrize(
    ("model", "chip", "batch"),
    [("opt-30b", "t4", 64), ("mixtral-8x7b", "rtx-4090", 16)],
)
def test_no_placement_that_a_user_can_type_is_faster(model: str, chip: str, batch: int) -> None:
    found = seconds(model, chip, batch, "flexgen,compute=host")
    others = {text: seconds(model, chip, batch, text) for text in placements()}
    fitting = {text: time for text, time in others.items() if time is not None}
    assert found is not None and len(fitting) > 8
    best = min(fitting, key=lambda text: fitting[text])
    assert found <= fitting[best] * (1 + 1e-6), best


def test_opt_30b_on_a_t4_computes_on_the_host() -> None:
    """Batch 64: 86 % of 59 GB of weights and 47 GB of cache over PCIe 3.0, 15.75 GB/s, take 6.2 s per step; 42 of 48
    layers on the host, and the cache of the rest, are read at 307 GB/s in 0.35 s: 17 times as fast."""
    copied, typed, found = (
        analyze("opt-30b", "t4", batch_size=64, offload=text, **WORK)
        for text in ("weights=0.8617,kv=1", "weights=0.8617,kv=1,compute=host", "flexgen,compute=host")
    )
    tpot = [float(one.analysis.tpot_s[0]) for one in (copied, typed, found)]
    assert tpot[0] / tpot[1] == pytest.approx(17.6, rel=0.02)
    assert tpot[2] <= tpot[1]
    assert float(found.analysis.e2e_s[0]) <= float(typed.analysis.e2e_s[0])
    assert "compute=host" in found.to_dict()["passes"][-1]


@pytest.mark.parametrize(
    ("compute", "ways"), [("device", ("",)), ("attention", ("", ",compute=attention")), ("host", (",compute=host",))]
)
def test_the_host_computes_at_most_what_is_asked(compute: str, ways: tuple[str, ...]) -> None:
    """FlexGen's host attends at most; no placement of the kinds that are allowed is faster."""
    found = analyze("opt-30b", "t4", batch_size=64, offload=f"flexgen,compute={compute}", **WORK)
    assert f"compute={compute}" in found.to_dict()["passes"][-1]
    for text in (f"weights={share},kv=1{way}" for share in (0.8617, 1) for way in ways):
        typed = seconds("opt-30b", "t4", 64, text)
        assert typed is None or float(found.analysis.e2e_s[0]) <= typed * (1 + 1e-6)


def test_only_queries_new_keys_and_results_cross_the_link_if_the_host_attends() -> None:
    """OPT-30B, one decode step of batch 2: of each layer 7168 query and 2 x 7168 new elements per sequence go to the
    host and 7168 come back, 2 bytes each; with copies all earlier keys and values come, 2 x 7168 each."""
    answer = analyze("opt-30b", "t4", batch_size=2, offload="kv=1,compute=attention", **WORK).to_dict()
    rows = {row["name"]: row for row in answer["stages"]["decode"]["operators"]}
    link_bytes_per_s = 15.75e9
    for name, elements in (("to_host", 3 * 7168), ("to_device", 7168)):
        assert rows[name]["time_s"] * link_bytes_per_s == pytest.approx(2 * elements * 2, rel=0.01)
    assert "load_kv" not in rows


def test_weights_are_copied_while_the_host_attends() -> None:
    """compute=attention: weights as copies of compute=device, attention as on the host of compute=host."""
    rows = analyze("opt-30b", "t4", batch_size=2, offload="weights=0.5,kv=1,compute=attention", **WORK).to_dict()
    names = {row["name"] for row in rows["stages"]["decode"]["operators"]}
    assert {"load_weights", "to_host", "to_device"} <= names and "load_kv" not in names
    assert any(name.endswith(" on host") for name in names)


def test_several_devices_copy_because_their_host_computes_nothing() -> None:
    found = analyze("opt-30b", "t4", batch_size=8, tensor_parallel_size=2, offload="flexgen", **WORK)
    assert "compute=device" in found.to_dict()["passes"][-1]


#: FlexGen's policy for OPT-30B on a T4: `--percent 20 80 0 100 0 100 --gpu-batch-size 48 --num-gpu-batches 3`.
#: Source: benchmark/flexgen/bench_suite.py in https://github.com/FMInference/FlexiGen
POLICY = "weights=0.8,kv=1,activations=1,gpu_batches=3"


def test_a_block_of_three_gpu_batches_copies_weights_once_and_keeps_activations_of_one() -> None:
    """OPT-30B, 144 sequences: a layer has 12 x 7168^2 + 13 x 7168 weights, 1.23 GB, of which 0.8 cross PCIe 3.0
    (15.75 GB/s) once for all three.  Each brings the keys and values of its 48 sequences, 511 x 2 x 7168 x 2 bytes.
    Activations are those of 48, so that a third of them is left beside the two layers of weights that are copied."""
    link, weights = 15.75e9, 0.8 * 2 * (12 * 7168**2 + 13 * 7168)
    whole, part = (analyze("opt-30b", "t4", batch_size=144, offload=o, **WORK) for o in (POLICY[:-14], POLICY))
    rows = {row["name"]: row["time_s"] for row in part.stage("decode")["operators"]}
    assert rows["load_weights"] == pytest.approx(weights / 3 / link, rel=1e-6)
    assert rows["load_kv"] == pytest.approx(48 * 511 * 2 * 7168 * 2 / link, rel=1e-6)
    of_batch, of_block = (float(one.analysis.memory.activations_bytes[0]) - 2 * weights for one in (part, whole))
    assert of_batch / of_block == pytest.approx(1 / 3, rel=1e-3)
    bound = [float(one.analysis.tpot_s[0]) for one in (part, whole)]
    assert bound[0] == pytest.approx(bound[1], rel=1e-3), "both are bound by the same copies"
    assert part.analysis.memory.host_bytes == pytest.approx(whole.analysis.memory.host_bytes)


def test_the_explanation_of_a_step_counts_every_gpu_batch() -> None:
    tree = lv.explain("tpot_s", "opt-30b", "t4", batch_size=144, offload=POLICY, efficiency="ideal", **WORK).root
    (block,) = tree.children
    batches, one_pass = block.children
    assert block.formula == "micro_batches * pass_s" and batches.value == 3.0
    loads = next(child.value for child in one_pass.children if child.name == "layer.load_weights")
    assert batches.value * loads == pytest.approx(48 * 0.8 * 2 * (12 * 7168**2 + 13 * 7168) / 15.75e9, rel=1e-6)


def test_every_gpu_batch_reads_the_weights_from_device_memory() -> None:
    """OPT-1.3B on the device: 24 layers of 12 x 2048^2 + 13 x 2048 weights and a head of 50272 x 2048, 2 bytes each, at
    320 GB/s: each of 7 further GPU batches of 2 adds their time to a step, as all of it is bound by memory."""
    whole, parts = (
        float(analyze("opt-1.3b", "t4", batch_size=16, offload=offload, **WORK).analysis.tpot_s[0])
        for offload in ("none", "weights=0,gpu_batches=8")
    )
    weights = 2 * (24 * (12 * 2048**2 + 13 * 2048) + 50272 * 2048)
    assert parts - whole == pytest.approx(7 * weights / 320e9, rel=2e-3)


def test_hidden_states_of_the_other_gpu_batches_wait_on_the_device() -> None:
    """OPT-30B, 144 prompts of 512: the states of 96 of them, 7168 x 2 bytes per token, wait while 48 are computed,
    unless they are on the host."""
    here, there = (
        float(analyze("opt-30b", "t4", batch_size=144, offload=o, **WORK).analysis.memory.activations_bytes[0])
        for o in ("weights=0.8,kv=1,gpu_batches=3", POLICY)
    )
    buffers = 2 * 48 * 512 * 7168 * 2  # of the hidden states that come from the host
    assert here - (there - buffers) == pytest.approx(96 * 512 * 7168 * 2, rel=1e-6)


def test_a_block_loads_the_experts_that_any_of_its_tokens_selects() -> None:
    """Mixtral, 2 of 8 experts: one sequence loads 2, a block of four GPU batches of one 8 (1 - 0.75^4) = 5.47."""
    one, block = (
        analyze("mixtral-8x7b", "rtx-4090", batch_size=batch, offload=f"experts,compute=device{more}", **WORK)
        for batch, more in ((1, ""), (4, ",gpu_batches=4"))
    )
    times = [
        next(r["time_s"] for r in x.stage("decode")["operators"] if r["name"] == "load_weights") for x in (one, block)
    ]
    assert 4 * times[1] / times[0] == pytest.approx(8 * (1 - 0.75**4) / 2, rel=1e-6)


@pytest.mark.parametrize(
    ("chip", "batch", "host"), [("rtx-4090", 144, "desktop-ddr5-6000"), ("h100", 128, "xeon-8480-ddr5")]
)
def test_dividing_the_batch_is_chosen_where_it_is_faster(chip: str, batch: int, host: str) -> None:
    """The search takes at least as long with one GPU batch, and with any other number that divides into fours."""
    free, *fixed = (
        seconds("opt-30b", chip, batch, f"flexgen,host={host}{more}")
        for more in ("", *(f",gpu_batches={count}" for count in (1, 2, 4)))
    )
    assert free is not None
    assert all(time is None or free <= time * (1 + 1e-9) for time in fixed)


def test_gpu_batches_divide_a_static_batch_on_one_stage(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"analyze opt-30b --hardware t4 --input-len 64 --output-len 2 --offload {POLICY}".split()
    for more, message in (
        ("--batch-size 2", "needs at least 3 sequences"),
        ("--batch-size 6 -pp 2", "remove one"),
        ("--batch-size 6 --speculative ngram", "not modelled with speculative(ngram)"),
        ("--batch-size 6 --batching continuous", "static batch"),
        ("--batch-size 6 --batching chunked,tokens=64", "GPU batches of --offload"),
    ):
        assert message in refusal([*words, *more.split()], capsys)


@pytest.mark.parametrize(
    ("model", "kv", "copies", "bytes_per_element"),
    [("opt-30b", "auto", 2, 2 + 2 * (4 + 4)), ("llama-2-70b", "fp32", 1, 4 + 8 * (4 + 4)), ("opt-30b", "fp32", 0, 4)],
)
def test_a_host_that_copies_its_cache_first_moves_more(
    model: str, kv: str, copies: int, bytes_per_element: int
) -> None:
    """FlexGen reads 16 bit, writes and reads two fp32 copies; Llama-2-70b of Transformers repeats 8 heads for 64."""
    text = f"kv=1,compute=attention,copies={copies}"
    row = next(
        row
        for row in analyze(model, "a100", offload=text, kv_cache_dtype=kv, **WORK).stage("decode")["operators"]
        if row["name"] == "attention on host"
    )
    width = 7168 if model == "opt-30b" else 1024
    assert row["time_s"] == pytest.approx(511 * 2 * width * bytes_per_element / 307.2e9, rel=5e-3)


def test_only_a_host_that_attends_copies_its_cache(capsys: pytest.CaptureFixture[str]) -> None:
    words = "analyze opt-30b --hardware t4 --offload kv=1,copies=1".split()
    assert "copies requires kv and compute" in refusal(words, capsys)


def test_a_placement_that_was_found_may_be_typed() -> None:
    """Shares on the host and its disk, delegated attention and GPU batches of `flexgen` give its time again."""
    options = {"batch_size": 144, **WORK}
    found = analyze("opt-30b", "rtx-4090", offload="flexgen,host=desktop-ddr5-6000", **options)
    plan = found.to_dict()["passes"][-1].removeprefix("offload(flexgen: ").rstrip(")")
    typed = re.sub(r"(\w+) ([\d.]+) host \+ ([\d.]+) disk", r"\1=\2+\3", plan)
    typed = re.sub(r"(\w+) ([\d.]+) host", r"\1=\2", typed).replace(" ", "")
    assert "+" in typed and "gpu_batches=" in typed
    again = analyze("opt-30b", "rtx-4090", offload=typed, **options)
    assert again.analysis.e2e_s == pytest.approx(found.analysis.e2e_s, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weights=0.7+0.4", "a sum of at most 1"),
        ("weights=0.5+0.2,compute=host", "tensors in its memory"),
        ("weights=0.5+", "a number from 0 to 1"),
    ],
)
def test_shares_of_host_and_disk_are_checked(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refusal(["analyze", "opt-30b", "--hardware", "t4", "--offload", text], capsys)


def test_a_cache_on_the_disk_is_attended_by_way_of_the_hosts_memory() -> None:
    """OPT-30B, one sequence: 511 x 2 x 7168 x 2 bytes of a layer come at 14 GB/s, 2 x 7168 x 2 go at 7.1 GB/s (PM1743);
    the host reads them in its memory, and none of them cross the link."""
    text = "kv=1,to=disk,compute=attention"
    rows = {r["name"]: r for r in analyze("opt-30b", "a100", offload=text, **WORK).stage("decode")["operators"]}
    disk = specs.disk("samsung-pm1743")[0]
    assert rows["fetch_kv"]["time_s"] == pytest.approx(511 * 4 * 7168 / disk.read_bytes_per_s)
    assert rows["put_kv"]["time_s"] == pytest.approx(4 * 7168 / disk.write_bytes_per_s)
    assert rows["attention on host"]["time_s"] == pytest.approx(511 * 4 * 7168 / 307.2e9, rel=5e-3)
    assert rows["fetch_kv"]["bound"] == "disk" and "load_kv" not in rows


def test_opt_175b_on_a_t4_is_bound_by_its_disk() -> None:
    """FlexGen's policy `--percent 0 50 0 0 0 100 --gpu-batch-size 32 --num-gpu-batches 8 --cpu`, 0.69 tokens/s (table
    2 of arXiv 2303.06865): a step reads half of 348 GB of weights and 256 x 527 x 96 x 4 x 12288 bytes of cache at
    2 GB/s, so that 31 steps alone take 12,600 s for 8,192 tokens."""
    text = "weights=0.5+0.5,kv=0+1,activations=1,compute=attention,copies=2,gpu_batches=8"
    found = analyze(
        "opt-175b", "t4", batch_size=256, offload=f"{text},host=gcp-n1-highmem-32-ddr4,disk=gcp-local-ssd", **WORK
    )
    step = 0.5 * 2 * 96 * 12 * 12288**2 / 2e9 + 256 * 527 * 96 * 4 * 12288 / 2e9
    assert float(found.analysis.tpot_s[0]) == pytest.approx(step, rel=0.01)
    assert float(found.output_tokens_per_s) == pytest.approx(0.69, rel=0.15)
    assert found.fits

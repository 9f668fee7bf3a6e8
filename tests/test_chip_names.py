"""Names of chips as people write them, and numbers before them: `2x3090` is two of them in a tensor group."""

from __future__ import annotations

from collections import defaultdict

import pytest

import llmviewer as lv
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.hardware import names, specs
from llmviewer.planning.call import size

CHIPS = specs.names()
MODEL = "llama-3.2-1b"
#: As people write -> the chip that they mean.
SPOKEN = {
    "5090": "rtx-5090", "4090": "rtx-4090", "3090ti": "rtx-3090-ti", "4070 Ti SUPER": "rtx-4070-ti-super",
    "4070tisuper": "rtx-4070-ti-super", "RTX 4060 Ti 16GB": "rtx-4060-ti-16gb", "7900xtx": "rx-7900-xtx",
    "7900 XT": "rx-7900-xt", "Radeon RX 9070 XT": "rx-9070-xt", "b580": "arc-b580", "a4000": "rtx-a4000",
    "4000 ada": "rtx-4000-ada", "RTX A6000": "a6000", "h20-141gb": "h20-141gb", "V100S": "v100s",
    "Mac Studio M3 Ultra": "m3-ultra", "MacBook Pro M4 Max": "m4-max", "M3 Ultra": "m3-ultra", "Apple M5": "m5",
    "13900k": "core-i9-13900k", "i9-13900K": "core-i9-13900k",
    "7950x": "ryzen-9-7950x",
    "AMD EPYC 9755": "epyc-9755", "8480+": "xeon-platinum-8480", "NVIDIA A100-SXM4-80GB": "a100-80gb-sxm",
    "A100 PCIe 80GB": "a100-80gb-pcie", "RTX 5090 32GB": "rtx-5090", "jetson thor": "jetson-thor-t5000",
    "EPYC Rome": "epyc-7742", "AMD EPYC Turin": "epyc-9755", "Xeon Sapphire Rapids": "xeon-platinum-8480",
    "Granite Rapids": "xeon-6980p",
}  # fmt: skip
#: What may be one of several chips -> those.
SEVERAL = {
    "RTX 4060 Ti": {"rtx-4060-ti-8gb", "rtx-4060-ti-16gb"},
    "rtx 4000": {"rtx-a4000", "rtx-4000-ada"},
    "mi50": {"mi50-16gb", "mi50-32gb"},
    "jetson-orin-nano": {"jetson-orin-nano-8gb", "jetson-orin-nano-super"},
    "gaudi": {"gaudi-2", "gaudi-3"},
    "Zen 5": {"epyc-9755", "ryzen-9-9950x"},
}


@pytest.mark.parametrize(("text", "chip"), SPOKEN.items())
def test_a_spoken_name_is_understood(text: str, chip: str) -> None:
    assert specs.load(text).name == chip


@pytest.mark.parametrize("stem", CHIPS)
def test_a_chip_is_known_by_its_makers_name(stem: str) -> None:
    title = specs.load(stem).title
    assert specs.load(title).name == stem
    assert specs.load(title.upper().partition("(")[0]).name == stem


def test_no_two_chips_share_a_form_of_a_name() -> None:
    chips = defaultdict(set)
    for stem in CHIPS:
        for name in (stem, *data.aliases("hardware_specs").get(stem, ())):
            for form in names.keys(name):
                chips[form].add(stem)
    assert not {form: stems for form, stems in chips.items() if len(stems) > 1}


@pytest.mark.parametrize(("text", "chips"), SEVERAL.items())
def test_a_name_of_several_chips_is_refused_with_all_of_them(text: str, chips: set[str]) -> None:
    with pytest.raises(UserError, match="may be one of several chips") as caught:
        specs.load(text)
    assert all(chip in str(caught.value) for chip in chips)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rtx-409", "did you mean 'rtx-4090'"),
        ("amd rtx 4090", "rtx-4090 is made by NVIDIA"),
        ("rtx 4090 48gb", "rtx-4090 has 24 GiB; .*capacity=48GiB"),
        ("RTX 4090 Laptop GPU", "unknown chip"),
        ("i9-13900", "unknown chip"),
        ("nvidia", "unknown chip"),
        ("2xh10", "unknown chip 'h10'; did you mean 'h100'"),
    ],
)
def test_another_chip_is_not_taken_for_a_known_one(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        lv.analyze(MODEL, text)


@pytest.mark.parametrize(
    ("text", "count", "name"),
    [
        ("2x3090", 2, "3090"),
        ("8xh100", 8, "h100"),
        ("2*4090", 2, "4090"),
        ("4 X RTX 5090", 4, "RTX 5090"),
        ("7900xtx", 0, "7900xtx"),
        ("0xh100", 0, "0xh100"),
        ("h100", 0, "h100"),
    ],
)
def test_a_number_before_a_chip(text: str, count: int, name: str) -> None:
    assert names.counted(text) == (count, name)


@pytest.mark.parametrize("options", [{}, {"engine": "vllm"}], ids=str)
def test_two_chips_are_a_tensor_group_of_two(options: dict[str, str]) -> None:
    counted = lv.analyze(MODEL, "2xh100", **options)
    assert counted.to_dict() == lv.analyze(MODEL, "h100", tensor_parallel_size=2, **options).to_dict()
    assert counted.to_dict() != lv.analyze(MODEL, "h100", **options).to_dict()


def test_a_stated_layout_has_the_number_of_devices() -> None:
    stated = lv.analyze(MODEL, "4xh100", tensor_parallel_size=2, pipeline_parallel_size=2)
    assert stated.to_dict() == lv.analyze(MODEL, "h100", tensor_parallel_size=2, pipeline_parallel_size=2).to_dict()
    for layout in ({"tensor_parallel_size": 4}, {"pipeline_parallel_size": 2}, {"data_parallel_size": 16}):
        with pytest.raises(UserError, match="8xh100 has 8 devices, and the options lay out"):
            lv.analyze(MODEL, "8xh100", **layout)


def test_lists_of_chips_have_numbers_of_their_own() -> None:
    found = lv.compare(MODEL, ["2xh100", "h100"])
    assert [int(one.analysis.system.parallelism.devices) for one in found.results] == [2, 1]


def test_two_runs_differ_in_the_number_before_a_chip() -> None:
    found = lv.why(f"{MODEL} --hardware 2xh100", f"{MODEL} --hardware h100 -tp 2")
    assert found.to_dict()["difference"] == 0.0
    with pytest.raises(UserError, match="2xh100 has 2 devices"):
        lv.why(f"{MODEL} --hardware 2xh100 -tp 4", f"{MODEL} --hardware h100")


def test_advice_is_a_command_that_runs() -> None:
    """A change of the tensor group would contradict a number before the chip."""
    line = lv.advise(MODEL, "2xh100").line
    assert line["hardware"] == ("--hardware", "h100") and line["tensor_parallel_size"] == ("-tp", "2")


def test_a_simulated_fleet_has_the_number_of_devices() -> None:
    load = {"request_rate": 2, "requests": 20, "replications": 1}
    assert lv.simulate(MODEL, "2xh100", **load).fleet.devices == 2
    assert lv.simulate(MODEL, "4xh100", tensor_parallel_size=2, replicas=2, **load).fleet.devices == 4
    assert lv.simulate(MODEL, "2xh100", pools="prefill=1xtp1,decode=1xtp1", **load).fleet.devices == 2
    with pytest.raises(UserError, match="4xh100 has 4 devices, and the options lay out 8"):
        lv.simulate(MODEL, "4xh100", replicas=2, **load)


def test_a_sizing_takes_it_as_the_most_devices() -> None:
    load = {"request_rate": 2, "ttft": "p99:1s", "quantization": "none", "kv_cache_dtype": "auto", "duration": "20s"}
    counted, bounded = size(MODEL, "2xh100", **load), size(MODEL, "h100", max_gpus=2, **load)
    assert counted.to_dict() == bounded.to_dict()
    assert counted.question.bounds.devices == 2
    for hardware, bound in (("8xh100", {"max_gpus": 4}), (["8xh100", "4xb200"], {}), ("8xh100,b200", {})):
        with pytest.raises(UserError, match="size has one bound on devices"):
            size(MODEL, hardware, **load, **bound)


def test_llama_cpp_divides_layers_unless_told_otherwise() -> None:
    """-sm layer is its default: each token passes the cards one after the other."""
    run = {"engine": "llama.cpp", "quantization": "q8_0"}
    counted = lv.analyze("llama-3.1-8b", "2x3090", **run).to_dict()  # type: ignore[arg-type]
    layers = lv.analyze("llama-3.1-8b", "rtx-3090", pipeline_parallel_size=2, **run).to_dict()  # type: ignore[arg-type]
    assert counted["metrics"] == layers["metrics"]
    tensors = lv.analyze("llama-3.1-8b", "2x3090", tensor_parallel_size=2, **run).to_dict()  # type: ignore[arg-type]
    assert tensors["metrics"]["tpot_s"] < 0.7 * counted["metrics"]["tpot_s"]


@pytest.mark.parametrize(
    ("name", "chip"),
    [
        ("nvidia_V100", "v100-32gb-sxm"),
        ("nvidia_A6000", "a6000"),
        ("nvidia_A100_40G", "a100-40gb-sxm"),
        ("nvidia_A100_80G", "a100-80gb-sxm"),
        ("nvidia_H100_SXM", "h100-sxm"),
    ],
)
def test_names_of_llm_viewer_are_understood(name: str, chip: str) -> None:
    """https://github.com/hahnyuan/LLM-Viewer/blob/main/hardwares/hardware_params.py has these five."""
    assert specs.load(name).name == chip

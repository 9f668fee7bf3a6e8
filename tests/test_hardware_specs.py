"""Every file of hardware_specs/: figures, sources, names; and rates that other tools have wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs

CHIPS = specs.names()
FOLDERS = ("hardware_specs", "hardware_specs/hosts", "hardware_specs/networks")
FILES = [(folder, stem) for folder in FOLDERS for stem in data.stems(folder)]

#: Devices that users asked for, by names that they may type.
REQUIRED = """
    rtx-a6000 a40 a100-40gb-sxm a100-80gb-sxm a100-40gb-pcie a100-80gb-pcie a800 a30 a10 v100 t4 l4 l40 l40s rtx-3090
    rtx-4090 rtx-5090 rtx-6000-ada rtx-pro-6000 h20 h100-sxm h100-pcie h100-nvl h800 h200 gh200 b200 b300 gb200
    jetson-agx-orin mi210 mi250x mi300x mi325x mi355x gaudi-2 gaudi-3 tpu-v4 tpu-v5e tpu-v5p tpu-v6e m2-ultra m3-max
    m4-max ascend-910b groq-lpu cerebras-wse-3 graphcore-ipu epyc-9654 xeon-platinum-8480 v100-16gb v100-pcie-16gb
    a10g l20 rtx-3060 rtx-3080 rtx-4060 rtx-4070 rtx-4080 rtx-5080 m1-pro m2-pro m3-pro m4-pro gb10 dgx-spark strix-halo
    rx-7900-xtx arc-pro-b60 m1-max m1-ultra m2 m2-max m3 m3-ultra m4 m5 m5-pro m5-max rtx-2080 rtx-2080-ti rtx-3060-ti
    rtx-3070 rtx-3070-ti rtx-3080-ti rtx-3090-ti rtx-4060-ti-16gb rtx-4070-super rtx-4070-ti rtx-4070-ti-super
    rtx-4080-super rtx-4090-d rtx-5060-ti-16gb rtx-5070 rtx-5070-ti rtx-a4000 rtx-a5000 rtx-4000-ada rx-6800
    rx-6800-xt rx-6900-xt rx-7900-xt rx-9070 rx-9070-xt r9700 arc-b580 p40 p100 mi50-16gb mi100 v100s
    jetson-orin-nano-8gb jetson-orin-nano-super jetson-thor h20-141gb ryzen-9-7950x core-i9-13900k core-ultra-9-285k
    epyc-7742 epyc-7763 epyc-9755 xeon-6980p
""".split()
#: Names that tables of published measurements use.
MEASURED = """
    a100_sxm a100_pcie a100_sxm_40gb h100_sxm h200_sxm b200_sxm gb200 gh200 l40s l4 a40 rtx_a6000 rtx4090 rtx_pro_6000
    mi250 mi300x apple_m2_ultra nvidia_A6000 h100 a100 gaudi2 b300_sxm b60 rtx_pro_6000_server
""".split()
VENDORS = ("nvidia", "amd", "intel", "google", "apple", "aws", "huawei", "geforce", "tesla", "instinct")


def spec(folder: str, stem: str) -> dict[str, Any]:
    return data.read_known_yaml(data.folder(folder) / f"{stem}.yaml")


def figures(tree: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping with a value, with the path of its keys."""
    if isinstance(tree, dict):
        if "value" in tree:
            yield path, tree
        for key, child in tree.items():
            yield from figures(child, f"{path}.{key}")


def figures_with(key: str) -> list[str]:
    return [stem for stem in CHIPS if key in spec("hardware_specs", stem)]


def test_at_least_35_devices() -> None:
    assert len(CHIPS) >= 35


@pytest.mark.parametrize("name", REQUIRED)
def test_every_requested_device_exists(name: str) -> None:
    assert specs.load(name).bandwidth_bytes_per_s


@pytest.mark.parametrize("name", MEASURED)
def test_names_used_in_tables_of_measurements_resolve(name: str) -> None:
    assert specs.load(name).name in CHIPS


@pytest.mark.parametrize(("folder", "stem"), FILES, ids="/".join)
def test_every_figure_is_positive_and_has_its_own_page(folder: str, stem: str) -> None:
    found = list(figures(spec(folder, stem)))
    assert found
    for path, figure in found:
        assert figure["value"] > 0, path
        assert figure["source"].startswith(("http://", "https://")), path
        assert set(figure) <= {"value", "source", "note"}, path


@pytest.mark.parametrize("stem", CHIPS)
def test_every_rate_and_size_has_a_source(stem: str) -> None:
    bare = {
        key: value
        for key, value in spec("hardware_specs", stem).items()
        if isinstance(value, (int, float)) or (isinstance(value, dict) and not list(figures(value)))
    }
    assert not bare


@pytest.mark.parametrize("stem", CHIPS)
def test_a_chip_loads_with_the_figures_a_roofline_needs(stem: str) -> None:
    chip = specs.load(stem)
    assert float(chip.bandwidth_bytes_per_s) > 1e10, "decimal bytes per second, not GB/s"
    assert float(chip.memory_bytes) > 1e8, "bytes, not GiB"
    assert float(chip.matrix_rate("bf16")) > 1e12, "every chip multiplies 16-bit numbers, or wider ones in their place"
    for figure in chip.figures.values():
        assert figure.source


@pytest.mark.parametrize("stem", figures_with("matrix_flop_per_unit_cycle"))
def test_dense_rates_equal_units_times_clock_so_sparse_figures_are_excluded(stem: str) -> None:
    fields = spec("hardware_specs", stem)
    for dtype, figure in fields["matrix_flop_per_unit_cycle"].items():
        derived = fields["units"]["value"] * fields["clock_ghz"]["value"] * figure["value"] * 1e-3
        assert fields["dense_tflops"][dtype]["value"] == pytest.approx(derived, rel=0.02), dtype


def test_most_chips_are_cross_checked() -> None:
    """The others publish no clock or no FLOP per clock."""
    assert len(figures_with("matrix_flop_per_unit_cycle")) >= 40


@pytest.mark.parametrize("stem", figures_with("vector_clock_ghz"))
def test_vector_rate_is_clock_times_lanes(stem: str) -> None:
    """A lane does one fused multiply-add, 2 FLOP: 128 lanes per SM on Hopper and Blackwell."""
    fields = spec("hardware_specs", stem)
    derived = fields["units"]["value"] * 128 * 2 * fields["vector_clock_ghz"]["value"] * 1e-3
    assert fields["vector_tflops"]["fp32"]["value"] == pytest.approx(derived, rel=0.01)
    assert fields["vector_clock_ghz"]["value"] > fields["clock_ghz"]["value"]


@pytest.mark.parametrize("stem", CHIPS)
def test_narrower_formats_are_never_slower(stem: str) -> None:
    """Except where the vendor removed units: B300 and GB300 have a twentieth of the int8 rate."""
    rates = dict(specs.load(stem).matrix_flops_per_s)
    if stem in ("b300", "gb300"):
        assert float(rates.pop("int8")) < float(rates["bf16"])
    order = (("fp32", "bf16"), ("fp16", "fp8"), ("fp16", "int8"), ("fp8", "fp6"), ("fp8", "fp4"), ("int8", "int4"))
    for wide, narrow in order:
        if wide in rates and narrow in rates:
            assert rates[narrow] >= rates[wide], (wide, narrow)


@pytest.mark.parametrize(("folder", "stem"), FILES, ids="/".join)
def test_stems_are_lower_case_words_without_a_maker(folder: str, stem: str) -> None:
    assert stem == stem.lower() and "_" not in stem and " " not in stem
    if folder == "hardware_specs":
        assert not stem.startswith(VENDORS)


def test_chip_names_and_aliases_are_unique() -> None:
    index = data.aliases("hardware_specs")
    names = [*CHIPS, *(alias for listed in index.values() for alias in listed)]
    folded = [name.lower().replace("_", "-").replace(" ", "-") for name in names]
    assert len(set(folded)) == len(folded)
    assert set(index) <= set(CHIPS)


@pytest.mark.parametrize(("stem", "aliases"), data.aliases("hardware_specs").items())
def test_an_alias_loads_its_chip(stem: str, aliases: tuple[str, ...]) -> None:
    for alias in aliases:
        assert specs.load(alias).name == stem
        assert specs.load(alias.upper().replace("-", "_")).name == stem


@pytest.mark.parametrize("stem", CHIPS)
def test_cards_whose_nvlink_needs_a_bridge_default_to_pcie(stem: str) -> None:
    chip = specs.load(stem)
    assert not chip.default_link or not chip.links[chip.default_link].needs_bridge


@pytest.mark.parametrize("stem", CHIPS)
def test_geforce_cards_alone_have_no_peer_access_over_pcie(stem: str) -> None:
    """https://github.com/NVIDIA/nccl-tests/issues/117; professional cards and other makers' have it."""
    chip = specs.load(stem)
    assert chip.through_host == chip.title.startswith("NVIDIA GeForce")
    assert not chip.through_host or chip.link_rate == chip.host_link_rate


@pytest.mark.parametrize(
    ("name", "dtype", "tflops", "others_have"),
    [
        ("a100-80gb-sxm", "bf16", 312, "624, the rate with sparsity"),
        ("a100-80gb-sxm", "int8", 624, "1248, the rate with sparsity"),
        ("h100-sxm", "bf16", 989.4, "1979, the rate with sparsity"),
        ("h100-sxm", "fp8", 1978.9, "3958, the rate with sparsity"),
        ("a6000", "fp16", 154.8, "309.7, the rate with sparsity"),
        ("a40", "bf16", 149.7, "299.4, the rate with sparsity"),
        ("l40s", "bf16", 362, "733, the rate with sparsity"),
        ("l40", "bf16", 181, "362, the rate with sparsity"),
        ("l4", "bf16", 121, "242, the rate with sparsity"),
        ("h20", "bf16", 148, "an H100's"),
        ("b200", "bf16", 2250, "4500, the rate with sparsity"),
        ("rtx-4090", "fp16", 165.2, "330.3, with 16-bit accumulation"),
        ("mi300x", "bf16", 1307.4, "2614.9, the rate with sparsity"),
        ("v100", "fp16", 125, "112, of the PCIe card"),
        ("a10g", "bf16", 70, "125, of the A10"),
        ("rtx-3060", "fp16", 25.5, "102, with sparsity and 16-bit accumulation"),
        ("rtx-4070", "fp16", 58.3, "466, with sparsity, 8 bit and 16-bit accumulation"),
        ("rtx-5080", "fp16", 112.6, "225.1, with 16-bit accumulation"),
        ("gb10", "bf16", 125, "213, of one benchmark, or 1000, of sparse fp4"),
        ("rx-7900-xtx", "fp16", 122.9, "61.4, of the vector units"),
    ],
)
def test_matrix_rates_are_dense_with_32_bit_accumulation(
    name: str, dtype: str, tflops: float, others_have: str
) -> None:
    assert specs.load(name).matrix_flops_per_s[dtype] == pytest.approx(tflops * 1e12, rel=1e-3), others_have


@pytest.mark.parametrize(
    ("name", "gb_per_s", "gib"),
    [
        ("h100-sxm", 3350, 80),
        ("a100-80gb-sxm", 2039, 80),
        ("a100-40gb-sxm", 1555, 40),
        ("a6000", 768, 48),
        ("l4", 300, 24),
        ("h200", 4800, 141),
        ("rtx-pro-6000-server", 1597, 96),
    ],
)
def test_bandwidth_is_decimal_and_capacity_binary(name: str, gb_per_s: float, gib: float) -> None:
    chip = specs.load(name)
    assert chip.bandwidth_bytes_per_s == gb_per_s * 1e9
    assert chip.memory_bytes == gib * 2**30


@pytest.mark.parametrize(
    ("gib", "names"),
    [(22.05, "a10 a10g l4"), (44.40, "l40 l40s a40"), (139.81, "h200"), (79.18, "h100-sxm"), (96.0, "m4-max m3-max")],
)
def test_cards_report_less_than_their_sheet_says(gib: float, names: str) -> None:
    """GDDR6 with ECC keeps check bits in the memory; a Mac's GPU takes three quarters of what it shares."""
    for name in names.split():
        assert specs.load(name).reported_memory_bytes == gib * 2**30


@pytest.mark.parametrize("stem", figures_with("memory_reported_gib"))
def test_no_driver_reports_more_than_is_fitted(stem: str) -> None:
    chip = specs.load(stem)
    least = 0.75 if chip.maker == "Apple" else 0.9
    assert chip.reported_memory_bytes is not None
    assert least <= chip.reported_memory_bytes / chip.memory_bytes < 1.0


@pytest.mark.parametrize("kind", ["sxm", "pcie"])
def test_a_v100_of_16_gib_is_that_of_32_gib_with_half_the_memory(kind: str) -> None:
    small, large = (spec("hardware_specs", f"v100-{gib}gb-{kind}") for gib in (16, 32))
    of_memory = {"memory_capacity_gib", "memory_reported_gib"}
    assert {key for key in large if small[key] != large[key]} == {"name", *of_memory}
    assert small["memory_capacity_gib"]["value"] * 2 == large["memory_capacity_gib"]["value"] == 32


def test_exponentials_run_at_the_clock_of_the_vector_units() -> None:
    """H100: 16 per cycle x 132 SM x 1.98 GHz = 4.18e12/s; its tensor cores run at 1.83 GHz.  A100: one clock, 1.41."""
    assert specs.load("h100-sxm").special_ops_per_s == pytest.approx(16 * 132 * 1.98e9)
    assert specs.load("a100").special_ops_per_s == pytest.approx(16 * 108 * 1.41e9)
    assert specs.load("mi300x").special_ops_per_s is None


def test_hosts_and_networks_have_bandwidths() -> None:
    hosts = [spec("hardware_specs/hosts", stem) for stem in data.stems("hardware_specs/hosts")]
    networks = [spec("hardware_specs/networks", stem) for stem in data.stems("hardware_specs/networks")]
    assert all({"memory_bandwidth_gb_per_s", "disk_read_gb_per_s"} & set(host) for host in hosts)
    assert {"memory_bandwidth_gb_per_s", "disk_read_gb_per_s"} <= {key for host in hosts for key in host}
    assert networks and all("gb_per_s_per_direction" in network for network in networks)


def test_links_are_per_direction() -> None:
    """NVLink 4 prints 900 GB/s for both directions together; PCIe 4.0 x16 is 16 lanes x 16 GT/s x 128/130 / 8."""
    assert specs.load("h100-sxm").links["nvlink"].bandwidth_bytes_per_s == 450e9
    assert specs.load("a6000").links["pcie"].bandwidth_bytes_per_s == pytest.approx(16 * 16e9 * 128 / 130 / 8, rel=1e-3)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 10**400, True, "fast", None, [1]])
def test_a_figure_that_is_not_a_positive_number_is_rejected(value: object) -> None:
    fields = spec("hardware_specs", "a6000")
    fields["memory_bandwidth_gb_per_s"] = {"value": value, "source": "https://example.org"}
    with pytest.raises(UserError, match="memory_bandwidth_gb_per_s: expected a positive number"):
        specs.parse(fields, stem="mine")


def test_an_unknown_key_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(UserError, match="did you mean 'memory_bandwidth_gb_per_s'"):
        specs.parse({**spec("hardware_specs", "a6000"), "memory_bandwidth_gbps": 1}, stem="mine")

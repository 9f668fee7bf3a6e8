"""Who lends constants to whom: origins of fits, their order, and how much each widens an interval."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import llmviewer as lv
from llmviewer.core.dtypes import DTYPES
from llmviewer.core.errors import UserError
from llmviewer.core.ir import Operator, Tensor, whole
from llmviewer.hardware.specs import load
from llmviewer.ops.collective import Collective, CollectiveShape, collective
from llmviewer.timing import profile as profiles
from llmviewer.timing.calibrated import Calibrated, calibrated
from llmviewer.timing.kernels.families import FAMILIES
from llmviewer.timing.lending import BASES, FIT_ERRORS, Kernel, Loan, adapt_constants, fit_error, nearest
from llmviewer.timing.profile import Profile


def profile(chip: str, *keys: str) -> Profile:
    """A profile of fits without constants, which a search does not read."""
    return Profile(
        chip=chip, title=chip, generation=load(chip).generation, provenance={}, texts=dict.fromkeys(keys, ""), path=chip
    )


def found(sources: tuple[Profile, ...], chip: str, engine: str, kind: str = "gemm/bf16", users: int = 0) -> Loan | None:
    family, variant = kind.split("/")
    generation = load(chip).generation
    return nearest(
        sources,
        Kernel(family=family, variant=variant, engine=engine, chip=chip, generation=generation, users=users),
    )


def exchange(devices: float, *, through_host: bool = False) -> Operator:
    """An all-reduce of 64 KiB."""
    x = Tensor(name="x", elements=2.0**15, dtype=DTYPES["bf16"])
    shape = CollectiveShape(
        pattern=Collective.ALL_REDUCE, devices=devices, size_bytes=2.0**16, through_host=through_host
    )  # fmt: skip
    return collective("sum", (whole(x),), (whole(x.called("y")),), 1.0, shape)


def lent(*arguments: object, **options: object) -> tuple[str, str]:
    """Basis, and chip: key of the fit that is found."""
    loan = found(*arguments, **options)  # type: ignore[arg-type]
    assert loan is not None
    return loan.basis, f"{loan.source.chip}: {loan.key}"


def test_only_a_fit_of_this_chip_and_engine_is_measured() -> None:
    own = profile("h100-sxm", "gemm/bf16/sglang", "gemm/bf16/vllm")
    assert lent((own,), "h100-sxm", "vllm") == ("measured", "h100-sxm: gemm/bf16/vllm")
    assert lent((own,), "h100-sxm", "trtllm") == ("other engine", "h100-sxm: gemm/bf16/sglang")
    assert lent((own,), "h200", "vllm") == ("transferred", "h100-sxm: gemm/bf16/vllm")
    assert lent((own,), "b200", "vllm") == ("transferred afar", "h100-sxm: gemm/bf16/vllm")
    assert lent((own,), "tpu-v5e", "vllm") == ("assumed", "h100-sxm: gemm/bf16/vllm")


def test_an_engine_s_special_kernel_is_not_measured_by_its_usual_one() -> None:
    own = profile("h100-sxm", "gemm/bf16/trtllm", "gemm/bf16/sglang")
    assert lent((own,), "h100-sxm", "sglang-triton") == ("other engine", "h100-sxm: gemm/bf16/sglang")


def test_another_engine_s_second_kernel_comes_after_its_usual_ones() -> None:
    own = profile("h100-sxm", "gemm/bf16/sglang-triton", "gemm/bf16/trtllm")
    assert lent((own,), "h100-sxm", "vllm") == ("other engine", "h100-sxm: gemm/bf16/trtllm")


def test_another_engine_on_another_chip_widens_twice() -> None:
    """Products: 5 % for the engine and 8 % for the chip are 9.4 % together, and 22 % afar 22.6 %."""
    donor = profile("h100-sxm", "gemm/bf16/sglang")
    assert lent((donor,), "h200", "vllm")[0] == "transferred, other engine"
    assert lent((donor,), "b200", "vllm")[0] == "transferred afar, other engine"
    errors = {basis: FIT_ERRORS["gemm", basis] for basis in ("other engine", "transferred", "transferred afar")}
    near, afar = (fit_error("gemm", f"{chip}, other engine") for chip in ("transferred", "transferred afar"))
    assert near == pytest.approx(math.hypot(errors["other engine"], errors["transferred"]))
    assert afar == pytest.approx(math.hypot(errors["other engine"], errors["transferred afar"]))


@pytest.mark.parametrize("family", [*FAMILIES, "a family without a row"])
def test_farther_origins_are_never_narrower_than_measured(family: str) -> None:
    errors = [fit_error(family, basis) for basis in BASES if "scaled" not in basis or (family, basis) in FIT_ERRORS]
    assert errors[0] == 0.0
    assert min(errors[1:]) > 0.0
    assert max(errors) == errors[-1], "a guess is the widest"


def test_fits_are_taken_in_the_order_of_their_origins() -> None:
    """Each fit is taken once all nearer ones are gone."""
    own, near, afar = "h200", "h100-sxm", "a100-80gb-sxm"
    held = [(own, "vllm"), (near, "vllm"), (own, "trtllm"), (near, "trtllm"), (afar, "vllm"), (afar, "trtllm")]
    for at, basis in enumerate(basis for basis in BASES[:-1] if "scaled" not in basis):
        left = held[at:]
        sources = tuple(
            profile(chip, *(f"gemm/bf16/{engine}" for name, engine in left if name == chip))
            for chip in (own, near, afar)
        )
        assert lent(sources, "h200", "vllm")[0] == basis


def test_torch_lends_to_torch_only() -> None:
    """If no other engine has such a kernel, its constants are a guess, not a measurement."""
    own, afar = profile("h200", "streaming/norm/torch"), profile("a100-80gb-sxm", "streaming/norm/vllm")
    assert lent((own, afar), "h200", "torch-compile", "streaming/norm") == ("measured", "h200: streaming/norm/torch")
    assert lent((own, afar), "h200", "vllm", "streaming/norm")[1] == "a100-80gb-sxm: streaming/norm/vllm"
    assert lent((own, afar), "h200", "sglang", "streaming/norm")[1] == "a100-80gb-sxm: streaming/norm/vllm"
    assert lent((own,), "h200", "vllm", "streaming/norm") == ("assumed", "h200: streaming/norm/torch")


def test_kernels_launched_by_the_host_lend_to_nobody() -> None:
    own = profile("h200", "collective/all_reduce/vllm-eager")
    assert found((own,), "h200", "vllm", "collective/all_reduce") is None
    assert lent((own,), "h200", "vllm-eager", "collective/all_reduce")[0] == "measured"


def test_a_user_s_profile_comes_first_unless_its_origin_is_worse() -> None:
    """Own vLLM kernels come first; torch's do not replace vLLM's, but on a chip without any they are the nearest."""
    mine, own = profile("h200", "gemm/bf16/vllm", "gemm/bf16/torch"), profile("h200", "gemm/bf16/vllm")
    for engine in ("vllm", "torch"):
        loan = found((mine, own), "h200", engine, users=1)
        assert loan is not None and loan.source is mine and loan.basis == "measured" and not loan.passed_over
    torch = profile("h200", "gemm/fp16/torch")
    passed = found((torch, own), "h200", "vllm", users=1)
    assert passed is not None and passed.source is own and passed.basis == "measured"
    assert passed.passed_over == "gemm/fp16/torch (assumed, ±90%)"
    cpu = profile("xeon-platinum-8480", "gemm/bf16/torch")
    loan = found((cpu, own), "xeon-platinum-8480", "vllm", users=1)
    assert loan is not None and loan.source is cpu and loan.basis == "other engine"


def test_a_user_s_transferred_fit_does_not_replace_a_measured_one() -> None:
    mine, own = profile("h100-sxm", "gemm/bf16/vllm"), profile("h200", "gemm/bf16/vllm")
    passed = found((mine, own), "h200", "vllm", users=1)
    assert passed is not None and (passed.source, passed.passed_over) == (own, "gemm/bf16/vllm (transferred, ±5%)")


@pytest.mark.parametrize("hardware", ["h100-sxm", "h200", "gh200"])
@pytest.mark.parametrize("engine", ["kernels", "vllm", "sglang", "trtllm"])
def test_torch_s_kernels_as_a_user_s_profile_widen_no_interval(hardware: str, engine: str, tmp_path: Path) -> None:
    """The torch fits of the shipped H100 profile, as a user would have fitted them, and what `analyze` says of them."""
    shipped = profiles.shipped("h100-sxm")
    assert shipped is not None
    documents = [f"fit: {key}\n{text}" for key, text in shipped.texts.items() if "/torch" in key]
    head = f"schema: {profiles.SCHEMA}\nchip: {hardware}\ngeneration: hopper\nprovenance: {{}}"
    path = tmp_path / "mine.yaml"
    path.write_text("\n---\n".join([head, *(text.rstrip() for text in documents)]) + "\n", encoding="utf-8")
    plain, mine = (lv.analyze("llama-3.1-8b", hardware, engine=engine, profile=own) for own in ("", str(path)))
    for metric in ("ttft_s", "tpot_s"):
        before, after = (found.to_dict()["metrics"]["intervals"][metric]["80"] for found in (plain, mine))
        assert after[1] / after[0] <= before[1] / before[0] * (1.0 + 1e-9)
    assert any("gemm/bf16/torch" in line and "is no nearer" in line for line in mine.to_dict()["provenance"]["assumed"])


def test_a_substitute_is_assumed_even_on_this_chip() -> None:
    """A transfer to a neighbour that was not measured: an all-gather first, then an all-reduce, then anything."""
    own = profile("h200", "collective/all_to_all/nccl", "collective/all_reduce/nccl", "collective/all_gather/nccl")
    assert lent((own,), "h200", "nccl", "collective/send") == ("assumed", "h200: collective/all_gather/nccl")
    rest = profile("h200", "collective/all_to_all/nccl")
    assert lent((rest,), "h200", "nccl", "collective/send") == ("assumed", "h200: collective/all_to_all/nccl")


def test_cards_with_and_without_peer_access_lend_only_to_their_kind() -> None:
    own = profile("l40s", "collective/all_reduce-host/nccl")
    donor = profile("rtx-pro-6000-server", "collective/all_reduce/nccl")
    assert lent((own, donor), "l40s", "nccl", "collective/all_reduce-host")[0] == "measured"
    assert lent((own, donor), "l40s", "nccl", "collective/all_reduce")[0] == "transferred afar"


def test_other_boxes_take_what_most_boxes_reach() -> None:
    """An L40S's row of four cards is of its box: 0.12 of the link's rate, where others reach 0.3 within e^1."""
    found = {
        chip: calibrated(load(chip)).select_fit("collective", exchange(4.0, through_host=True))
        for chip in ("l40s", "rtx-4090")
    }
    assert {one.fit.key for one in found.values()} == {"collective/all_reduce-host/vllm"}
    assert found["l40s"].fit.constants["crossing"] == pytest.approx(0.124, abs=2e-3)
    assert (found["rtx-4090"].fit.constants["crossing"], found["rtx-4090"].box_error) == (0.3, 1.0)
    assert found["rtx-4090"].fit_error > 1.0 > found["l40s"].fit_error == 0.0


def test_pairs_say_little_of_larger_groups() -> None:
    l40s = calibrated(load("l40s"))
    assert [l40s.select_fit("collective", exchange(n)).chip for n in (2.0, 4.0)] == ["l40s", "rtx-pro-6000-server"]


def test_a_family_without_any_fit_is_refused_or_assumed() -> None:
    """A product is refused; products of eager attention, which nobody measures, take start values and say so."""
    other = profile("h200", "streaming/norm/vllm")
    assert found((other,), "h200", "vllm") is None
    efficiency = Calibrated(sources=(other,), chip="h200", generation="hopper")
    with pytest.raises(UserError, match="no profile has constants for gemm"):
        efficiency._search("gemm", "bf16")
    assert efficiency._search("batched", "bf16").basis == "assumed"


def test_every_donor_has_the_name_of_a_chip() -> None:
    for donors in (*profiles.DONORS.values(), profiles.DEFAULT_DONORS):
        assert len(set(donors)) == len(donors)
        for name in donors:
            assert load(name).name == name


@pytest.mark.parametrize(
    ("chip", "donor"),
    [
        ("h20", "h100-sxm"),
        ("gb200", "b200"),
        ("rtx-5090", "rtx-pro-6000-server"),
        ("l4", "l40s"),
        ("a40", "a100-80gb-sxm"),
    ],
)
def test_the_first_donor_is_of_the_generation_or_the_nearest_one(chip: str, donor: str) -> None:
    assert profiles.DONORS[load(chip).generation][0] == donor


def test_weights_of_unmeasured_bits_run_at_the_speed_of_the_nearest_wider_kernel() -> None:
    own = profile("a100-80gb-sxm", "gemm/bf16/trtllm", "gemm/w8a16/trtllm", "gemm/w4a16/trtllm")
    served = {
        bits: lent((own,), "a100-80gb-sxm", "trtllm", f"gemm/w{bits}a16")[1].split(": ")[1] for bits in range(1, 9)
    }
    four, eight = "gemm/w4a16/trtllm", "gemm/w8a16/trtllm"
    assert served == {1: four, 2: four, 3: four, 4: four, 5: eight, 6: eight, 7: eight, 8: eight}


@pytest.mark.parametrize("hardware", ["a100", "a6000", "h100", "rtx-4090", "m3-max", "arc-pro-b60", "t4", "mi300x"])
def test_fewer_bits_of_weights_never_take_longer(hardware: str) -> None:
    times = [
        lv.analyze("llama-2-7b", hardware, quantization=f"w{bits}a16", output_len=2).tpot_s for bits in (2, 3, 4, 6, 8)
    ]
    assert times == sorted(times)


def test_cdna_4_lends_the_rate_of_its_units_but_not_that_of_their_operands() -> None:
    """Half the 16-bit peak per unit and clock, and 0.73 of it for each byte: `balance` is their ratio."""
    own = {"balance": 100.0, "floor": 5.0}
    assert adapt_constants(own, "gemm", "mi355x", "cdna3") == {"balance": 73.0, "floor": 5.0}
    assert adapt_constants(own, "gemm", "mi355x", "cdna4") == own
    assert adapt_constants(own, "gemm", "h100-sxm", "cdna3") == own

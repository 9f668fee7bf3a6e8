"""A user's torch kernels beside an engine's constants of other cards: what they scale, and what they leave alone."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.calibrate import profile_file
from llmviewer.calibrate.against import against
from llmviewer.calibrate.fit import predicted_seconds, with_constants
from llmviewer.calibrate.tables import RowGroup, row_groups
from llmviewer.cli import main
from llmviewer.hardware import specs
from llmviewer.timing import profile as profiles
from llmviewer.timing.calibrated import calibrated
from llmviewer.timing.lending import fit_error
from llmviewer.timing.profile import Fit, Profile
from tests.imports import ROOT
from tests.test_calibrate_fit import write_samples

pd = pytest.importorskip("pandas", reason="measured tables need pandas")

Ratios = Mapping[str, Mapping[str, float]]


def torch_fit(key: str, chip: str = "h100-sxm") -> Fit:
    shipped = profiles.shipped(chip)
    assert shipped is not None
    return shipped.fit(key)


def profile(tmp_path: Path, hardware: str, ratios: Ratios) -> str:
    """Path of a user's profile: the H100's torch products, with these ratios to the constants of other chips."""
    path = tmp_path / "mine.yaml"
    fits = [replace(torch_fit("gemm/bf16/torch"), against=ratios)]
    path.write_text(profile_file.text_of(specs.load(hardware), "mine", {"origin": "a test"}, fits), encoding="utf-8")
    return str(path)


def answers(hardware: str, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A prefill of 8192 tokens and its decode without and with a profile."""
    plain, own = (lv.analyze("llama-3.1-8b", hardware, input_len=8192, profile=one).to_dict() for one in ("", path))
    return plain, own


def operators(answer: Mapping[str, Any], stage: str) -> dict[str, Any]:
    return {one["name"]: one for one in answer["stages"][stage]["operators"]}


@pytest.mark.parametrize("ratio", [1.0, 1.05, 0.93])
def test_a_card_as_fast_as_its_kind_changes_no_time_and_no_interval(tmp_path: Path, ratio: float) -> None:
    """Products of an H100 differ by up to 12 % from those of another card without a reason to doubt its constants."""
    by_regime = {"memory": ratio, "compute": ratio}
    plain, own = answers("h100-sxm", profile(tmp_path, "h100-sxm", {"h100-sxm": by_regime}))
    assert plain["metrics"] == own["metrics"]
    assert any("gemm/bf16/torch (assumed, ±90%) is no nearer" in line for line in own["provenance"]["assumed"])


def test_a_card_with_slower_products_slows_the_engine_s_products_and_nothing_else(tmp_path: Path) -> None:
    """Torch's products take 1.2 of their time: so do vLLM's of 8192 tokens; attention and norms take as before."""
    path = profile(tmp_path, "h100-sxm", {"h100-sxm": {"memory": 1.2, "compute": 1.2}})
    plain, own = answers("h100-sxm", path)
    before, after = operators(plain, "prefill"), operators(own, "prefill")
    for name in before:
        ratio = after[name]["time_s"] / before[name]["time_s"]
        is_product = before[name]["kind"] == "gemm" and name != "lm_head"  # of one token: its launch is not slower
        assert ratio == pytest.approx(1.2, rel=0.02) if is_product else name == "lm_head" or ratio == 1.0
    assert own["efficiency"]["kernels"]["gemm/bf16"]["basis"] == "scaled"
    (line,) = [line for line in own["provenance"]["assumed"] if "scaled" in line]
    assert line == (
        "gemm/bf16: gemm/bf16/vllm of h100-sxm scaled, as gemm/bf16/torch takes 1.20 (memory), 1.20 (compute) of its "
        f"time by h100-sxm: ±6% instead of ±0%, as cards of one kind differ by less (of {path})"
    )
    assert not any("not used" in line for line in own["warnings"])


def test_a_slower_memory_moves_what_the_memory_bounds(tmp_path: Path) -> None:
    """Weights of a decode step take 1.3 of the time; products of 8192 tokens are bound by the units, and take as long.

    The smooth maximum of both lets a tenth of the slower memory through.
    """
    plain, own = answers("h100-sxm", profile(tmp_path, "h100-sxm", {"h100-sxm": {"memory": 1.3}}))

    def ratio(stage: str) -> float:
        slow, fast = (operators(one, stage)["down_proj"]["time_s"] for one in (own, plain))
        return float(slow / fast)

    assert ratio("decode") == pytest.approx(1.3, rel=0.1)
    assert ratio("prefill") == pytest.approx(1.0, abs=0.03)


def test_on_another_generation_torch_scales_and_narrows(tmp_path: Path) -> None:
    """An A6000 borrows an A100's products: ±29 %; scaled by torch's on both, ±23 %.  Decode takes 1.1 of the time."""
    plain, own = answers("a6000", profile(tmp_path, "a6000", {"a100-80gb-sxm": {"memory": 1.1, "compute": 1.0}}))
    kernels = [one["efficiency"]["kernels"]["gemm/bf16"] for one in (plain, own)]
    assert [one["basis"] for one in kernels] == ["transferred afar", "scaled afar"]
    assert fit_error("gemm", "scaled afar") < fit_error("gemm", "transferred afar")
    slow, fast = (operators(one, "decode")["down_proj"]["time_s"] for one in (own, plain))
    assert slow / fast == pytest.approx(1.1, rel=0.02)


def test_torch_s_own_preset_takes_the_user_s_fit_as_it_is(tmp_path: Path) -> None:
    path = profile(tmp_path, "h100-sxm", {"h100-sxm": {"memory": 1.2, "compute": 1.2}})
    found = lv.analyze("llama-3.1-8b", "h100-sxm", engine="torch", profile=path).to_dict()
    kernel = found["efficiency"]["kernels"]["gemm/bf16"]
    assert (kernel["basis"], kernel["fit"]) == ("measured", "gemm/bf16/torch")


def test_a_profile_of_another_card_scales_nothing(tmp_path: Path) -> None:
    """An H100 beside an A100 says nothing of an A6000."""
    mine = profile(tmp_path, "h100-sxm", {"a100-80gb-sxm": {"memory": 1.1, "compute": 1.1}})
    _, own = answers("a6000", mine)
    assert own["efficiency"]["kernels"]["gemm/bf16"]["basis"] == "transferred afar"


def products(chip: str, factor: float) -> tuple[Fit, list[RowGroup]]:
    """Rows that take `factor` of what torch's constants of an H100 say for a chip, and these constants."""
    shapes = [(m, n, 8192) for m in (1, 4, 16, 2048, 4096, 8192) for n in (8192, 14336, 28672, 57344)]
    frame = pd.DataFrame(shapes, columns=["m", "n", "k"]).assign(
        device=chip, source="llmviewer", engine="torch 2.11", dtype="bfloat16", kernel="torch.mm", latency_us=1.0,
        experts=1, active=1,
    )  # fmt: skip
    own, (rows,) = torch_fit("gemm/bf16/torch"), row_groups(frame)
    assert isinstance(rows, RowGroup)
    priced = with_constants("gemm", own.constants, calibrated(rows.chip, "torch"))
    return own, [replace(rows, measured_s=factor * predicted_seconds(rows, priced)[0])]


def test_a_fit_states_how_much_longer_its_rows_take_than_by_other_chips_constants() -> None:
    """Rows that take 1.2 of an H100's time have the ratio 1.2 to it in both regimes, and others to an H200 and A100."""
    own, rows = products("h100-sxm", 1.2)
    found = against(own, rows, rows[0].chip, "2.11.0")
    assert found["h100-sxm"] == pytest.approx({"memory": 1.2, "compute": 1.2}, rel=1e-3)
    assert set(found) == {"h100-sxm", "h200", "a100-80gb-sxm"}
    text = profile_file.text_of(rows[0].chip, "mine", {"origin": "a test"}, [replace(own, against=found)])
    read = profiles.parse(text, Path("mine.yaml")).fit("gemm/bf16/torch").against
    assert {name: dict(ratios) for name, ratios in read.items()} == {
        name: pytest.approx(ratios) for name, ratios in found.items()
    }


def test_rows_of_a_slow_card_end_in_slower_products_of_the_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured, fitted and used: products of an H100 that take 1.25 of its time make vLLM's as much slower."""
    _, (rows,) = products("h100-sxm", 1.25)
    shape = rows.operators[-1].shape
    sizes = zip(shape.m, shape.n, shape.k, rows.measured_s, strict=True)
    common = {"device": "h100-sxm", "source": "llmviewer", "engine": "torch 2.11", "dtype": "bfloat16"}
    samples = [
        {"table": "gemm", **common, "kernel": "torch.mm", "m": int(m), "n": int(n), "k": int(k), "latency_us": us * 1e6,
         "samples_us": [us * 1e6], "spread": 0.01, "stable": True}
        for m, n, k, us in sizes
    ]  # fmt: skip
    folder, path = write_samples(tmp_path / "s", *samples, device="h100-sxm"), str(tmp_path / "mine.yaml")
    assert main(["calibrate", "fit", str(folder), "-o", path]) == 0
    printed = capsys.readouterr().out
    assert "Time on this card over that with the constants of torch's kernels on others" in printed
    ratios = profiles.load(Path(path)).fit("gemm/bf16/torch").against["h100-sxm"]
    assert dict(ratios) == pytest.approx({"memory": 1.25, "compute": 1.25}, rel=1e-3)
    plain, own = answers("h100-sxm", path)
    slow, fast = (operators(one, "prefill")["down_proj"]["time_s"] for one in (own, plain))
    assert slow / fast == pytest.approx(1.25, rel=0.02)
    page = lv.explain("tpot_s", "llama-3.1-8b", "h100-sxm", profile=path)
    assert "gemm/bf16/vllm of h100-sxm scaled" in json.dumps(page.to_dict())


def test_the_table_of_own_profiles_names_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of a pair that an own profile moved and one of another pair: means and shares before and after."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    script = runpy.run_path(str(ROOT / "docs" / "own_profile.py"))
    pairs = [("a100-80gb-sxm", "h200", 0.2, 0.1, True, True), ("a100-80gb-sxm", "h200", 0.4, 0.3, False, True)]
    rows = pd.DataFrame(
        [*pairs, ("h200", "b200", 0.1, 0.1, True, True)],
        columns=["chip", "donor", "error_before", "error_after", "inside_before", "inside_after"],
    ).assign(kernels="gemm/bf16")
    assert script["table"](rows).splitlines()[2:] == [
        "| a100-80gb-sxm | h200 | gemm/bf16 | 2 | 30 % → 20 % | 50 % → 100 % |",
        "| all three | others, unchanged | gemm/bf16 | 1 | 10 % → 10 % | 100 % → 100 % |",
    ]


def test_no_line_of_the_table_of_own_profiles_is_worse() -> None:
    page = (ROOT / "docs" / "evidence" / "validation.md").read_text(encoding="utf-8")
    table = page.partition("<!-- table of own profiles -->\n\n")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(lines) > 6
    for *_, error, inside in lines:
        before, after = (float(figure.strip(" %")) for figure in error.split("→"))
        held_before, held_after = (float(figure.strip(" %")) for figure in inside.split("→"))
        assert after <= before
        assert held_after >= min(held_before, 80.0)


def test_only_cards_of_the_measured_maker_are_compared() -> None:
    own, rows = products("mi300x", 1.2)
    assert against(own, rows, rows[0].chip, "2.11.0") == {}


@pytest.mark.parametrize(("release", "chips"), [("2.11.0", {"h100-sxm", "h200"}), ("2.4.1", set())])
def test_attention_is_compared_within_one_release_of_torch(release: str, chips: set[str]) -> None:
    lengths = [(batch, seq) for batch in (1, 4) for seq in (512, 1024, 2048, 4096, 8192, 16384)]
    frame = pd.DataFrame(lengths, columns=["batch", "seq"]).assign(
        device="h100-sxm", source="llmviewer", engine=f"torch {release}", dtype="bfloat16", kv_dtype="bfloat16",
        kernel="sdpa_flash", heads=32, kv_heads=8, head_dim=128, window=0, prefix=0, latency_us=1e3,
    )  # fmt: skip
    rows = [part for part in row_groups(frame) if isinstance(part, RowGroup)]
    assert set(against(torch_fit("attention_prefill/bf16/torch"), rows, rows[0].chip, release)) == chips


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "sglang-triton"])
@pytest.mark.parametrize("donor", ["a100-80gb-sxm", "b200", "l40s", "h200"])
@pytest.mark.parametrize("family", ["attention_prefill", "attention_decode", "gemm"])
def test_torch_s_kernels_replace_no_engine_s_kernels_on_a_gpu(engine: str, donor: str, family: str) -> None:
    """Not even where the only others are another engine's on another generation."""
    from llmviewer.timing.lending import Kernel, nearest

    own, lender = profiles.shipped("h100-sxm"), profiles.shipped(donor)
    assert own is not None and lender is not None
    keys = {key: text for key, text in own.texts.items() if key.endswith("/torch")}
    mine = Profile(chip=own.chip, generation=own.generation, provenance={}, texts=keys, path="mine.yaml")
    kernel = Kernel(family=family, variant="bf16", engine=engine, chip="h100-sxm", generation="hopper", users=1)
    found = nearest((mine, lender), kernel)
    assert found is not None and found.source is lender

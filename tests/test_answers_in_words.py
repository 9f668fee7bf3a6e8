"""Texts of results with draft models, branches and offloaded tensors: units, names of hosts, no empty statements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmviewer import analyze
from llmviewer.reports import analysis_page, terminal
from llmviewer.reports.terminal import Screen


def page_text(model: str, chip: str, **options: Any) -> str:
    page = analysis_page.page(analyze(model, chip, **options))
    return " ".join(terminal.text(page, Screen(width=200, colour=False)).split())


def test_a_draft_pass_states_its_number_of_tokens() -> None:
    text = page_text("llama-3.1-8b", "h100", speculative="eagle3,tokens=4")
    tokens = analyze("llama-3.1-8b", "h100", speculative="eagle3,tokens=4").to_dict()["generation"]["tokens_per_round"]
    assert "EAGLE-3: 1 pass of " in text and f" over {tokens:.2f} tokens per sequence" in text
    assert "tokens each per round" not in text


def test_a_draft_without_passes_is_not_listed() -> None:
    text = page_text("deepseek-v2-lite", "h100", speculative="mtp,tokens=1")
    assert "MTP: 1 pass" in text and "later passes" not in text


def test_sizes_in_the_facts_of_a_scheme_have_units() -> None:
    assert "datastore on host 12 GB" in page_text("llama-2-7b", "a100", speculative="rest")


def test_branches_are_reported_as_passes_not_rounds() -> None:
    text = page_text("llama-2-7b", "a100", input_len=64, output_len=256, branches="skeleton,outline=36,points=6")
    assert "tokens per pass on average" in text and "per round" not in text
    assert "plus prefix copies of branches that do not share one" in text


def test_offloaded_tensors_are_listed_with_host_and_disk_names() -> None:
    options = "weights=0.9,kv=1,host=desktop-ddr5-6000"
    assert "(desktop-ddr5-6000)" in page_text("llama-2-70b", "rtx-4090", offload=options)
    text = page_text("llama-2-70b", "rtx-4090", offload="weights=0.9,to=disk,disk=samsung-990-pro")
    assert "Host disk 115 GiB (samsung-990-pro)" in text and "Host memory" not in text


def test_a_placement_for_one_request_has_no_max_batch_size() -> None:
    text = page_text("opt-30b", "t4", batch_size=4, offload="flexgen")
    assert "each batch size and length has a placement of its own" in text
    assert "Max batch size" not in text and "none fits" not in text


def test_a_model_too_large_for_its_chip_gets_a_hint_to_offload() -> None:
    assert "--offload zero-inference" in page_text("llama-2-70b", "rtx-4090")


def test_a_host_without_cpu_rates_is_priced_by_memory_only(tmp_path: Path) -> None:
    path = tmp_path / "desktop.yaml"
    path.write_text("memory_bandwidth_gb_per_s: {value: 96, source: two channels of DDR5-6000}\n")
    unknown = f"CPU of {path}: rates unknown, only its memory bandwidth is modelled"

    def assumed(chip: str = "rtx-4090", **options: str) -> list[str]:
        model = "opt-30b" if "hot_neurons" in options else "llama-2-13b"
        found: list[str] = analyze(model, chip, **options).to_dict()["provenance"]["assumed"]
        return found

    computing = "weights=0.5,compute=host,host="
    assert unknown in assumed(offload=f"{computing}{path}")
    assert unknown in assumed("a6000", hot_neurons=f"gpu=0.26,active=0.1,host={path}")
    for host in ("xeon-8480-ddr5", "desktop-ddr5-6000"):
        assert not any("CPU" in text for text in assumed(offload=computing + host))
    assert unknown not in assumed(offload=f"weights=0.5,host={path}"), "streamed: the CPU computes nothing"

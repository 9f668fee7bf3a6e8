"""Versions of an engine: chosen by name, read from tables, and with time constants of their own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import llmviewer as lv
from llmviewer.calibrate import e2e_rows, engine_file, fit_engines
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.timing import engine
from llmviewer.timing.engine_memory import is_of
from tests.answers import chip_for

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
H100 = specs.load("h100-sxm")
MEMORY = {"newest": "0.21", "source": "x", "versions": [{"first": "0.8"}]}
CONTENT: dict[str, Any] = {
    "title": "x",
    "kernels": "vllm",
    "constants": {"step": 100.0, "eager": 3.0},
    "source": "x",
    "memory": MEMORY,
    "versions": {
        "0.14": {"source": "release notes"},
        "0.8": {"source": "release notes", "constants": {"step": 700.0, "sequence": 20.0}},
    },
}


def preset(version: str = "") -> engine.Engine:
    return engine.replace(engine.parse("x", CONTENT), version=version).on(H100)


@pytest.mark.parametrize("version", ["0.8", "0.9.2", "0.12", "0.13.9"])
def test_an_older_version_has_its_own_constants_and_the_others_of_the_newest(version: str) -> None:
    assert preset(version).constants == {"step": 700.0, "eager": 3.0, "sequence": 20.0}


@pytest.mark.parametrize("version", ["", "0.14", "0.14.1", "0.20", "0.21.3"])
def test_without_a_version_and_from_the_last_change_on_constants_are_the_newest(version: str) -> None:
    assert preset(version).constants == {"step": 100.0, "eager": 3.0}


def figures(name: str) -> dict[str, Any]:
    """An answer without what it says about its version."""
    answer = lv.analyze("llama-3.1-8b", "h100-sxm", efficiency="calibrated", engine=name, batch_size=8).to_dict()
    return {"metrics": answer["metrics"], "memory": answer["memory"]}


@pytest.mark.parametrize(
    ("name", "same", "note"),
    [
        ("vllm==0.25", "vllm", "no run of version 0.25 was measured; the nearest that was is 0.19; its memory is"),
        ("vllm==0.22.1rc2", "vllm", "0.22.1rc2 was measured; the nearest that was is 0.19; its memory is that of 0.21"),
        ("vllm==0.13", "vllm==0.12", "no run of version 0.13 was measured; the nearest that was is 0.12"),
        ("vllm==0.2.5", "vllm-v0==0.5", "its memory is that of 0.5"),
        ("sglang==0.5.6.post2", "sglang", "its versions are priced alike (0.5.1, 0.5.6, 0.5.9 were measured)"),
        ("sglang==0.5.12", "sglang", "no run of version 0.5.12 was measured; the nearest that was is 0.5.9"),
        ("sglang==0.5", "sglang", "its versions are priced alike"),
        ("trtllm==1.2.0rc6.post3", "trtllm", "its versions are priced alike (1.0, 1.1, 1.2, 1.3 were measured)"),
        ("tensorrt-llm==1.3", "trtllm", "engine trtllm: its versions are priced alike"),
        ("tensorrt_llm==1.4.0rc1", "trtllm", "no run of version 1.4.0rc1 was measured; the nearest that was is 1.3"),
        ("trtllm==0.14", "trtllm-cpp", "engine trtllm-cpp: its versions are priced alike"),
        ("llama.cpp==b7000", "llama.cpp", "its versions are priced alike"),
        ("llama.cpp==b5000", "llama.cpp==b6324", "attention is eager before 6325"),
        ("gpt-fast==1", "gpt-fast", "its versions are priced alike"),
    ],
)  # fmt: skip
def test_a_version_without_runs_is_a_note_and_has_the_figures_and_intervals_of_the_nearest(
    name: str, same: str, note: str
) -> None:
    said = lv.analyze("llama-3.1-8b", "h100-sxm", efficiency="calibrated", engine=name).warnings
    assert [text for text in said if text.startswith("engine ") and note in text]
    assert figures(name) == figures(same)


@pytest.mark.parametrize(
    "name", ["vllm", "sglang", "trtllm", "vllm==0.19", "vllm==0.18.0", "vllm==0.12.0", "vllm==0.7.2"]
)
def test_a_measured_version_whose_figures_are_its_own_has_no_note(name: str) -> None:
    assert not engine.load(name).version_note


@pytest.mark.parametrize("name", engine.names()[1:])
def test_every_preset_takes_any_version_and_refuses_words(name: str) -> None:
    """999999 is newer than what any preset knows; an earlier one may be of the preset's predecessor."""
    newest, chip = engine.load(f"{name}==999999"), specs.load(chip_for(name))
    assert newest.on(chip).constants == engine.load(name).on(chip).constants
    assert newest.version_note or newest.versions
    with pytest.raises(UserError, match=rf"engine {name}: version 'abc' is not a version number such as 0\.19 or 1\.2"):
        engine.load(f"{name}==abc").on(chip)


def test_size_and_simulate_name_a_version_without_runs() -> None:
    note = "no run of version 0.25 was measured"
    load = {"request_rate": 2, "engine": "vllm==0.25", "requests": 50}
    answers = (
        lv.simulate("llama-3.1-8b", "h100-sxm", **load),
        lv.size("llama-3.1-8b", "h100-sxm", ttft="p99:5s", **load),
    )
    assert all(any(note in text for text in answer.to_dict()["notes"]) for answer in answers)


def test_the_versions_that_presets_call_measured_are_those_of_the_tables() -> None:
    """Each stated version has a row, and each row of a preset's versions is of a stated one."""
    tables = [SHARED / folder / "e2e.csv" for folder in ("measured", "measured_more")]
    if not all(table.exists() for table in tables):
        pytest.skip("the measured tables are not here")
    texts = {str(text) for table in tables for text in pd.read_csv(table)["engine"]}
    for name in engine.names()[1:]:
        stated = engine.load(name).measured
        rows = {
            found[1] for text in texts if (found := e2e_rows.VERSION.search(text)) and e2e_rows.preset_of(text) == name
        }
        if not rows:  # fitted to rows of other tables
            continue
        assert all(any(is_of(row, one) for one in stated) for row in rows if stated), name
        assert all(any(is_of(one, row) for row in rows) for one in stated), name


def test_a_version_without_source_or_with_an_unknown_constant_is_an_error() -> None:
    for own in ({"constants": {"step": 1.0}}, {"source": "x", "constants": {"stepp": 1.0}}):
        with pytest.raises(UserError, match=r"versions\.0\.8"):
            engine.parse("x", CONTENT | {"versions": {"0.8": own}})


def test_the_answer_names_the_versions_whose_constants_it_used() -> None:
    def assumed(name: str) -> list[str]:
        answer = lv.analyze("llama-3.1-8b", "h100-sxm", efficiency="calibrated", engine=name)
        return [line for line in answer.to_dict()["provenance"]["assumed"] if line.startswith("time of")]

    assert assumed("vllm==0.12") == ["time of vllm: constants of its versions from 0.8 on"]
    assert assumed("vllm") == ["time of vllm: constants of its versions from 0.14 on"]
    assert assumed("sglang") == []


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("vllm 0.2.7", "vllm-v0", ""),
        ("vllm 0.7.3", "vllm-v0", ""),
        ("vllm 0.12.0", "vllm", "0.12.0"),
        ("vllm 0.20.1", "vllm", "0.20.1"),
        ("vllm 0.29", "vllm", ""),
        ("vllm nan", "vllm", ""),
        ("vllm nightly-5b8c30d62b754b57", "vllm", ""),
        ("sglang 0.5.9", "sglang", ""),
    ],
)
def test_tables_state_versions_as_numbers_not_as_prefixes(text: str, name: str, version: str) -> None:
    """0.20 and 0.29 are no 0.2; a version newer than those known, 0.21, is priced as the newest."""
    assert e2e_rows.preset_of(text, "serving") == name
    assert e2e_rows.version_of(text, name) == version


def test_rows_of_different_versions_are_evaluated_apart() -> None:
    row = {"device": "h100_sxm", "model": "Qwen/Qwen3-32B", "input_len": 1, "output_len": 1, "metric": "tpot_ms"}
    old, new = (e2e_rows.case_of(row | {"engine": f"vllm {version}"}) for version in ("0.12.0", "0.18.0"))
    assert (old.engine, old.preset) == ("vllm", "vllm==0.12.0")
    assert old.run != new.run


def fitted(constants: dict[str, float]) -> engine_file.EngineFit:
    ones = np.ones(12)
    return engine_file.EngineFit(
        engine=fit_engines.with_values(engine.parse("x", CONTENT), constants), places=ones, ratio=ones,
        possible=ones > 0, bases=np.array(["fitted"] * 12), metrics=np.array(["tpot_ms"] * 12),
        held_out_ratios={"model": ones}, host_share=ones / 10,
        cases=tuple(case_of_model(model) for model in ("a", "b", "c", "d") * 3),
    )  # fmt: skip


def case_of_model(model: str) -> e2e_rows.RequestCase:
    """A row of a model."""
    row = {"device": "h100_sxm", "model": "Qwen/Qwen3-32B", "input_len": 9, "output_len": 1, "metric": "tpot_ms"}
    return replace(e2e_rows.case_of(row | {"engine": "vllm 0.12.0"}), model=model)


def test_a_fitted_file_states_only_the_constants_in_which_a_version_differs() -> None:
    """The older version has another step, no launches of its own (eager, equal), and no sequence: stated as 0."""
    fits = {
        "": fitted({"step": 90.0, "eager": 3.0, "sequence": 5.0}),
        "0.8": fitted({"step": 650.0, "eager": 3.0}),
    }
    written = yaml.safe_load(engine_file.text_of(CONTENT, fits, "here"))
    assert written["versions"]["0.8"]["constants"] == {"step": 650.0, "sequence": 0.0}
    assert written["versions"]["0.14"] == {"source": "release notes"}
    read = engine.replace(engine.parse("x", written), version="0.9").on(H100)
    assert read.constants == {"step": 650.0, "eager": 3.0, "sequence": 0.0}
    assert read.residuals["tpot_ms"]["fitted"] == (1.0, 1.0, 1.0, 1.0)
    assert read.scope["tpot_ms"]["fitted"].chips == ("h100-sxm",)
    assert read.scope["tpot_ms"]["fitted"].input_len == (9.0, 9.0)
    assert read.scope["tpot_ms"]["fitted"].host_share == 0.1


def test_residuals_of_one_or_two_models_say_little_about_a_version() -> None:
    """With one of two models left out, the other alone foretells it: the newest residuals stand, marked as such."""
    fits = {"": fitted({"step": 90.0}), "0.8": fitted({"step": 650.0})}
    two = replace(fits["0.8"], cases=tuple(case_of_model(model) for model in ("a", "b", "c") * 4))
    written = yaml.safe_load(engine_file.text_of(CONTENT, fits | {"0.8": two}, "here"))
    assert "residuals" not in written["versions"]["0.8"]
    known = engine.replace(engine.parse("x", written), version="0.9").on(H100).residuals_of(("tpot_ms",), "fitted")
    newest = engine.parse("x", written).on(H100).residuals_of(("tpot_ms",), "fitted")
    assert known is not None and newest is not None
    assert (known.of_version, newest.of_version) == (False, True)

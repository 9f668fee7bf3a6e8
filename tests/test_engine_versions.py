"""Versions of an engine: chosen by name, read from tables, and with time constants of their own."""

from typing import Any

import numpy as np
import pytest
import yaml

import llmviewer as lv
from llmviewer.calibrate import e2e_rows, engine_file, fit_engines
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.timing import engine

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


def test_a_version_newer_than_the_known_ones_is_an_error() -> None:
    with pytest.raises(UserError, match=r"'0.22' is not known; known: 0.8 to 0.21"):
        preset("0.22")


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
        held_out_ratios={"model": ones},
    )  # fmt: skip


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

"""The calibration page states the held-out errors of the profiles that are shipped."""

from __future__ import annotations

import runpy

import pytest

from tests.imports import ROOT

KERNELS = runpy.run_path(str(ROOT / "docs" / "kernels.py"))


def test_the_page_has_the_tables_of_the_shipped_profiles() -> None:
    page = (ROOT / "docs" / "evidence" / "validation.md").read_text(encoding="utf-8")
    block = page.partition(KERNELS["BEGIN"])[2].partition(KERNELS["END"])[0]
    assert block.strip() == KERNELS["block"](), "run `make docs`"


def test_the_page_of_errors_is_that_of_presets_profiles_and_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = (ROOT / "docs" / "evidence" / "where_it_is_wrong.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(ROOT / "docs" / "where_wrong.py"))["page"](), "run `make docs`"


@pytest.mark.parametrize("profile", list(KERNELS["shipped"]()), ids=lambda profile: str(profile.chip))
def test_every_shipped_fit_is_valid_and_states_rows_and_error(profile: object) -> None:
    from llmviewer.timing.calibrated import check_families, check_fit
    from llmviewer.timing.profile import Profile

    assert isinstance(profile, Profile)
    check_families(profile)
    for key in profile.texts:
        fit = profile.fit(key)
        check_fit(fit, profile)
        assert fit.rows["fitted"] >= 8
        assert fit.error["all"]["mape"] < 1.0
        if fit.rows["fitted"] >= 30:
            assert 0.65 < fit.error["all"]["covered80"] < 0.95, "the 80 % interval holds 80 % of unseen rows"

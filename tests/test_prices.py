"""Prices of chips: every row has a source, owned hardware is arithmetic, and a missing price is never guessed."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from llmviewer import analyze, explain, simulate, size
from llmviewer.analysis.power_shares import shares_of
from llmviewer.cli import main
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.hardware import specs
from llmviewer.hardware.prices import FOLDER, KINDS, Price, all_prices
from llmviewer.result.costs import parse_owned, price_list

READ = date(2026, 9, 25)
OWNED = "capex=30000,years=4,utilization=0.8,usd_per_kwh=0.08,pue=1.3"


@pytest.mark.parametrize("price", all_prices(), ids=lambda row: f"{row.chip} {row.kind} {row.usd_per_hour:g}")
def test_every_row_has_a_chip_a_kind_a_day_and_a_page(price: Price) -> None:
    assert specs.load(price.chip).name == price.chip  # the stem, no alias
    assert price.kind in KINDS
    assert price.kind != "owned"  # that is computed from the user's figures
    assert 0.1 < price.usd_per_hour < 100.0
    assert price.date is not None
    assert date(2024, 1, 1) < date.fromisoformat(price.date)
    assert price.source.startswith("https://")
    assert price.term in {"cost of ownership", "3 years", "on demand", "spot"}
    assert (price.kind == "spot") == (price.term == "spot")


def test_no_row_stands_twice() -> None:
    sources = [data.read_yaml(data.folder(FOLDER) / f"{stem}.yaml")["source"] for stem in data.stems(FOLDER)]
    assert len(set(sources)) == len(sources) >= 5
    assert len(all_prices()) == len({(row.chip, row.usd_per_hour, row.kind, row.source) for row in all_prices()})


def test_the_least_rented_h100_is_that_over_three_years() -> None:
    # 1.30 for 3 years; on demand 2.69 to 10.98
    assert price_list().of("h100-sxm").to_dict() | {"source": ""} == {  # type: ignore[union-attr]
        "usd_per_hour": 1.3,
        "kind": "rented",
        "term": "3 years",
        "date": "2026-04-03",
        "source": "",
    }


def test_kinds_do_not_mix() -> None:
    found = {kind: price_list(kind).of("h100-sxm") for kind in ("spot", "hyperscaler", "neocloud")}
    usd = {kind: price and price.usd_per_hour for kind, price in found.items()}
    assert usd == {"spot": 6.571, "hyperscaler": 1.3, "neocloud": 1.69}


def test_a_chip_without_a_price_of_the_kind_has_none() -> None:
    assert price_list("spot").of("h200") is None
    assert price_list().of("tpu-v4") is None


def test_the_price_of_the_user_replaces_the_row_by_any_name_of_the_chip() -> None:
    prices = price_list(given=("h100=2.10", "nvidia-l40s=0"))
    assert prices.of("h100-sxm").to_dict() == {  # type: ignore[union-attr]
        "usd_per_hour": 2.10,
        "date": None,
        "kind": "given",
        "term": "given by the user",
        "source": "given by the user",
    }
    assert prices.of("l40s").usd_per_hour == 0.0  # type: ignore[union-attr]
    assert prices.of("h200").usd_per_hour == 1.6  # type: ignore[union-attr]


def test_owned_hardware_costs_its_hours_of_use_and_its_power() -> None:
    # 30,000 / (4 x 8766 x 0.8 = 28,051.2 h) = 1.06947; H100: 0.7 kW x 1.3 x 0.08 = 0.0728
    price = price_list("owned", owned=OWNED).of("h100-sxm")
    assert price is not None
    assert price.usd_per_hour == pytest.approx(30000 / 28051.2 + 0.0728)
    # 0.5 kW x 1.3 x 0.08 = 0.052, on any chip
    stated = price_list("owned", owned=f"{OWNED},watts=500")
    assert stated.of("l40s").usd_per_hour == pytest.approx(30000 / 28051.2 + 0.052)  # type: ignore[union-attr]
    assert price_list("owned", given=("l40s=1",), owned=OWNED).of("l40s").usd_per_hour == 1.0  # type: ignore[union-attr]


def test_owned_hardware_without_published_power_asks_for_watts() -> None:
    chip = next(name for name in specs.names() if specs.load(name).tdp_w is None)
    prices = price_list("owned", owned=OWNED)
    assert prices.of(chip) is None
    assert prices.notes([chip, "h100-sxm"], READ) == [
        f"{chip} has no price: its board power is not published; add watts=... to --owned"
    ]
    assert price_list("owned", owned=f"{OWNED},watts=300").of(chip) is not None


def test_a_chip_of_the_user_s_own_file_is_priced_by_its_name() -> None:
    chips = {"mychip": replace(specs.load("l40s"), name="mychip")}
    assert price_list("rented", ["mychip=1.5"], None, chips).of("mychip").usd_per_hour == 1.5  # type: ignore[union-attr]
    assert price_list("owned", (), OWNED, chips).of("mychip") is not None
    with pytest.raises(UserError, match="unknown chip 'mychip'"):
        price_list("rented", ["mychip=1.5"])


def test_old_prices_and_mixed_terms_are_said() -> None:
    prices = price_list()
    # 2026-04-03 + 180 days = 2026-09-30
    assert prices.notes(["h100-sxm", "h200"], date(2026, 9, 30)) == []
    old = prices.notes(["h100-sxm", "h200", "h100-sxm", "tpu-v4"], date(2026, 10, 1))
    assert [line.split(":")[0] for line in old] == ["the prices of h100-sxm, h200 are of 2026-04-03, 181 days ago"]
    assert prices.notes(["h100-sxm", "l40s"], READ) == [
        "prices are of different terms (3 years: h100-sxm; on demand: l40s)"
    ]
    assert price_list(given=("h100=9",)).notes(["h100-sxm"], date(2036, 1, 1)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "rentd"}, "unknown kind of price 'rentd'.*did you mean 'rented'"),
        ({"given": ("h100x=2",)}, "unknown chip 'h100x'.*did you mean 'h100'"),
        ({"given": ("h100",)}, "price is 'h100'; allowed: CHIP="),
        ({"given": ("=2",)}, "price is '=2'"),
        ({"given": ("h100=-1",)}, "price is 'h100=-1'"),
        ({"given": ("h100=nan",)}, "price is 'h100=nan'"),
        ({"given": ("h100=two",)}, "price is 'h100=two'"),
        ({"given": ("h100=1", "h100-sxm=2")}, "price is given twice for h100-sxm"),
        ({"path": "nowhere.yaml"}, "prices: cannot read 'nowhere.yaml'"),
        ({"kind": "owned"}, "price_kind owned needs owned"),
        ({"kind": "rented", "owned": OWNED}, "owned is for price_kind owned, not rented"),
        ({"kind": "owned", "owned": "capex=1"}, "owned: years is missing"),
        ({"kind": "owned", "owned": OWNED.replace("0.8", "1.2")}, "utilization is '1.2'; allowed"),
        ({"kind": "owned", "owned": OWNED.replace("30000", "-1")}, "capex is '-1'; allowed"),
        ({"kind": "owned", "owned": OWNED.replace("pue", "peu")}, "parameter of owned 'peu'.*did you mean 'pue'"),
    ],
)
def test_wrong_prices_are_refused_in_one_line(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        price_list(**arguments)


def test_watts_of_owned_hardware_may_be_left_out() -> None:
    assert parse_owned(OWNED).watts is None
    assert parse_owned(f"{OWNED},watts=450").watts == 450.0


RUN: dict[str, Any] = {"batch_size": 64, "batching": "continuous"}


def test_an_hour_of_a_run_is_its_price_its_power_and_its_carbon() -> None:
    one = analyze("llama-3.1-8b", "h100", price="h100=3.6", carbon=400, owned=OWNED, **RUN)
    rate = one.output_tokens_per_s
    # $3.6 an hour is $0.001 a second; 128 tokens a request, 64 requests a run
    assert one.usd_per_million_output_tokens == pytest.approx(1e3 / rate)
    assert one.usd_per_million_requests == pytest.approx(1e3 / rate * 128)
    assert one.usd_per_run == pytest.approx(1e-3 / rate * 128 * 64)
    assert one.joules_per_output_token == pytest.approx(one.watts / rate)
    # at the wall: the server's share of the board's 700 W, times the PUE of 1.3; 3.6e6 J a kWh
    server = shares_of(specs.load("h100")).server  # type: ignore[union-attr]
    assert server == pytest.approx(0.3, abs=0.005)
    grams = 1e6 * (one.watts + server * 700) * 1.3 * 400 / 3.6e6 / rate
    assert one.grams_co2_per_million_output_tokens == pytest.approx(grams)
    alone = analyze("llama-3.1-8b", "h100", carbon=400, **RUN)
    assert alone.grams_co2_per_million_output_tokens == pytest.approx(grams / 1.3)


def test_a_rented_chip_breaks_even_where_the_api_takes_its_price() -> None:
    one = analyze("llama-3.1-8b", "h100", price="h100=3.6", api_price="in=0.3,out=1.2", **RUN)
    # a request costs the API's customer (1024 x 0.3 + 128 x 1.2) / 1e6 = $0.0004608: 7812.5 of them for $3.6
    requests = 3.6 / 4.608e-4
    at_full_load = 64 * 3600 / one.e2e_s
    assert one.break_even_utilization == pytest.approx(requests / at_full_load)
    # a month has 365.25 x 24 / 12 = 730.5 hours
    assert one.break_even_tokens_per_month == pytest.approx(requests * 730.5 * 1152)


def test_an_owned_chip_pays_for_power_only_while_it_works() -> None:
    one = analyze("llama-3.1-8b", "h100", owned=OWNED, api_price="in=0.3,out=1.2", **RUN)
    full_load = 64 * 3600 / one.e2e_s * 4.608e-4
    # bought: 30000 / (4 x 8766 h) an hour, whatever its use; power 0.7 kW x 1.3 x 0.08 = $0.0728 an hour of use
    assert one.break_even_utilization == pytest.approx(30000 / (4 * 8766) / (full_load - 0.0728))
    dear = analyze("llama-3.1-8b", "h100", owned=OWNED, api_price="in=0,out=0.000001", **RUN)
    assert math.isnan(dear.break_even_utilization)  # the API costs less than the power


def test_a_file_of_prices_replaces_those_of_its_chips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hardware", "prices", "-o", str(tmp_path / "mine.csv")]) == 0
    text = (tmp_path / "mine.csv").read_text()
    (tmp_path / "mine.csv").write_text(text.replace("h100-sxm,1.3,rented", "h100-sxm,0.5,rented"))
    prices = price_list(path=str(tmp_path / "mine.csv"))
    assert prices.of("h100-sxm").usd_per_hour == 0.5  # type: ignore[union-attr]
    assert {one.chip for one in all_prices()} == {row.split(",")[0] for row in text.splitlines()[1:]}
    (tmp_path / "mine.yaml").write_text(
        "source: mine\ndate: 2026-11-20\nkind: rented\nterm: on demand\nrows: [{chip: h100, usd_per_gpu_hour: 2.99}]"
    )
    assert price_list(path=str(tmp_path / "mine.yaml")).of("h100-sxm").usd_per_hour == 2.99  # type: ignore[union-attr]
    (tmp_path / "mine.csv").write_text("chip,usd\n")
    with pytest.raises(UserError, match="has no prices; expected columns chip, usd_per_gpu_hour"):
        price_list(path=str(tmp_path / "mine.csv"))
    assert capsys.readouterr().err.startswith("wrote ")


def test_a_stated_price_without_a_use_is_named_or_refused() -> None:
    assert "--price has none of l40s" in analyze("llama-3.1-8b", "l40s", price="h100=3").warnings
    assert (
        "no spot price of l40s is known; --price l40s=... states one"
        in analyze("llama-3.1-8b", "l40s", price_kind="spot").warnings
    )
    with pytest.raises(UserError, match="price is not in tpot_s; it is in usd_per_hour, "):
        explain("tpot_s", "llama-3.1-8b", "h100", price="h100=3")
    with pytest.raises(UserError, match="unknown option 'price'"):
        simulate("llama-3.1-8b", "h100", request_rate=1, price="h100=3")


def test_a_sizing_has_the_carbon_of_servers_and_of_the_data_centre() -> None:
    words: dict[str, Any] = {"request_rate": 2, "requests": 100, "ttft": "1s", "engine": "vllm", "quantization": "none"}
    words |= {"kv_cache_dtype": "auto", "tensor_parallel_size": 1, "batching": "continuous", "carbon": 300}
    plain, owned = (
        size("llama-3.2-1b", "l4", **words, **more).best.to_dict()  # type: ignore[union-attr]
        for more in ({}, {"owned": OWNED})
    )
    server = shares_of(specs.load("l4")).server * 72  # type: ignore[union-attr]
    per_token = (plain["watts"] + server) / (plain["watts"] / plain["joules_per_output_token"])
    assert plain["grams_co2_per_million_output_tokens"] == pytest.approx(per_token * 300 / 3.6)
    assert owned["grams_co2_per_million_output_tokens"] == pytest.approx(1.3 * per_token * 300 / 3.6)

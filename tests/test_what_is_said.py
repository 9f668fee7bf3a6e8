"""Commands tell of written files, counts, prices, lists and ties."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.arguments import parse_count, parse_size
from llmviewer.planning.train import train
from llmviewer.result import costs
from tests.answers import refusal

MODEL = "llama-3.2-1b --hardware h100"


@pytest.mark.parametrize(
    "line",
    [
        f"page {MODEL} -o FILE.html",
        f"plot memory {MODEL} -o FILE.png",
        f"trace {MODEL} --output-len 2 -o FILE.json",
        f"analyze {MODEL} -o FILE.csv",
        f"sweep {MODEL} -o FILE.parquet",
        f"compare {MODEL} --quantization none,fp8 -o FILE.md",
        "hardware prices h100 -o FILE.csv",
    ],
)
def test_a_written_file_is_named_in_one_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "file")
    assert main(shlex.split(line.replace("FILE", path))) == 0
    said = capsys.readouterr()
    assert said.err == f"wrote {shlex.split(line.replace('FILE', path))[-1]}\n" and said.out == ""


def test_a_file_that_is_not_written_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"analyze {MODEL} --quantization nothing -o {tmp_path / 'file.csv'}")) == 2
    assert "wrote" not in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_counts_end_in_decimal_and_sizes_in_binary_letters() -> None:
    assert [parse_count(text) for text in ("1b", "1.5B", "500m", "15t", "20", "b", "x")] == [
        1e9, 1.5e9, 5e8, 15e12, 20, "b", "x"
    ]  # fmt: skip
    assert [parse_size(text) for text in ("4k", "1m", "1b")] == [4096, 2**20, 10**9]
    assert train("llama-3.2-1b", "h100", tokens="1b").run == train("llama-3.2-1b", "h100", tokens=1e9).run


def test_a_count_that_is_none_is_refused_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert "such as 20, 1e9 or 1b" in refusal(["train", *MODEL.split(), "--tokens", "lots"], capsys)


def test_a_short_step_is_told_beside_a_faster_one() -> None:
    """512 tokens of one sequence leave the units waiting; the batch of the note trains as many more tokens a second."""
    short = train("llama-3.2-1b", "h100")
    (note,) = [line for line in short.warnings if "is short" in line]
    batch, gain = int(note.partition("--batch-size ")[2].split()[0]), float(note.partition("trains ")[2].split()[0])
    longer = train("llama-3.2-1b", "h100", batch_size=batch)
    assert longer.fits and longer.tokens_per_s / short.tokens_per_s == pytest.approx(gain, abs=0.01)
    assert not [line for line in train("llama-3.2-1b", "h100", input_len=8192).warnings if "is short" in line]


def test_prices_are_listed_of_named_chips(capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["chip"] for row in costs.listed(None, ["h100", "mi300x"])} == {"h100-sxm", "mi300x"}
    assert len(costs.listed()) > len(costs.listed(None, ["h100"])) > 3
    assert "no price of gaudi-3 is known; --price gaudi-3=2.10" in refusal(["hardware", "prices", "gaudi-3"], capsys)


@pytest.mark.parametrize("words", [{"price": "2.5"}, {"price": 2.5}, {"price": "h100=2.5"}])
def test_a_price_alone_is_that_of_the_one_chip(words: dict[str, Any]) -> None:
    assert lv.analyze("llama-3.2-1b", "h100", **words).to_dict()["metrics"]["usd_per_hour"] == 2.5


def test_terms_of_prices_stand_beside_them(capsys: pytest.CaptureFixture[str]) -> None:
    """The least rents known: three years of an H100, an hour of an L40S."""
    assert main(shlex.split("compare llama-3.2-1b --hardware h100,l40s")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "their prices are of different terms: " in said and "h100-sxm 3 years" in said
    assert "term 3 years on demand" in said
    assert main(shlex.split("compare llama-3.2-1b --hardware h100,h200")) == 0
    assert "different terms" not in capsys.readouterr().out
    price = lv.analyze("llama-3.2-1b", "l40s").to_dict()["provenance"]["price"]
    assert (price["kind"], price["term"]) == ("rented", "on demand")


def test_a_tie_is_called_one_and_memory_decides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("compare llama-3.1-8b --hardware h100 --input-len 32k --kv-cache-dtype auto,fp8")) == 0
    said = " ".join(capsys.readouterr().out.split("\n\n")[0].split())
    assert said.startswith("Take auto and fp8 have the same end-to-end latency, 2.10 s; fp8 for its memory: ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--api-price in=0.3,out=1.2 --batch-size 32", "cheaper than the API from "),
        ("--carbon 400", " g of CO2 per million"),
        ("--price 2.5", "at $2.50 an hour (given by the user)"),
    ],
)
def test_stated_costs_stand_in_the_first_lines(options: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(f"analyze {MODEL} --brief {options}")) == 0
    assert words in " ".join(capsys.readouterr().out.split())
    assert main(shlex.split(f"analyze {MODEL} --brief")) == 0
    assert "Cost" not in capsys.readouterr().out


def test_a_list_with_the_wrong_separator_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(shlex.split(f"compare {MODEL} --prefix-cache 0,0.8"), capsys)
    assert said.rstrip().endswith("several values stand between semicolons: '0;0.8'")


@pytest.mark.parametrize("metric", ["decode_time_s", "tpot_s", "ttft_s"])
def test_the_default_map_has_contexts_that_the_model_has(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 2 has 4,096 tokens, of which 128 are the answer's where a metric is of the whole answer."""
    line = f"crossover llama-2-7b --hardware a6000,h100 --metric {metric}"
    assert main(shlex.split(line)) == 0
    assert "warning" not in capsys.readouterr().err
    found = lv.crossover("llama-2-7b", ["a6000", "h100"], metric=metric)
    assert found.contexts.max() == (2048 if metric == "tpot_s" else 4096) and not found.warnings
    beyond = lv.crossover("llama-2-7b", ["a6000", "h100"], metric=metric, context=[8192])
    assert any("beyond the model's maximum" in line for line in beyond.warnings)

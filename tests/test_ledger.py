"""The ledger of published figures: every row resolves, none occurs twice, none is used for fitting."""

from __future__ import annotations

import csv
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from llmviewer.api import analyze
from llmviewer.calibrate import ledger
from llmviewer.core import data
from llmviewer.core.errors import UserError
from llmviewer.hardware import names
from llmviewer.timing import engine

SOURCES = ledger.load()
ROWS = list(ledger.rows(SOURCES))
FITTED_ON = Path(__file__).resolve().parent.parent.parent / "shared" / "measured" / "e2e.csv"
#: prefix of an engine's name in tables -> its family.
FAMILIES = {"trtllm": "trtllm", "tensorrt": "trtllm", "llama.cpp": "llama.cpp", "gpt-fast": "gpt-fast", "vllm": "vllm"}
#: our quantization name -> weight format in tables that state it.
WEIGHTS = {"w8a16": "int8", "fp8-block": "fp8_block"}


def valid_file(**changes: Any) -> dict[str, Any]:
    """A file with one valid row; `changes` are applied to the row, `top` to the file."""
    top = changes.pop("top", {})
    row = {
        "hardware": "a100-80gb-sxm",
        "devices": 2,
        "tp": 2,
        "pp": 1,
        "model": "llama-2-7b",
        "quantization": "bf16",
        "kv_cache_dtype": "auto",
        "batching": "static",
        "batch": 1,
        "input_len": 5,
        "output_len": 200,
        "metric": "decode_tok_s",
        "value": 168.84,
        "where": "table 2, row 1",
    }
    words = {key: key for key in ("title", "engine_version", "date", "conditions")}
    return {
        "schema": ledger.SCHEMA,
        "source": "https://example.org",
        "engine": "gpt-fast",
        **words,
        "rows": [row | changes],
        **top,
    }


def test_the_ledger_spreads_over_chips_models_engines_metrics_and_batches() -> None:
    rows = [row for _, row in ROWS]
    assert len(rows) >= 60
    assert len({row.hardware for row in rows}) >= 6
    assert len({row.model for row in rows}) >= 8
    assert {row.metric for row in rows} == set(ledger.LEDGER_METRICS)
    assert {row.batching for row in rows} == set(ledger.BATCHING)
    assert {source.preset for source in SOURCES} <= set(engine.names())
    batches = [row.batch for row in rows if row.batch]
    assert len(set(batches)) >= 10 and min(batches) == 1 and max(batches) >= 1000
    assert sum(batch > 1 for batch in batches) >= 60


def test_no_chip_dominates_the_rows() -> None:
    _, most = Counter(row.hardware for _, row in ROWS).most_common(1)[0]
    assert most < len(ROWS) / 2


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_source_states_its_address_and_what_its_figures_include(source: ledger.PublishedTable) -> None:
    assert "http" in source.source
    assert len(source.conditions) > 40
    assert all(row.where for row in source.rows)
    if "github.com" in source.source and ".md @" in source.source:  # a file in a repository must be at one commit
        commit = source.source.split("@")[1].split()[0].rstrip(")")
        assert len(commit) == 40


def test_no_figure_is_listed_twice() -> None:
    seen = Counter((source.engine, source.engine_version, row.key) for source, row in ROWS)
    assert not [key for key, times in seen.items() if times > 1]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_every_row_is_a_valid_analyze_request(source: ledger.PublishedTable) -> None:
    row = source.rows[-1]
    assert analyze(**{"batch_size": 1, **row.arguments()}).metrics()  # type: ignore[arg-type]


def test_prefill_only_and_decode_only_rows_have_minimal_lengths() -> None:
    (row,) = ledger.parse(valid_file(input_len=0), "x").rows
    assert row.arguments()["input_len"] == 1
    (row,) = ledger.parse(valid_file(input_len=512, output_len=0, metric="throughput_tok_s"), "x").rows
    assert row.arguments()["output_len"] == 1


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (valid_file(hardware="a100"), "unknown hardware 'a100'"),
        (valid_file(model="llama-2-7"), "unknown model 'llama-2-7'; did you mean 'llama-2-7b'?"),
        (valid_file(metric="tokens"), "unknown metric 'tokens'; allowed: decode_tok_s"),
        (valid_file(batching="dynamic"), "unknown batching 'dynamic'"),
        (valid_file(quantization="q5"), "rows.1.quantization: unknown quantization 'q5'"),
        (valid_file(kv_cache_dtype="fp9"), "unknown KV cache dtype 'fp9'"),
        (valid_file(devices=4), "tp 2 x pp 1 is not 4 devices"),
        (
            valid_file(devices=7, metric="train_tok_s", options={"data_parallel_size": "3"}),
            "tp 2 x pp 1 x data_parallel_size 3 is not 7 devices",
        ),
        (valid_file(batch=None), "batch may be null only for"),
        (valid_file(batch=0), "batch: expected a whole number from 1, got 0"),
        (valid_file(tp=True), "tp: expected a whole number from 1, got true"),
        (valid_file(value=float("nan")), "value: expected a finite number above 0, got nan"),
        (valid_file(value=-1), "value: expected a finite number above 0, got -1"),
        (valid_file(where=" "), "where: expected text, got ' '"),
        (valid_file(input_len=0, metric="latency_ms"), "latency_ms needs a prompt"),
        (valid_file(output_len=1), "decode_tok_s needs an output_len of at least 2"),
        (valid_file(metric="speedup"), "a speedup is relative to the run without options, but the row has no options"),
        (valid_file(options={"speculation": "x"}), "unknown option 'speculation'; did you mean 'speculative'?"),
        (valid_file(options={"quantization": "fp8"}), "unknown option 'quantization'"),
        (valid_file(options="speculative"), "options: expected a mapping, got 'speculative'"),
        (valid_file(options={"offload": 1}), "options.offload: expected text, got 1"),
        (valid_file(top={"source": "a talk"}), "has no http(s) address"),
        (valid_file(top={"engine": "tgi"}), "unknown engine 'tgi'"),
        (valid_file(top={"schema": "llmviewer.ledger/2"}), "unknown schema"),
        (valid_file(top={"rows": []}), "rows: expected a list of 1 or more, got 0"),
        (valid_file(top={"rows": [3]}), "rows.1: expected a mapping, got 3"),
        (valid_file(top={"author": "x"}), "unknown key 'author'"),
        ({key: value for key, value in valid_file().items() if key != "source"}, "missing source"),
    ],
)
def test_a_wrong_file_is_a_one_line_error_that_names_it(file: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        ledger.parse(file, "wrong")
    line = str(raised.value)
    assert line.startswith("calibrate/ledger/wrong.yaml") and message in line and "\n" not in line


def test_an_engine_without_a_preset_names_the_nearest_preset() -> None:
    source = ledger.parse(valid_file(top={"engine": "tgi", "nearest": "vllm"}), "x")
    assert (source.engine, source.preset) == ("tgi", "vllm")


def test_options_identify_a_row_and_a_row_without_options_is_the_plain_run() -> None:
    options = {"speculative": "ngram,tokens=4,acceptance=0.5"}
    (row,) = ledger.parse(valid_file(options=options, metric="speedup", value=1.5), "x").rows
    assert row.options == tuple(options.items()) and row.without_options.options == ()
    assert row.key != row.without_options.key
    assert row.arguments()["speculative"] == options["speculative"]
    assert "speculative" not in row.without_options.arguments()


def test_speculation_offloading_and_plain_runs_are_all_scored() -> None:
    requested = Counter(name for _, row in ROWS for name, _ in row.options)
    assert requested["speculative"] >= 30 and requested["offload"] >= 10
    assert {row.metric for _, row in ROWS if row.options} >= {"speedup", "tpot_ms", "throughput_tok_s"}


def _family(engine: str) -> str:
    return next((family for start, family in FAMILIES.items() if engine.lower().startswith(start)), engine.lower())


@cache
def _stem(folder: str, name: str) -> str:
    try:
        return (data.find(folder, name, "model") if folder == "model_configs" else names.find(name))[1]
    except UserError:
        return name


def _weights(text: str) -> str:
    return "16 bit" if text in ("fp16", "bf16", "float16", "bfloat16", "none") else text


@pytest.mark.skipif(not FITTED_ON.exists(), reason="the development rows are not beside the checkout")
def test_no_row_is_part_of_the_fitting_data() -> None:
    fitted = set()
    with FITTED_ON.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            run = (_stem("hardware_specs", row["device"]), _stem("model_configs", row["model"]), _family(row["engine"]))
            sizes = tuple(int(float(row[key])) if row[key] else None for key in ("tp", "pp", "batch", "input_len"))
            fitted.add((*run, *sizes, int(float(row["output_len"])), _weights(row["weight_dtype"]), row["metric"]))
    assert len({key[0] for key in fitted} & set(data.stems("hardware_specs"))) >= 5  # the names resolve
    assert len({key[1] for key in fitted} & set(data.stems("model_configs"))) >= 10
    for source, row in ROWS:
        run = (row.hardware, row.model, _family(source.engine))
        weights = _weights(WEIGHTS.get(row.quantization, row.quantization))
        assert (*run, row.tp, row.pp, row.batch, row.input_len, row.output_len, weights, row.metric) not in fitted

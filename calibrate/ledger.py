"""The ledger: published end-to-end figures with their sources, on which every release is scored.

One YAML per source in `calibrate/ledger/`.  These rows are never fitted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.techniques.quantization.grammar import parse_cache_dtype, parse_scheme
from llmviewer.techniques.registry import TECHNIQUES
from llmviewer.timing import engine

SCHEMA = "llmviewer.ledger/1"
FOLDER = "calibrate/ledger"
#: metric -> its definition.  With output_len 0, throughput counts prompt tokens.
LEDGER_METRICS = {
    "ttft_ms": "time to the first token: of the whole static batch, or the mean over requests that arrive one by one",
    "tpot_ms": "mean time per output token after the first",
    "decode_tok_s": "generated tokens per second of all sequences over the decode steps, without prefill",
    "throughput_tok_s": "output tokens per second of all devices, prefill time included",
    "latency_ms": "whole request or static batch: prefill and all decode steps",
    "speedup": "time of a whole request, prefill included, without the row's options / with them",
}
BATCHING = ("static", "continuous")
SOURCE_KEYS = ("schema", "title", "source", "engine", "engine_version", "date", "conditions", "rows")
SOURCE_OPTIONAL = ("nearest", "license")
TEXT_FIELDS = ("hardware", "model", "quantization", "kv_cache_dtype", "batching", "metric", "where")
SIZE_FIELDS = {"devices": 1, "tp": 1, "pp": 1, "input_len": 0, "output_len": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """One published figure, with names of our specs, configs and options.

    batch: concurrent sequences or requests; None if the source runs as many as the KV cache has room for.
    input_len 0: generation from an empty context.  output_len 0: prefill only.  value: in the metric's unit.
    where: table and row in the source.  options: techniques by option name, except those with a field of their own; a
    speedup is relative to the same run without them.
    """

    hardware: str
    devices: int
    tp: int
    pp: int
    model: str
    quantization: str
    kv_cache_dtype: str
    batching: str
    batch: int | None
    input_len: int
    output_len: int
    metric: str
    value: float
    where: str
    note: str = ""
    options: tuple[tuple[str, str], ...] = ()

    @property
    def without_options(self) -> PublishedFigure:
        """Copy of this figure without its options."""
        return replace(self, options=())

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """Identity of the figure: run and metric, without the value."""
        run = (self.hardware, self.tp, self.pp, self.model, self.quantization, self.kv_cache_dtype)
        return (*run, self.batching, self.batch, self.input_len, self.output_len, self.metric, *map(str, self.options))

    def arguments(self) -> dict[str, str | int]:
        """Arguments for `llmviewer.analyze`, without batch_size if the source does not state it.

        analyze needs at least one prompt token and one output token.
        """
        sizes = {} if self.batch is None else {"batch_size": self.batch}
        return {
            "model": self.model,
            "hardware": self.hardware,
            **sizes,
            "input_len": max(self.input_len, 1),
            "output_len": max(self.output_len, 1),
            "quantization": self.quantization,
            "kv_cache_dtype": self.kv_cache_dtype,
            "tensor_parallel_size": str(self.tp),
            "pipeline_parallel_size": str(self.pp),
            **dict(self.options),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTable:
    """One published table.  engine: as named by the source.  preset: engine preset used to predict it.

    source: citation with address.  conditions: what the figures include.  license: empty if none is stated.
    """

    name: str
    title: str
    source: str
    engine: str
    preset: str
    engine_version: str
    date: str
    conditions: str
    license: str
    rows: tuple[PublishedFigure, ...]


def load(folder: Path | None = None) -> tuple[PublishedTable, ...]:
    """Load every source of the ledger, sorted by name.  Raises UserError."""
    paths = sorted((folder or data.folder(FOLDER)).glob("*.yaml"))
    return tuple(parse(data.read_yaml(path), path.stem) for path in paths)


def rows(sources: tuple[PublishedTable, ...]) -> Iterator[tuple[PublishedTable, PublishedFigure]]:
    """Yield every figure with its source."""
    return ((source, row) for source in sources for row in source.rows)


def parse(content: Mapping[str, Any], name: str) -> PublishedTable:
    """Parse the source in one file.  Raises UserError with the file and the error."""
    where = f"{FOLDER}/{name}.yaml"
    data.check_keys(content, (*SOURCE_KEYS, *SOURCE_OPTIONAL), SOURCE_KEYS, where)
    if content["schema"] != SCHEMA:
        raise unknown("schema", content["schema"], (SCHEMA,), where=where)
    texts = [key for key in (*SOURCE_KEYS, *SOURCE_OPTIONAL) if key != "rows" and key in content]
    text = {key: _text(content, key, where) for key in texts}
    if "https://" not in text["source"] and "http://" not in text["source"]:
        raise UserError(f"{where}: source {quoted(text['source'])} has no http(s) address")
    preset = text.get("nearest", text["engine"])
    if preset not in engine.names():
        raise unknown(
            "engine",
            preset,
            engine.names(),
            where=where,
            hint="`nearest` names the preset to use for an engine without one",
        )
    if not isinstance(content["rows"], list) or not content["rows"]:
        raise UserError(f"{where}: rows is {quoted(content['rows'])}; expected a list of figures")
    listed = tuple(_row(row, f"{where}, row {number}") for number, row in enumerate(content["rows"], 1))
    return PublishedTable(
        name=name,
        title=text["title"],
        source=text["source"],
        engine=text["engine"],
        preset=preset,
        engine_version=text["engine_version"],
        date=text["date"],
        conditions=text["conditions"],
        license=text.get("license", ""),
        rows=listed,
    )


def _row(row: Any, where: str) -> PublishedFigure:
    if not isinstance(row, dict):
        raise UserError(f"{where} is {quoted(row)}; expected a mapping of fields")
    required = (*TEXT_FIELDS, *SIZE_FIELDS, "batch", "value")
    data.check_keys(row, (*required, "note", "options"), required, where)
    fields: dict[str, Any] = {key: _text(row, key, where) for key in TEXT_FIELDS}
    _check_names(fields, where)
    fields |= {key: _whole(row, key, minimum, where) for key, minimum in SIZE_FIELDS.items()}
    fields["batch"] = None if row["batch"] is None else _whole(row, "batch", 1, where)
    fields["note"] = _text(row, "note", where) if "note" in row else ""
    fields["options"] = _options(row.get("options", {}), where)
    read = PublishedFigure(**fields, value=_figure(row["value"], where))
    _check_metric(read, where)
    return read


def _check_names(words: Mapping[str, str], where: str) -> None:
    known: dict[str, Collection[str]] = {
        "hardware": _spec_names("hardware_specs"),
        "model": _spec_names("model_configs"),
        "metric": LEDGER_METRICS,
        "batching": BATCHING,
    }
    for key, names in known.items():
        if words[key] not in names:
            raise unknown(key, words[key], names, where=where)
    try:
        parse_scheme(words["quantization"])
        parse_cache_dtype(words["kv_cache_dtype"])
    except UserError as error:
        raise UserError(f"{where}: {error.marked}") from error


def _options(given: Any, where: str) -> tuple[tuple[str, str], ...]:
    """Technique options of a row; their values are checked when the row is predicted."""
    if not isinstance(given, dict):
        raise UserError(f"{where}: options is {quoted(given)}; expected technique options by name")
    elsewhere = ("quantization", "kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size")
    allowed = [name for name in TECHNIQUES if name not in elsewhere]
    for name in given:
        if name not in allowed:
            raise unknown("option", name, allowed, where=where)
    return tuple((name, _text(given, name, where)) for name in given)


def _check_metric(row: PublishedFigure, where: str) -> None:
    """Raise UserError unless the row has what its metric needs."""
    if row.tp * row.pp != row.devices:
        raise UserError(f"{where}: tp {row.tp} x pp {row.pp} is not {row.devices} devices")
    if row.batch is None and (row.metric != "throughput_tok_s" or row.batching != "continuous"):
        raise UserError(f"{where}: batch may be null only for throughput_tok_s under continuous batching")
    if row.metric == "speedup" and not row.options:
        raise UserError(f"{where}: a speedup is relative to the run without options, but the row has no options")
    if row.input_len == 0 and row.metric != "decode_tok_s":
        raise UserError(f"{where}: input_len is 0 (generation from an empty context), but {row.metric} needs a prompt")
    minimum = {"ttft_ms": 1, "throughput_tok_s": 0, "latency_ms": 1}.get(row.metric, 2)
    if row.output_len < minimum:
        raise UserError(f"{where}: {row.metric} needs an output_len of at least {minimum}")


@cache
def _spec_names(folder: str) -> frozenset[str]:
    return frozenset(data.stems(folder))


def _text(fields: Mapping[str, Any], key: str, where: str) -> str:
    value = fields[key]
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where}: {key} is {quoted(value)}; expected text")
    return value.strip()


def _whole(row: Mapping[str, Any], key: str, minimum: int, where: str) -> int:
    value = row[key]
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise UserError(f"{where}: {key} is {quoted(value)}; expected a whole number of at least {minimum}")
    return value


def _figure(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise UserError(f"{where}: value is {quoted(value)}; expected a number above 0")
    return float(value)

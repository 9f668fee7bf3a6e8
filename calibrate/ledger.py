"""The ledger: published end-to-end figures with their sources, on which every release is scored.

One YAML per source in `calibrate/ledger/`.  These rows are never fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any

from llmviewer.core import data
from llmviewer.core.errors import UserError, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.language import record
from llmviewer.language.record import FILLED, Form, stated
from llmviewer.planning.train import OWN
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
    "train_tok_s": "tokens of all devices per second of whole training steps",
}
TRAINING = "train_tok_s"
BATCHING = ("static", "continuous")


_stems = cache(data.stems)


def _stem(folder: str, noun: str) -> Form:
    """The name of a file in a folder of data, which is listed when the first one is read."""

    def form(value: Any) -> Any:
        return record.choice(noun, _stems(folder))(value)

    return form


def _format(parse: Callable[[str], object]) -> Form:
    """A number format as options take it, which `parse` reads."""

    def form(value: Any) -> str:
        parse(record.filled(value))
        return str(value).strip()

    return form


def _options(value: Any) -> tuple[tuple[str, str], ...]:
    """Technique options of a row; their values are checked when the row is predicted."""
    elsewhere = ("quantization", "kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size")
    allowed = [name for name in (*TECHNIQUES, "model_set") if name not in elsewhere]
    return tuple(record.mapped(record.filled, allowed, "option")(value).items())


def _train(value: Any) -> tuple[tuple[str, str], ...]:
    """Options of `train` alone of a row."""
    return tuple(record.mapped(record.filled, OWN, "option of train")(value).items())


def _address(value: Any) -> str:
    """A citation with an address."""
    if "https://" not in (source := record.filled(value)) and "http://" not in source:
        raise UserError(f"{quoted(source)} has no http(s) address")
    return source


@frozen
class PublishedFigure:
    """One published figure, with names of our specs, configs and options.

    batch: concurrent sequences or requests; None if the source runs as many as the KV cache has room for.
    input_len 0: generation from an empty context.  output_len 0: prefill only.  value: in the metric's unit.
    where: table and row in the source.  options: techniques by option name, except those with a field of their own; a
    speedup is relative to the same run without them.  train: further options of a training step.
    """

    hardware: str = field(metadata=stated(_stem("hardware_specs", "hardware")))
    devices: int = field(metadata=stated(record.whole(1)))
    tp: int = field(metadata=stated(record.whole(1)))
    pp: int = field(metadata=stated(record.whole(1)))
    model: str = field(metadata=stated(_stem("model_configs", "model")))
    quantization: str = field(metadata=stated(_format(parse_scheme)))
    kv_cache_dtype: str = field(metadata=stated(_format(parse_cache_dtype)))
    batching: str = field(metadata=stated(record.choice("batching", BATCHING)))
    batch: int | None = field(metadata=stated(record.or_null(record.whole(1))))
    input_len: int
    output_len: int
    metric: str = field(metadata=stated(record.choice("metric", LEDGER_METRICS)))
    value: float = field(metadata=stated(record.ABOVE_ZERO))
    where: str = field(metadata=FILLED)
    note: str = field(default="", metadata=FILLED)
    options: tuple[tuple[str, str], ...] = field(default=(), metadata=stated(_options))
    train: tuple[tuple[str, str], ...] = field(default=(), metadata=stated(_train))

    @property
    def without_options(self) -> PublishedFigure:
        """Copy of this figure without its options."""
        return replace(self, options=())

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """Identity of the figure: run and metric, without the value."""
        run = (self.hardware, self.tp, self.pp, self.model, self.quantization, self.kv_cache_dtype)
        return (
            *run,
            self.batching,
            self.batch,
            self.input_len,
            self.output_len,
            self.metric,
            *map(str, (*self.options, *self.train)),
        )

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


def _check_metric(row: PublishedFigure) -> None:
    """Raise UserError unless the row has what its metric needs."""
    replicas = int(dict(row.options).get("data_parallel_size", 1)) if row.metric == TRAINING else 1
    if row.tp * row.pp * replicas != row.devices:
        copied = f" x data_parallel_size {replicas}" if replicas > 1 else ""
        raise UserError(f"tp {row.tp} x pp {row.pp}{copied} is not {row.devices} devices")
    if row.train and row.metric != TRAINING:
        raise UserError(f"train is of {TRAINING}, not of {row.metric}")
    if row.batch is None and (row.metric != "throughput_tok_s" or row.batching != "continuous"):
        raise UserError("batch may be null only for throughput_tok_s under continuous batching")
    if row.metric == "speedup" and not row.options:
        raise UserError("a speedup is relative to the run without options, but the row has no options")
    if row.input_len == 0 and row.metric != "decode_tok_s":
        raise UserError(f"input_len is 0 (generation from an empty context), but {row.metric} needs a prompt")
    minimum = {"ttft_ms": 1, "throughput_tok_s": 0, "latency_ms": 1, TRAINING: 0}.get(row.metric, 2)
    if row.output_len < minimum:
        raise UserError(f"{row.metric} needs an output_len of at least {minimum}")


def _row(content: Any) -> PublishedFigure:
    """A figure from its row in a file."""
    row = record.read(PublishedFigure, content)
    _check_metric(row)
    return row


@frozen
class PublishedTable:
    """One published table.  engine: as named by the source.  preset: engine preset used to predict it.

    source: citation with address.  conditions: what the figures include.  license: empty if none is stated.
    """

    name: str
    title: str = field(metadata=FILLED)
    source: str = field(metadata=stated(_address))
    engine: str = field(metadata=FILLED)
    preset: str = field(default="", metadata=stated(record.filled, "nearest"))
    engine_version: str = field(metadata=FILLED)
    date: str = field(metadata=FILLED)
    conditions: str = field(metadata=FILLED)
    license: str = field(default="", metadata=FILLED)
    rows: tuple[PublishedFigure, ...] = field(metadata=stated(record.listed(_row, least=1)))


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
    schema = record.choice("schema", (SCHEMA,))
    found = record.values(
        PublishedTable, content, where, beside={"schema": schema}, given=("name",), required=("schema",)
    )
    preset = found.setdefault("preset", found["engine"])
    if preset not in engine.names():
        raise unknown(
            "engine",
            preset,
            engine.names(),
            where=where,
            hint="`nearest` names the preset to use for an engine without one",
        )
    return PublishedTable(name=name, **found)

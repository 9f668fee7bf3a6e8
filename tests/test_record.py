"""Records of files: what forms take and refuse, and a walk that damages every field of every kind of file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from llmviewer.analysis import power_shares
from llmviewer.calibrate import ledger, ledger_score
from llmviewer.calibrate.diagnosis import slots
from llmviewer.core import data
from llmviewer.core.errors import UserError, nearest
from llmviewer.hardware import prices, specs
from llmviewer.language import record
from llmviewer.language.record import ABSENT, stated
from llmviewer.planning import accuracy
from llmviewer.techniques.quantization import presets as quantization
from llmviewer.techniques.speculation import acceptance_presets
from llmviewer.timing import engine, profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of an example."""

    size: int = field(metadata=stated(record.whole(1, 8)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A record with a field of every kind."""

    name: str
    length_m: float = field(metadata=stated(record.number(0.0, 10.0, factor=1e-2), "length_cm"))
    share: float = 1.0
    few: tuple[str, ...] = ()
    pair: tuple[float, float] = (1.0, 2.0)
    by_name: Mapping[str, float] = field(default_factory=dict)
    parts: Mapping[str, Part] = field(default_factory=dict, metadata=stated(record.mapped(partial(record.read, Part))))
    bounds: tuple[float, ...] = field(default=(), metadata=stated(record.numbers(2, rising=True)))
    limit: int | None = None
    closed: bool = False
    inside: float = field(default=3.0, metadata=ABSENT)

    def __post_init__(self) -> None:
        if self.name == "taken":
            raise UserError("the name is taken")


LEAST = {"name": "a", "length_cm": 5}


def test_fields_are_read_under_their_keys_in_their_units() -> None:
    found = record.read(
        Example,
        {
            **{"name": "a", "length_cm": 5, "share": 0, "few": ["x", "y"], "pair": [3, 0.5], "closed": True},
            **{"by_name": {"z": 1}, "parts": {"first": {"size": 8}}, "bounds": [1, 1], "limit": None},
        },
        "f.yaml",
    )
    assert found == Example(
        name="a",
        length_m=0.05,
        share=0.0,
        few=("x", "y"),
        pair=(3.0, 0.5),
        by_name=MappingProxyType({"z": 1.0}),
        parts=MappingProxyType({"first": Part(size=8)}),
        bounds=(1.0, 1.0),
        closed=True,
    )
    assert record.read(Example, LEAST) == Example(name="a", length_m=0.05)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length_cm": 11}, "f.yaml: length_cm: expected a number from 0 to 10, got 11"),
        ({"length_cm": True}, "f.yaml: length_cm: expected a number from 0 to 10, got true"),
        ({"share": math.nan}, "f.yaml: share: expected a finite number from 0, got nan"),
        ({"share": math.inf}, "f.yaml: share: expected a finite number from 0, got inf"),
        ({"share": 10**400}, "f.yaml: share: expected a finite number from 0, got 1000"),
        ({"share": "1"}, "f.yaml: share: expected a finite number from 0, got '1'"),
        ({"name": 3}, "f.yaml: name: expected text, got 3"),
        ({"name": "taken"}, "f.yaml: the name is taken"),
        ({"few": "xy"}, "f.yaml: few: expected a list, got 'xy'"),
        ({"few": ["x", 2]}, "f.yaml: few.2: expected text, got 2"),
        ({"pair": [1]}, "f.yaml: pair: expected 2 numbers, got 1"),
        ({"bounds": [2, 1]}, "f.yaml: bounds: expected ascending values, got 2, 1"),
        ({"by_name": [1]}, "f.yaml: by_name: expected a mapping, got a list"),
        ({"by_name": {1: 2}}, "f.yaml: by_name: expected texts as keys, got 1"),
        ({"parts": {"first": {"size": 2.0}}}, "f.yaml: parts.first.size: expected a whole number from 1 to 8, got 2.0"),
        ({"parts": {"first": {"size": True}}}, "f.yaml: parts.first.size: expected a whole number from 1 to 8, got tr"),
        ({"parts": {"first": {}}}, "f.yaml: parts.first: missing size"),
        ({"parts": {"first": {"sise": 1}}}, "f.yaml: parts.first: unknown key 'sise'; allowed: size; did you mean 'si"),
        ({"closed": 1}, "f.yaml: closed: expected true or false, got 1"),
        ({"limit": "x"}, "f.yaml: limit: expected a whole number from 0, got 'x'"),
        ({"length_m": 1}, "f.yaml: unknown key 'length_m'; allowed: "),
        ({"inside": 1}, "f.yaml: unknown key 'inside'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_line_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as raised:
        record.read(Example, {**LEAST, **change}, "f.yaml")
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UserError, match=r"^f\.yaml: missing name, length_cm$"):
        record.read(Example, {"share": 1}, "f.yaml")
    with pytest.raises(UserError, match=r"^f\.yaml: missing share$"):
        record.values(Example, LEAST, "f.yaml", required=("share",))
    with pytest.raises(UserError, match=r"^f\.yaml: expected a mapping, got a list$"):
        record.values(Example, [], "f.yaml")


def test_keys_beside_the_fields_are_checked_and_no_fields() -> None:
    beside = {"page": record.filled}
    found, others = record.split(Example, {**LEAST, "page": " p "}, beside=beside)
    assert others == {"page": "p"} and "page" not in found
    assert record.read(Example, {**LEAST, "page": "p"}, beside=beside) == record.read(Example, LEAST)
    with pytest.raises(UserError, match=r"^page: expected text, got ' '"):
        record.read(Example, {**LEAST, "page": " "}, beside=beside)


def test_given_fields_stand_in_no_file() -> None:
    assert record.read(Example, {"length_cm": 5}, name="b").name == "b"
    with pytest.raises(UserError, match="unknown key 'name'"):
        record.read(Example, LEAST, name="b")


Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of file.

    content: of a real file.  parse: its reader.  required: places without which it cannot be read.  free: mappings with
    any keys.  deep: mappings in which all are free.  signed: numbers that may be negative.  silent: keys of any value.
    """

    content: Mapping[str, Any]
    parse: Callable[[Any], Any]
    required: tuple[str, ...] = ()
    free: tuple[str, ...] = ()
    deep: tuple[str, ...] = ()
    signed: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()

    def is_free(self, place: Path_) -> bool:
        return bool(place) and (place[-1] in self.free or bool({*place} & {*self.deep}))

    def places(self, value: Any, above: Path_ = ()) -> Iterator[Path_]:
        """Places of the values in a file; of lists and of mappings with any keys, only those of the first entry."""
        inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
        for key, own in inner[:1] if isinstance(value, list) or self.is_free(above) else inner:
            if key not in self.silent:
                yield (*above, key)
                yield from self.places(own, (*above, key))


def of_file(path: str) -> dict[str, Any]:
    return data.read_yaml(data.folder(path))


def hardware() -> Iterator[tuple[str, Kind]]:
    chip = of_file("hardware_specs/h100-sxm.yaml")
    needed = ("name", "generation", "dense_tflops", "memory_capacity_gib", "memory_bandwidth_gb_per_s")
    links = ("links.nvlink.gb_per_s_per_direction", "memory_bandwidth_gb_per_s.value")
    parse = partial(specs.parse, stem="mine")
    yield "chip", Kind(content=chip, parse=parse, required=(*needed, *links), free=("links",), silent=("sources",))
    network = of_file("hardware_specs/networks/infiniband-ndr.yaml")
    yield "network", Kind(content=network, parse=partial(specs.network_of, "x"), required=("gb_per_s_per_direction",))
    host = of_file("hardware_specs/hosts/xeon-6454s-ddr5.yaml") | {"cpu": "epyc-9654"}
    yield "host", Kind(content=host, parse=partial(specs.host_of, "x"), required=("memory_bandwidth_gb_per_s",))
    disk = of_file("hardware_specs/hosts/samsung-990-pro.yaml")
    rates = ("disk_read_gb_per_s", "disk_write_gb_per_s")
    yield "disk", Kind(content=disk, parse=partial(specs.disk_of, "x"), required=rates)
    rows = of_file("hardware_specs/prices/google-cloud.yaml")
    needed = ("rows", "source", "date", *(f"rows.0.{key}" for key in ("chip", "usd_per_gpu_hour", "kind", "term")))
    yield "prices", Kind(content=rows, parse=partial(prices.parse, name="x"), required=needed)


def power() -> Iterator[tuple[str, Kind]]:
    shares = of_file("calibrate/power.yaml")
    needed = ("lender", "server.share", "generations.ampere.idle", "generations.ampere.memory")
    yield (
        "power shares",
        Kind(
            content=shares,
            parse=power_shares.fitted,
            required=needed,
            free=("generations", "held_out_error"),
        ),
    )
    yield (
        "power of sites",
        Kind(
            content=of_file("hardware_specs/power/all-in.yaml"),
            parse=power_shares.ALL_IN,
            required=("source", "date", "all_in_kw_per_gpu"),
            free=("all_in_kw_per_gpu",),
        ),
    )


def profiles() -> Iterator[tuple[str, Kind]]:
    (path,) = data.folder("calibrate/profiles").glob("l40s.yaml")
    head, first, *_ = path.read_text(encoding="utf-8").split("\n---\n")
    header = {**data.mapping(head, path, "YAML"), "fits": 0}
    yield (
        "profile",
        Kind(
            content=header,
            parse=lambda content: profile.parse(yaml.safe_dump(content), path),
            required=("chip", "provenance", "schema"),
            free=("provenance",),
            silent=tuple(header["provenance"]),
        ),
    )
    fit = data.mapping(first.partition("\n")[2], path, "YAML")
    yield (
        "fit",
        Kind(
            content=fit,
            parse=lambda content: profile.fit_of("gemm/bf16/torch", content, "x"),
            required=("constants", "range", "residuals"),
            free=("constants", "rows", "range"),
            deep=("residuals", "error"),
            signed=("rows", "mape", "median", "bias"),
        ),
    )


#: Mappings of the runs of a preset's residuals: by metric, then by origin of the kernels.
OF_SCOPE = ("scope", "tpot_ms", "ttft_ms", "latency_ms", "throughput_tok_s", "decode_tok_s")


def engines() -> Iterator[tuple[str, Kind]]:
    preset = of_file("calibrate/engines/vllm.yaml")
    needed = ("title", "kernels", "constants", "source", "memory.newest", "memory.source", "memory.versions")
    rounds = tuple(f"rounds.0.8.{key}" for key in ("round", "low", "high", "source"))
    of_serves = tuple(f"serves.{key}" for key in ("generations", "formats", "options", "source"))
    yield (
        "engine",
        Kind(
            content=preset,
            parse=lambda content: engine.parse("x", content),
            required=(*needed, *rounds, *of_serves, "memory.versions.0.first", "versions.0.8.source"),
            free=("borrowed", "forced", "versions", "generations", "rounds", "options", "rows", *OF_SCOPE),
            deep=("error", "residuals"),
            signed=("mape", "median", "bias", "rows"),
        ),
    )
    older = of_file("calibrate/engines/llama.cpp.yaml")
    yield (
        "engine with generations",
        Kind(
            content={key: older[key] for key in ("title", "kernels", "source", "constants", "generations", "serves")},
            parse=lambda content: engine.parse("x", content),
            required=(*needed[:4], f"generations.{next(iter(older['generations']))}.constants", *of_serves),
            free=("generations", "options", *OF_SCOPE),
            deep=("error", "residuals"),
            signed=("rows",),
        ),
    )


def presets() -> Iterator[tuple[str, Kind]]:
    risks = ("entries", *(f"entries.0.{key}" for key in ("option", "values", "risk", "source")))
    yield "risks", Kind(content=data.read_yaml(accuracy.FILE), parse=accuracy.ENTRIES, required=risks)
    formats = data.read_yaml(quantization.FILE)["presets"]
    own = next(row for row in formats if isinstance(row.get("weights"), dict) and "caveat" not in row)
    needed = ("presets", *(f"presets.0.{key}" for key in ("names", "method", "source")))
    full = own | {"kept": ["lm_head"], "caveat": "none", "activations": "fp8"}
    yield "formats", Kind(content={"presets": [full]}, parse=quantization.ROWS, required=needed)
    found = data.read_yaml(acceptance_presets.FILE)
    row = found["presets"][0] | {"draft": "x", "drafted": 5, "note": "x"}
    needed = ("name", "method", "target", "dataset", "source")
    yield (
        "acceptance",
        Kind(
            content={"presets": [row], "ranks": found["ranks"]},
            parse=acceptance_presets.ROWS,
            required=(
                *("presets", "ranks", "presets.0.lengths", "ranks.0.success"),
                *(f"{kind}.0.{key}" for key in needed for kind in ("presets", "ranks")),
            ),
            free=("lengths",),
        ),
    )


def evidence() -> Iterator[tuple[str, Kind]]:
    table = of_file("calibrate/ledger/spec-bench.yaml")
    (row,) = [one for one in table["rows"] if "options" in one][:1]
    figure = ("hardware", "devices", "tp", "pp", "model", "quantization", "kv_cache_dtype", "batching", "batch")
    figure += ("input_len", "output_len", "metric", "value", "where")
    head = ("schema", "title", "source", "engine", "engine_version", "date", "conditions", "rows")
    yield (
        "ledger",
        Kind(
            content={**table, "rows": [row]},
            parse=partial(ledger.parse, name="x"),
            required=(*head, *(f"rows.0.{key}" for key in figure)),
        ),
    )
    errors = of_file(ledger_score.RECORD)
    yield (
        "record of the ledger",
        Kind(content=errors, parse=ledger_score.RECORDED, required=("schema", "release", "mape"), free=("mape",)),
    )
    rows = data.read_yaml(slots.TABLE)
    needed = ("kernels", *(f"kernels.0.{key}" for key in ("kind", "engines", "evidence", "names")))
    yield "names of kernels", Kind(content=rows, parse=slots.ROWS, required=needed)


KINDS = {name: kind for made in (hardware, power, profiles, engines, presets, evidence) for name, kind in made()}


def at(content: Any, place: Path_) -> Any:
    for key in place:
        content = content[key]
    return content


def changed(content: Any, place: Path_, value: Any) -> Any:
    """A copy with another value at a place, without it for `...`."""
    copied = deepcopy(content)
    inner = at(copied, place[:-1])
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return copied


def wrong_for(value: Any, *, signed: bool) -> tuple[Any, ...]:
    """Values of other types, and numbers that no file may have."""
    if isinstance(value, bool):
        return ("no", 1, 0.0, [], {})
    if isinstance(value, (int, float)):
        return (True, math.nan, math.inf, -math.inf, "text", [], [1], {}, None, 10**400, *(() if signed else (-1,)))
    if isinstance(value, str):
        return (3, 1.5, True, math.nan, [], ["x"], {}, {"x": 1})
    bare = () if "value" in value else (3,)  # a figure may be a bare number
    return ("x", *bare, True, math.nan, {"x": 1} if isinstance(value, list) else [1])


def said(kind: Kind, content: Any) -> str | None:
    """The error of a file in one line; None if it is read."""
    try:
        kind.parse(content)
    except UserError as error:
        assert "\n" not in str(error)
        return str(error)
    return None


def name_of(place: Path_) -> str:
    """The key that an error about a place names; errors of a figure name its own key."""
    return next(str(key) for key in reversed(place) if isinstance(key, str) and (key != "value" or len(place) == 1))


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_field_is_named_in_one_line(name: str) -> None:
    kind, silent = KINDS[name], []
    assert said(kind, kind.content) is None
    for place in kind.places(kind.content):
        for value in wrong_for(at(kind.content, place), signed=name_of(place) in kind.signed):
            line = said(kind, changed(kind.content, place, value))
            if line is None or name_of(place) not in line:
                silent.append((place, value, line))
    assert silent == []


@pytest.mark.parametrize("name", KINDS)
def test_a_key_one_letter_off_is_refused_with_the_nearest(name: str) -> None:
    kind, silent = KINDS[name], []
    for place in ((), *kind.places(kind.content)):
        own = at(kind.content, place)
        for key in own if isinstance(own, dict) and not kind.is_free(place) else ():
            mistyped = f"{key[:-1]}{'x' if key[-1] != 'x' else 'y'}"
            line = said(kind, changed(kind.content, (*place, mistyped), own[key]))
            near = nearest(mistyped, [key]) is None or "did you mean" in str(line)  # two letters are near to nothing
            if line is None or f"'{mistyped}'" not in line or not near:
                silent.append((place, mistyped, line))
    assert silent == []


@pytest.mark.parametrize("name", KINDS)
def test_what_a_file_must_state_is_named_where_it_is_missing(name: str) -> None:
    kind = KINDS[name]
    missing: dict[str, str] = {}
    silent = []
    for place in kind.places(kind.content):
        if isinstance(place[-1], str):
            line = said(kind, changed(kind.content, place, ...))
            if line is not None:
                missing[".".join(map(str, place))] = line
                named = (place[-1], *kind.content)  # without links, default_link is of none
                silent += [] if any(key in line for key in named) else [(place, line)]
    assert silent == []
    assert set(kind.required) <= set(missing)

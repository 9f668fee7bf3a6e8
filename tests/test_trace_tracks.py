"""Additions of a trace to its events: colours and a track of bounds, counters, arrows, intervals."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.hardware import specs
from llmviewer.reports.trace import BOUND, CACHE, COLOURS, RATES
from llmviewer.timing.roofline import BOUNDS
from tests.test_trace import CONFIGURATIONS, Case, case_of, document_of, every_configuration, result_of

BANDWIDTH, MATRIX = RATES


@pytest.fixture
def case(configuration: str) -> Case:
    return case_of(configuration)


def counters(document: dict[str, Any]) -> dict[tuple[int, str], list[tuple[float, float]]]:
    """Process and name of each counter -> times and values."""
    found = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "C":
            found[event["pid"], event["name"]].append((event["ts"], event["args"]["value"]))
    return found


def complete(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def chain(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Operators that run one after another on the first chip of each stage, by process and start."""
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"}
    serial = [e for e in complete(document) if named[e["pid"], e["tid"]] in ("compute", "copies", "host")]
    return sorted((e for e in serial if "bound" in e["args"]), key=lambda e: (e["pid"], e["ts"]))


@every_configuration
def test_no_rate_exceeds_the_peak_of_the_chip(case: Case) -> None:
    """Bytes over the data sheet's bandwidth, and matrix FLOP over the dense peak of the operator's own dtype."""
    chip = case.result.analysis.system.chip
    peaks = {event["args"]["compute_dtype"] for event in chain(case.document) if event["args"]["matmul_flops"]}
    fastest = max(chip.matrix_rate(name) for name in peaks)
    found = counters(case.document)
    assert {name for _, name in found} == {BANDWIDTH, MATRIX, CACHE}
    for (_, name), samples in found.items():
        limit = {BANDWIDTH: chip.bandwidth_bytes_per_s, MATRIX: fastest, CACHE: float("inf")}[name]
        assert all(0.0 <= value <= limit * (1 + 1e-9) for _, value in samples)
        assert all(one <= two for (one, _), (two, _) in pairwise(samples))
        assert all(one != two for (_, one), (_, two) in pairwise(samples)) or name == CACHE
        assert samples[-1][1] == 0.0 or name == CACHE


def test_ideal_kernels_run_at_the_roofs() -> None:
    """By the data sheet a memory-bound kernel takes all of the bandwidth, 3,350 GB/s on an H100 SXM."""
    found = counters(case_of("ideal").document)
    (bandwidth,) = (samples for (_, name), samples in found.items() if name == BANDWIDTH)
    assert max(value for _, value in bandwidth) == pytest.approx(3.35e12, rel=1e-9)


def test_a_rate_times_the_time_is_the_work() -> None:
    """Bandwidth, integrated over the trace, is the traffic of all kernels: nothing is lost between samples."""
    document = case_of("ideal").document
    found = counters(document)
    for counter, count in RATES.items():
        (samples,) = (values for (_, name), values in found.items() if name == counter)
        work = sum(value * (two - one) * 1e-6 for (one, value), (two, _) in pairwise(samples))
        assert work == pytest.approx(sum(event["args"][count] for event in chain(document)), rel=1e-3)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_the_cache_ends_at_the_memory_of_the_request(configuration: str) -> None:
    """A trace of all steps ends with input_len + output_len - 1 tokens of every sequence in the cache."""
    result = result_of(configuration)
    ends = [row["facts"]["kv_cache_bytes"] for row in result.timeline(10**6) if "kv_cache_bytes" in row["facts"]]
    assert ends[-1] == pytest.approx(result.memory["kv_cache_bytes"], rel=1e-12)
    assert all(one <= two for one, two in pairwise(ends))


def test_the_cache_grows_by_a_token_of_every_sequence_in_a_step() -> None:
    """Llama-3.2-1b: 16 layers x 2 x 8 heads x 64 x 2 bytes = 32,768 per token; 2 sequences of 300 tokens at first."""
    (samples,) = (values for (_, name), values in counters(case_of("dense").document).items() if name == CACHE)
    assert [value for _, value in samples] == [0, *(2 * tokens * 32_768 for tokens in (300, 301, 302, 303))]
    steps = [event for event in complete(case_of("dense").document) if event["cat"] == "step"]
    assert [time for time, _ in samples[1:]] == pytest.approx([step["ts"] + step["dur"] for step in steps])


def test_running_sequences_have_their_room_from_the_start() -> None:
    """Continuous batching reserves the cache of the sequences that run; it does not grow with one request."""
    case = case_of("engine")
    (samples,) = (values for (_, name), values in counters(case.document).items() if name == CACHE)
    assert {value for _, value in samples} == {case.result.memory["kv_cache_bytes"]}


@every_configuration
def test_arrows_pair_up(case: Case) -> None:
    """Each has one start and one end, of one name, later, within events that run at these times."""
    found = defaultdict(list)
    for event in case.document["traceEvents"]:
        if event["ph"] in ("s", "f"):
            found[event["id"]].append(event)
    spans = defaultdict(list)
    for event in complete(case.document):
        spans[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for start, end in found.values():
        assert (start["ph"], end["ph"], end["bp"]) == ("s", "f", "e")
        assert start["name"] == end["name"] and start["cat"] == end["cat"] == "flow"
        assert start["ts"] <= end["ts"]
        for one in (start, end):
            assert any(first <= one["ts"] < last for first, last in spans[one["pid"], one["tid"]])


def test_drafts_point_at_the_pass_that_verifies_them() -> None:
    """3 rounds of 4 draft passes: each hands its token to the next pass, the last one to the verification."""
    rows = [row for row in case_of("draft").rows if row["kind"] == "pass" and not row["name"].startswith("prefill")]
    sent = [arrow for row in rows for arrow in row["sends"]]
    assert len(sent) == 3 * 4 and {name for _, name in sent} == {"draft tokens"}
    for sender, receiver in pairwise(rows):
        assert sender["sends"] == receiver["receives"]
        assert bool(sender["sends"]) == sender["name"].startswith("draft")


def test_the_cache_moves_from_the_prefill_pool_to_the_decode_pool() -> None:
    """Prefill instance -> transfer -> decode instance: two arrows between three processes."""
    document = case_of("machines apart").document
    titles = {e["pid"]: e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"}
    ends = {(e["id"], e["ph"]): titles[e["pid"]] for e in document["traceEvents"] if e["ph"] in ("s", "f")}
    assert len(ends) == 4
    assert "prefill instance" in ends[1, "s"] and "decode instance" in ends[2, "f"]
    assert ends[1, "f"] == ends[2, "s"] == "llama-3.2-1b on h100-sxm"


def test_without_decode_steps_no_arrow_is_left_open() -> None:
    document = document_of(result_of("machines apart"), steps=0)
    assert [e["ph"] for e in document["traceEvents"] if e["ph"] in ("s", "f")] == ["s", "f"]


@every_configuration
def test_the_track_of_bounds_covers_exactly_the_operators(case: Case) -> None:
    """Perfetto colours events by their names, so this track has one colour per bound."""
    operators = chain(case.document)
    shown = sorted(
        (event for event in complete(case.document) if event["cat"] == BOUND), key=lambda e: (e["pid"], e["ts"])
    )
    assert sum(e["dur"] for e in shown) == pytest.approx(sum(e["dur"] for e in operators), rel=1e-6)
    assert {e["name"] for e in shown} == {e["args"]["bound"] for e in operators}
    for one, two in pairwise(shown):
        touching = one["pid"] == two["pid"] and two["ts"] == one["ts"] + one["dur"]
        assert not (touching and one["name"] == two["name"] and one["dur"] and two["dur"]), "neighbours are joined"


@every_configuration
def test_an_operator_has_the_colour_of_its_bound(case: Case) -> None:
    for event in complete(case.document):
        assert event.get("cname") == COLOURS.get(event["args"].get("bound"))


def test_every_bound_has_a_colour_of_its_own() -> None:
    assert set(COLOURS) == set(BOUNDS) | {"overhead"}
    assert len(set(COLOURS.values())) == len(COLOURS)


@every_configuration
def test_times_have_intervals_that_contain_them_unless_they_are_bounds(case: Case) -> None:
    calibrated = case.result.analysis.calibration is not None
    timed = [e["args"] for e in complete(case.document) if "time_s" in e["args"]]
    assert timed
    for args in timed:
        if not calibrated:
            assert "time_interval_s" not in args
        elif "time_interval_s" in args:
            (low95, high95), (low80, high80) = args["time_interval_s"]["95"], args["time_interval_s"]["80"]
            assert 0.0 <= low95 <= low80 < high80 <= high95
    if calibrated:
        assert all("time_interval_s" in e["args"] for e in chain(case.document))


def test_the_interval_of_prefill_is_that_of_the_analysis() -> None:
    """The first step of the trace is TTFT of a static batch; its pass is the prefill stage."""
    case = case_of("dense")
    step, whole = complete(case.document)[:2]
    assert (step["cat"], whole["cat"]) == ("step", "pass")
    for level, bounds in case.result.metrics()["intervals"]["ttft_s"].items():
        assert step["args"]["time_interval_s"][level] == pytest.approx(bounds)
    for level, bounds in case.result.stage("prefill")["time_interval_s"].items():
        assert whole["args"]["time_interval_s"][level] == pytest.approx(bounds)


def test_the_interval_of_an_operator_is_that_of_its_table() -> None:
    """The first decode step reads input_len cached tokens, the table's input_len - 1: 4 of 5 columns agree exactly."""
    result = lv.analyze("llama-3.2-1b", "h100", input_len=64, output_len=3)
    row = next(row for row in result.stage("prefill")["operators"] if row["name"] == "down_proj")
    event = next(event for event in complete(document_of(result)) if event["name"] == "down_proj")
    assert event["args"]["time_s"] == pytest.approx(row["time_s"])
    for level, bounds in row["time_interval_s"].items():
        assert event["args"]["time_interval_s"][level] == pytest.approx(bounds)


def test_counters_of_a_chip_are_below_its_spec_file() -> None:
    """The limits above come from the analysis; this one reads the spec file."""
    chip = specs.load("a100-sxm")
    found = counters(case_of("dense").document)
    (bandwidth,) = (samples for (_, name), samples in found.items() if name == BANDWIDTH)
    most = max(value for _, value in bandwidth)
    assert 0.5 * chip.bandwidth_bytes_per_s < most <= chip.bandwidth_bytes_per_s * (1.0 + 1e-12)

"""`llmviewer trace`: the timeline of a request in the Trace Event Format."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.reports import trace
from llmviewer.result.result import Result

#: Tracks of copies that run beside kernels.
COPY_TRACKS = {"link in", "link out", "host memory", "disk"}
SMALL: dict[str, Any] = {"batch_size": 2, "input_len": 300, "output_len": 8}
#: Configurations that cover every kind of event.
CONFIGURATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": ("llama-3.2-1b", "a100-sxm", {}),
    "ideal": ("llama-3.2-1b", "h100", {"efficiency": "ideal"}),
    "experts": ("qwen3-30b-a3b", "h100", {"quantization": "fp8"}),
    "latent attention": ("deepseek-v2-lite", "h100", {"latent_attention": "absorbed"}),
    "hybrid": ("qwen3-next-80b-a3b", "h200", {"tensor_parallel_size": 2}),
    "engine": ("llama-3.1-8b", "h100", {"engine": "vllm", "quantization": "fp8", "batching": "continuous"}),
    "engine of its own kernels": ("llama-2-7b", "a100-sxm", {"engine": "gpt-fast", "quantization": "w4a16"}),
    "eager engine": ("llama-2-7b", "a100-sxm", {"engine": "torch-eager"}),
    "tensor parallel": ("llama-2-13b", "h100", {"tensor_parallel_size": 4, "engine": "vllm"}),
    "context parallel": ("llama-3.1-8b", "h100", {"context_parallel_size": 4}),
    "pipeline": ("llama-2-13b", "h100", {"pipeline_parallel_size": 3, "batch_size": 4}),
    "micro-batches": ("llama-2-13b", "h100", {"pipeline_parallel_size": "4,microbatches=3", "batch_size": 5}),
    "pipeline of chunks": ("jamba-v0.1", "h100", {"pipeline_parallel_size": 2, "max_num_batched_tokens": 128}),
    "offloaded weights": ("llama-2-13b", "a6000", {"offload": "weights=1"}),
    "offloaded cache": ("llama-2-13b", "a6000", {"offload": "weights=0.5,kv=0.7", "batch_size": 64}),
    "offloaded layers": ("llama-2-13b", "a6000", {"offload": "weights=0.5,overlap=layer"}),
    "offloaded, waiting": ("llama-2-13b", "a6000", {"offload": "weights=0.5,overlap=off"}),
    "computed by the host": ("llama-2-13b", "a6000", {"offload": "weights=0.5,compute=host"}),
    "draft": (
        "llama-3.1-70b",
        "h200",
        {"speculative": "draft=llama-3.2-1b,tokens=4,acceptance=0.8", "quantization": "fp8"},
    ),
    "prompt lookup": ("llama-3.1-8b", "h100", {"speculative": "ngram,tokens=4,acceptance=0.5"}),
    "heads": ("llama-2-7b", "a100-sxm", {"speculative": "medusa"}),
    "a layer that drafts": ("llama-2-7b", "a100-sxm", {"speculative": "eagle,tokens=4,acceptance=0.8"}),
    "chunks": ("llama-3.2-1b", "h100", {"max_num_batched_tokens": 128}),
    "chunks beside decodes": ("llama-3.2-1b", "h100", {"batching": "chunked,tokens=128", "batch_size": 8}),
    "machines apart": ("llama-3.2-1b", "h100", {"batching": "disaggregated,prefill=1,decode=2", "batch_size": 8}),
    "branches": ("llama-2-7b", "a100-sxm", {"branches": "skeleton,outline=3,points=2"}),
    "early exit": ("llama-2-7b", "a100-sxm", {"early_exit": "mean=0.6"}),
    "experts on the host": ("qwen3-30b-a3b", "h100", {"offload": "experts"}),
}


def result_of(configuration: str) -> Result:
    model, hardware, options = CONFIGURATIONS[configuration]
    return lv.analyze(model, hardware, **{**SMALL, **options})


def document_of(result: Result, steps: int = 3, chips: int = 1) -> dict[str, Any]:
    return read(result, result.timeline(steps), chips)


def read(result: Result, rows: list[dict[str, Any]], chips: int = 1) -> dict[str, Any]:
    """The JSON document of a timeline."""
    document: dict[str, Any] = json.loads("\n".join(trace.lines(result, rows, chips)))
    return document


def by_track(document: dict[str, Any]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Start and end of the events of each track, in integer nanoseconds as a viewer reads them."""
    tracks = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            start, lasts = int(event["ts"] * 1e3), int(event["dur"] * 1e3)
            tracks[event["pid"], event["tid"]].append((start, start + lasts))
    return tracks


@dataclass(frozen=True, kw_only=True)
class Case:
    """A result, its timeline of three steps, and the JSON document."""

    result: Result
    rows: list[dict[str, Any]]
    document: dict[str, Any]


@cache
def case_of(configuration: str) -> Case:
    result = result_of(configuration)
    rows = result.timeline(3)
    return Case(result=result, rows=rows, document=read(result, rows))


@pytest.fixture
def case(configuration: str) -> Case:
    return case_of(configuration)


every_configuration = pytest.mark.parametrize("configuration", CONFIGURATIONS)


@every_configuration
def test_events_of_a_track_are_nested_or_disjoint(case: Case) -> None:
    for events in by_track(case.document).values():
        open_ends: list[int] = []
        for start, end in events:
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert start <= end
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


@every_configuration
def test_events_are_sorted_and_well_formed(case: Case) -> None:
    """https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU: fields of X and M events."""
    document = case.document
    assert document["displayTimeUnit"] in ("ns", "ms")
    complete = [event for event in document["traceEvents"] if event["ph"] == "X"]
    named = {(e["pid"], e["tid"]) for e in document["traceEvents"] if e["name"] == "thread_name"}
    titled = {e["pid"] for e in document["traceEvents"] if e["name"] == "process_name"}
    assert {"X", "M", "C"} <= {event["ph"] for event in document["traceEvents"]} <= {"X", "M", "C", "s", "f"}
    for event in complete:
        assert set(event) - {"cname"} == {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
        assert event["ts"] >= 0.0 and event["dur"] >= 0.0
        assert (event["pid"], event["tid"]) in named and event["pid"] in titled
    assert all(one["ts"] <= two["ts"] for one, two in pairwise(complete))


def steps_of(case: Case) -> list[dict[str, Any]]:
    return [row for row in case.rows if row["kind"] == "step"]


@every_configuration
def test_prefill_duration_equals_the_analysis(case: Case) -> None:
    prefills = [row for row in steps_of(case) if row["name"].startswith("prefill")]
    assert prefills[-1]["end_s"] == case.result.analysis.prefill_s[0]


@every_configuration
def test_step_durations_equal_the_analysis(case: Case) -> None:
    """Plain steps: time_s of the pass over input_len, input_len + 1 ... cached tokens."""
    a = case.result.analysis
    steps = [row for row in steps_of(case) if not row["name"].startswith("prefill")]
    assert len(steps) == min(3, len(steps)) > 0
    first = int(a.schedule.decode_starts[0])
    for number, step in enumerate(steps):
        if a.system.scheme is None:
            expected = float(a.step_s[first + number])
            assert step["end_s"] - step["start_s"] == pytest.approx(expected, rel=1e-12)
    assert all(two["start_s"] == one["end_s"] for one, two in pairwise(steps))


@every_configuration
def test_kernels_and_the_engine_fill_the_passes(case: Case) -> None:
    """Events of one device add up to its passes, except for waits for copies."""
    rows = case.rows
    passes = sum(row["end_s"] - row["start_s"] for row in rows if row["kind"] == "pass")
    layers = sum(row["end_s"] - row["start_s"] for row in rows if row["kind"] == "layer")
    chain = sum(
        row["end_s"] - row["start_s"]
        for row in rows
        if row["kind"] not in ("step", "pass", "layer", "transfer") and row["track"] not in COPY_TRACKS
    )
    if case.result.analysis.evaluation.copying:
        assert chain <= passes * (1 + 1e-9)
    else:
        assert chain == pytest.approx(passes, rel=1e-9)
    assert layers <= passes * (1 + 1e-9)


@every_configuration
def test_the_work_of_a_pass_is_the_sum_of_its_operators(case: Case) -> None:
    """FLOPs and bytes of the operators of a decode step, layer by layer, are those of the pass."""
    rows = case.rows
    if case.result.analysis.system.parallelism.pipeline > 1:
        return  # counts of a pass are those of the largest stage
    last = [row for row in rows if row["kind"] == "pass"][-1]
    inside = [row for row in rows if "inputs" in row["facts"] and row["start_s"] >= last["start_s"]]
    copies = {(row["name"], row["facts"].get("layer")): row for row in inside if row["track"] in COPY_TRACKS}
    kernels = [row for row in inside if row["track"] not in COPY_TRACKS]
    for name in ("flops", "traffic_bytes"):
        counted = sum(row["facts"][name] for row in (*kernels, *copies.values()))
        assert counted == pytest.approx(last["facts"][name], rel=1e-9)


def test_layers_of_several_kinds_are_in_model_order() -> None:
    """Qwen3-Next: every fourth of 48 layers is attention, the others are gated delta nets (its config.json)."""
    rows = [row for row in case_of("hybrid").rows if row["kind"] == "layer"][1:49]
    assert [row["facts"]["layer"] for row in rows] == list(range(48))
    kinds = [row["name"].partition(" (")[2].rstrip(")") for row in rows]
    assert [at for at, kind in enumerate(kinds) if kind == kinds[3]] == list(range(3, 48, 4))


def test_pipeline_stages_contain_consecutive_layers() -> None:
    """40 layers of Llama-2-13b on 3 stages as in vLLM: 13, 14, 13."""
    rows = [row for row in case_of("pipeline").rows if row["kind"] == "layer" and "layer" in row["facts"]][:40]
    assert [row["facts"]["layer"] for row in rows] == list(range(40))
    assert [row["stage"] for row in rows] == [0] * 13 + [1] * 14 + [2] * 13


def test_micro_batches_are_pipelined() -> None:
    passes = [row for row in case_of("micro-batches").rows if row["name"] == "decode step 1, micro-batch 2 of 3"]
    first = [row for row in case_of("micro-batches").rows if row["name"] == "decode step 1, micro-batch 1 of 3"]
    assert [row["stage"] for row in passes] == [0, 1, 2, 3]
    assert all(row["start_s"] >= before["end_s"] for row, before in zip(passes, first, strict=True))
    assert passes[0]["start_s"] < first[-1]["end_s"]  # in parallel


def test_contexts_grow_with_every_step() -> None:
    passes = [row for row in case_of("dense").rows if row["kind"] == "pass"]
    assert [row["facts"]["cached_tokens"] for row in passes] == [0, 300, 301, 302]
    reads = [row["facts"]["kv_read_bytes"] for row in case_of("dense").rows if row["name"] == "attention"]
    assert reads[16] < reads[32] < reads[48]


def test_a_round_is_draft_passes_then_verification() -> None:
    """4 passes of the draft, then one of 5 tokens; rounds of 3.3616 expected tokens begin 0, 3 and 6 tokens later."""
    rows = [row for row in case_of("draft").rows if row["kind"] == "pass"]
    names = [row["name"] for row in rows]
    assert names[:2] == ["prefill", "prefill of llama-3.2-1b"]
    assert names[2:7] == [*(f"draft llama-3.2-1b, pass {at} of 4" for at in (1, 2, 3, 4)), "round 1"]
    verified = [row["facts"] for row in rows if row["name"].startswith("round")]
    assert [facts["new_tokens"] for facts in verified] == [5, 5, 5]
    assert [facts["cached_tokens"] for facts in verified] == [300, 303, 306]


def test_copies_run_beside_kernels_on_their_own_track() -> None:
    """All weights of llama-2-13b are loaded over PCIe during the previous layer: the link is never idle in decode."""
    rows = case_of("offloaded weights").rows
    step = next(row for row in rows if row["name"] == "decode step 2" and row["kind"] == "step")
    inside = [row for row in rows if step["start_s"] <= row["start_s"] < step["end_s"]]
    copied = sum(row["end_s"] - row["start_s"] for row in inside if row["track"] == "link in")
    computed = sum(
        row["end_s"] - row["start_s"] for row in inside if row["track"] == "compute" and "bound" in row["facts"]
    )
    whole = step["end_s"] - step["start_s"]
    assert copied > 0.98 * whole > computed


def test_engine_overheads_are_in_the_gaps() -> None:
    rows = [row for row in case_of("engine").rows if row["kind"] == "engine"]
    served = case_of("engine").result.stage("decode")["served_s"]
    assert {row["name"] for row in rows} >= {name for name, seconds in served.items() if name in ("step", "sequence")}
    assert {row["track"] for row in rows} == {"engine"}


def test_every_chip_of_a_stage_has_its_tracks() -> None:
    document = document_of(result_of("tensor parallel"), chips=4)
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "thread_name"]
    assert [name for name in names if "compute" in name] == [f"chip {chip}: compute" for chip in range(4)]
    kernels = [event for event in document["traceEvents"] if event["name"] == "q_proj"]
    alike = defaultdict(set)
    for event in kernels:
        alike[event["ts"]].add(event["tid"])
    assert all(len(chips) == 4 for chips in alike.values())


def test_operator_events_have_their_counts() -> None:
    """q_proj of Llama-2-7b, one token: 2 x 4096 x 4096 FLOP; its weights and two vectors in 16 bit."""
    document = document_of(
        lv.analyze("llama-2-7b", "a6000", efficiency="ideal", batch_size=1, input_len=64, output_len=4)
    )
    event = [event for event in document["traceEvents"] if event["name"] == "q_proj"][-1]
    assert event["cat"] == "gemm"
    assert event["args"]["flops"] == 2 * 4096 * 4096
    assert event["args"]["traffic_bytes"] == 2 * 4096 * 4096 + 2 * 2 * 4096
    assert event["args"]["bound"] == "memory" and event["args"]["layer"] == 31
    assert event["dur"] == pytest.approx(event["args"]["traffic_bytes"] / 768e9 * 1e6, abs=1e-3)


def test_truncating_fractions_keeps_every_nanosecond() -> None:
    for nanoseconds in (0, 1, 290, 570, 1001, 4_503_599_627_370, *range(10**9, 10**9 + 2000)):
        assert int(float(repr(trace.microseconds(nanoseconds))) * 1e3) == nanoseconds


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert main(f"trace llama-3.2-1b --hardware h100 --input-len 64 --steps 2 -o {path}".split()) == 0
    document = json.loads(path.read_text(encoding="utf-8"))
    assert sum(event["cat"] == "step" for event in document["traceEvents"] if event["ph"] == "X") == 3
    assert document["otherData"]["model"] == "llama-3.2-1b"


def test_eighty_layers_and_five_passes_are_within_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    words = f"trace llama-3.1-70b --hardware h100 -tp 8 --engine vllm --steps 4 --chips 1 -o {path}"
    assert main(words.split()) == 0
    assert 5000 < len(json.loads(path.read_text(encoding="utf-8"))["traceEvents"]) < 20_000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--output-len 4000 --steps 3000", "events or more; allowed: at most 250,000"),
        ("--input-len 1000000 --max-num-batched-tokens 16", "events or more; allowed: at most 250,000"),
        ("--batch-size 1000000000 --max-num-batched-tokens 2048", "events or more; allowed: at most 250,000"),
        ("--steps -1", "steps is -1"),
        ("--chips 2", "chips is 2; allowed: 0 to 1"),
        ("-o /nowhere/trace.json", "cannot write"),
    ],
)
def test_bad_input_is_a_one_line_error(
    words: str, message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = [] if "-o" in words else ["-o", str(tmp_path / "trace.json")]
    assert main(["trace", "llama-3.2-1b", "--hardware", "h100", "--no-fit-check", *words.split(), *output]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_more_steps_than_the_request_has_are_truncated(tmp_path: Path) -> None:
    rows = lv.analyze("llama-3.2-1b", "h100", input_len=16, output_len=3).timeline(steps=10**9)
    assert [row["name"] for row in rows if row["kind"] == "step"] == ["prefill", "decode step 1", "decode step 2"]


def test_steps_of_a_chunked_schedule_have_operators() -> None:
    """40,000 steps are evaluated in chunks that keep only times; the timeline re-evaluates its steps."""
    result = lv.analyze("llama-3.2-1b", "h100", input_len=16, output_len=40_000)
    step = next(row for row in result.timeline(2) if row["name"] == "decode step 2" and row["kind"] == "pass")
    first = int(result.analysis.schedule.decode_starts[0])
    assert step["end_s"] - step["start_s"] == pytest.approx(float(result.analysis.passes.time_s[first + 1]), rel=1e-12)  # type: ignore[index]


def test_points_of_a_sweep_have_separate_timelines() -> None:
    many = lv.analyze("llama-3.2-1b", "h100", batch_size=[1, 8], input_len=[64, 200], output_len=[4, 6])
    single = lv.analyze("llama-3.2-1b", "h100", batch_size=8, input_len=200, output_len=6)
    assert many.timeline(3, point=1) == single.timeline(3)


DOCS = (Path(__file__).resolve().parent.parent / "docs" / "guide" / "trace.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [line for line in DOCS.splitlines() if line.startswith("llmviewer ")])
def test_commands_of_the_trace_page_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(line.split()[1:]) == 0
    assert [json.loads(path.read_text(encoding="utf-8"))["traceEvents"] for path in tmp_path.iterdir()]

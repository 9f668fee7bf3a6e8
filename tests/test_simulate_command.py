"""`llmviewer simulate` and `lv.simulate`: output, exit statuses, files, refusals."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.cli.plot import given, loads
from llmviewer.reports import format as fmt
from llmviewer.reports import markdown, simulation_page
from llmviewer.simulation import run as simulation_run

LLAMA = ["llama-3.1-8b", "--hardware", "h100-sxm"]
SHORT = [*LLAMA, "--request-rate", "8", "--requests", "300"]
#: Keys of the JSON object that readers rely on, in their order.
KEYS = (
    "schema requests completed saturated request_rate max_request_rate ttft_s tpot_s itl_s e2e_s queue_s "
    "output_tokens_per_s requests_per_s goodput_requests_per_s running_mean waiting_mean kv_cache_occupancy_mean "
    "preemptions prefix_hit_rate warm_up_s intervals seed"
).split()
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
STATISTICS = {"mean", "p50", "p90", "p95", "p99"}


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the command in this process: (exit status, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words):
        capsys.readouterr()
        status = main(["simulate", *map(str, words)])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def answer(run):
    """The JSON object of a command with its exit status."""

    def answer(*words):
        status, out, err = run(*words, "--format", "json")
        assert err == ""
        return status, json.loads(out)

    return answer


def test_the_json_object_has_the_agreed_keys(answer) -> None:
    status, found = answer(*SHORT)
    assert status == 0
    assert [key for key in found if key in KEYS] == KEYS
    assert found["schema"] == "llmviewer.simulation/1"
    assert all(set(found[name]) == STATISTICS for name in LATENCIES)
    assert (found["requests"], found["completed"], found["request_rate"], found["seed"]) == (300, 300, 8.0, 0)


def test_latencies_are_in_order(answer) -> None:
    """Percentiles ascend; a request waits, gets its first token, then all others."""
    _, found = answer(*SHORT)
    for name in LATENCIES:
        values = [found[name][statistic] for statistic in ("p50", "p90", "p95", "p99")]
        assert values == sorted(values)
    assert found["queue_s"]["mean"] < found["ttft_s"]["mean"] < found["e2e_s"]["mean"]
    mean = found["ttft_s"]["mean"] + 127 * found["tpot_s"]["mean"]  # 128 tokens by default
    assert found["e2e_s"]["mean"] == pytest.approx(mean)


def test_a_saturated_run_tells_what_it_answers_and_no_highest_rate(answer, run) -> None:
    status, found = answer(*LLAMA, "--request-rate", "200", "--requests", "3000")
    assert (status, found["saturated"]) == (1, True)
    for name in LATENCIES:
        values = [found[name][statistic] for statistic in ("p50", "p90", "p95", "p99")]
        assert None not in values and values == sorted(values)
    assert found["goodput_requests_per_s"] == pytest.approx(found["requests_per_s"])
    low, high = found["intervals"]["calibration"]["output_tokens_per_s"]["80"]
    assert low < found["output_tokens_per_s"] < high  # it is never idle: as far off as its times
    assert found["intervals"]["replications"]["output_tokens_per_s"]["80"] == [None, None]  # its queue grows
    assert found["max_request_rate"] is None and 5.0 < found["requests_per_s"] < 100.0
    below, calm = answer(*LLAMA, "--request-rate", 0.7 * found["requests_per_s"], "--requests", "3000")
    assert (below, calm["saturated"]) == (0, False)
    _, page, _ = run(*LLAMA, "--request-rate", "200", "--requests", "3000")
    assert page.startswith(
        f"Verdict  saturated: more requests arrive than the {fmt.per_second(found['requests_per_s'])}/s that"
    )
    text = " ".join(page.split())
    assert "Latencies of a saturated run" in text and "they grow with the length of the run" in text
    assert "scatter of twenty parts" not in text


@pytest.mark.parametrize("traffic", [["--burst"], ["--concurrency", "400"]])
def test_bursts_and_closed_loops_are_never_saturated(answer, traffic) -> None:
    status, found = answer(*LLAMA, *traffic, "--requests", "1000")
    assert (status, found["saturated"], found["request_rate"]) == (0, False, None)


def test_users_of_a_closed_loop_run_or_wait(answer) -> None:
    """Each of 20 users has one request under way."""
    _, found = answer(*LLAMA, "--concurrency", "20", "--requests", "1000")
    assert found["running_mean"] + found["waiting_mean"] == pytest.approx(20.0, rel=0.02)


def test_limits_decide_the_exit_status(answer) -> None:
    met, found = answer(*SHORT, "--ttft", "p99:10s", "--tpot", "1s")
    assert met == 0
    assert found["goodput_requests_per_s"] == pytest.approx(found["requests_per_s"], rel=0.1)
    missed, found = answer(*SHORT, "--ttft", "p99:1ms")
    assert missed == 1
    assert found["goodput_requests_per_s"] == 0.0
    assert [(one["metric"], one["statistic"], one["limit_s"], one["holds"]) for one in found["limits"]] == [
        ("ttft_s", "p99", 0.001, False)
    ]


def test_the_highest_rate_is_within_its_limits_and_a_higher_one_is_not(answer) -> None:
    limits = ("--tpot", "p99:15ms", "--requests", "500")
    status, found = answer(*LLAMA, "--find-rate", *limits)
    assert status == 0
    assert found["tpot_s"]["p99"] <= 0.015
    assert found["request_rate"] == pytest.approx(found["max_request_rate"])
    bounds = found["intervals"]["calibration"]["max_request_rate"]
    low, high = bounds["80"]
    assert bounds["95"][0] <= low <= found["max_request_rate"] <= high <= bounds["95"][1]
    above, beyond = answer(*LLAMA, "--request-rate", 1.1 * found["max_request_rate"], *limits)
    assert above == 1
    assert beyond["tpot_s"]["p99"] > 0.015


def test_no_rate_meets_an_impossible_limit(answer) -> None:
    status, found = answer(*LLAMA, "--find-rate", "--ttft", "1ms", "--requests", "100")
    assert (status, found["max_request_rate"]) == (1, 0.0)


def test_intervals_come_from_replications_and_from_the_calibration(answer) -> None:
    _, found = answer(*SHORT, "--replications", "3")
    for source in ("replications", "calibration"):
        for name in ("ttft_s", "tpot_s", "e2e_s"):
            bounds = found["intervals"][source][name]["mean"]
            assert bounds["95"][0] <= bounds["80"][0] <= found[name]["mean"] <= bounds["80"][1] <= bounds["95"][1]


def test_a_seed_gives_one_answer(answer) -> None:
    first, again, other = (answer(*SHORT, "--seed", seed)[1] for seed in (1, 1, 2))
    assert first == again
    assert first["ttft_s"] != other["ttft_s"]


def test_refused_requests_are_counted_and_named(answer, run) -> None:
    """The model's context is 131,072 tokens."""
    words = [*LLAMA, "--request-rate", "0.02", "--input-len", "uniform,low=100k,high=140k", "--requests", "40"]
    status, found = answer(*words)
    refused = found["refused"]["longer than the longest context"]
    assert 0 < refused < 40
    assert (status, found["requests"], found["completed"]) == (0, 40, 40 - refused)
    assert f"{refused} requests refused as longer than the longest context" in run(*words)[1]
    rows = csv.DictReader(io.StringIO(run(*words, "--format", "csv")[1]))
    assert [row["status"] for row in rows if int(row["input_len"]) >= 131_072] == ["refused"] * refused


@pytest.mark.parametrize(
    "words",
    [
        [*SHORT, "--input-len", "200k"],  # longer than the context
        ["llama-3.1-70b", "--hardware", "a6000", "--request-rate", "1", "--requests", "20"],  # weights do not fit
    ],
)
def test_a_server_that_answers_nothing_exits_1(run, words) -> None:
    status, out, err = run(*words)
    assert (status, err) == (1, "")
    assert out.startswith("Verdict  no request is answered: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [],
            "nothing says when requests arrive; give one of --request-rate, --concurrency, --trace, --burst, "
            "--rate-curve",
        ),
        (["--request-rate", "8", "--concurrency", "4"], "both say when requests arrive"),
        (["--request-rate", "0"], "request-rate is 0; allowed: a number above 0"),
        (["--request-rate", "inf"], "allowed: a number above 0"),
        (["--request-rate", "8", "--requests", "0"], "requests is 0; allowed: whole numbers"),
        (["--request-rate", "8", "--duration", "0s"], "duration is '0s'; allowed: a time above 0"),
        (["--request-rate", "8", "--duration", "1e30h"], "allowed: at most 10,000,000"),
        (["--request-rate", "8", "--arrivals", "gama"], "did you mean 'gamma'?"),
        (["--request-rate", "8", "--input-len", "unifrm,low=1,high=2"], "did you mean 'uniform'?"),
        (["--request-rate", "8", "--ttft", "p98:2s"], "unknown statistic of ttft 'p98'"),
        (["--request-rate", "8", "--ttft", "0s"], "ttft is '0s'; allowed: a time above 0"),
        (["--request-rate", "8", "--requests", "50", "--warm-up", "9h"], "but the last request arrives after"),
        (["--request-rate", "8", "--router", "nearest"], "unknown router 'nearest'"),
        (["--request-rate", "8", "--speed-up", "2"], "speed-up is of a trace or a curve"),
        (["--find-rate", "--concurrency", "4"], "remove --concurrency and --burst"),
        (["--trace", "/nonexistent.csv"], "cannot read '/nonexistent.csv'"),
        (["--rate-curve", "8h:2"], "rate-curve is '8h:2'; allowed: TIME:RATE"),
    ],
)
def test_wrong_options_are_one_line_and_exit_2(run, words, message) -> None:
    status, out, err = run(*LLAMA, *words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_trace_with_times_takes_no_rate(run, tmp_path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_len,output_len\n0,10,2\n1,10,2\n")
    status, _, err = run(*LLAMA, "--trace", path, "--request-rate", "3")
    assert status == 2
    assert "use --speed-up in place of --request-rate" in err


def test_csv_has_a_row_per_request_and_is_a_trace_itself(run, tmp_path) -> None:
    path = tmp_path / "requests.csv"
    assert run(*SHORT, "--output-len", "uniform,low=1,high=50", "-o", path)[0] == 0
    text = path.read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 300
    names = "request arrival_s input_len output_len queue_s ttft_s tpot_s e2e_s cached_tokens preemptions replica"
    assert list(rows[0]) == [*names.split(), "status"]
    assert {row["status"] for row in rows} == {"completed"}
    assert {row["tpot_s"] for row in rows if row["output_len"] == "1"} == {""}, "one token has no time per token"
    status, out, _ = run(*LLAMA, "--trace", path, "--format", "csv")
    again = list(csv.DictReader(io.StringIO(out)))
    assert status == 0
    assert [float(row["e2e_s"]) for row in again] == pytest.approx([float(row["e2e_s"]) for row in rows])


def test_an_output_file_is_no_input(run, tmp_path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,input_len,output_len\n0,10,2\n1,10,2\n")
    before = path.read_bytes()
    status, _, err = run(*LLAMA, "--trace", path, "-o", path)
    assert (status, path.read_bytes()) == (2, before)
    assert "refusing to overwrite" in err


@pytest.mark.parametrize("width", [80, 160])
def test_the_page_fits_the_terminal_and_names_engine_and_scheduler(run, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    status, out, _ = run(*SHORT, "--ttft", "p99:2s")
    assert status == 0
    assert max(map(len, out.splitlines())) <= width
    assert "vllm, scheduler vllm; efficiency: calibrated" in out
    assert all(name in out for name in ("TTFT", "TPOT", "ITL", "E2E", "Queue", "Goodput", "warm-up"))


def test_the_page_shows_each_interval_and_the_rate_of_a_device(answer) -> None:
    """A document with figures of our own: p99 of 2 to 3 s, a mean of 0.5 to 0.6 s, 1000 tokens/s on four devices."""
    _, found = answer(*SHORT)
    bounds = {"p99": {"80": [2.0, 3.0]}, "mean": {"80": [0.5, 0.6]}}
    found["intervals"]["calibration"] = dict.fromkeys(LATENCIES, bounds)
    found |= {"devices": 4, "output_tokens_per_s": 1000.0}
    text = markdown.text(simulation_page.of_document(found))
    head, row = ([cell.strip() for cell in _line_of(text, name).split("|")] for name in ("Latency", "TTFT"))
    assert row[head.index("p99, 80 %")] == "2.00–3.00 s"
    assert row[head.index("Mean, 80 %")] == "500–600 ms"
    assert "1,000 tokens/s, output tokens; 250 per device" in text


def _line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(f"| {name} |"))


def test_an_interrupt_prints_what_has_been_simulated(run, monkeypatch) -> None:
    def interrupted(driven) -> None:
        driven.stations[0].run(range(50))
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation_run, "drive", interrupted)
    status, out, _ = run(*SHORT)
    assert status == 130
    assert out.startswith("Verdict  interrupted after 50 answers; ")


def test_python_gives_the_numbers_of_the_command_line(answer) -> None:
    _, printed = answer(*SHORT)
    found = lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=8, requests=300)
    assert isinstance(found, lv.Simulation)
    assert json.loads(json.dumps(found.to_dict())) == printed
    assert found.holds
    assert not found.saturated


def test_a_frame_has_a_row_per_request() -> None:
    pytest.importorskip("pandas")
    frame = lv.simulate("llama-3.1-8b", "h100-sxm", request_rate=8, requests=50).to_frame()
    assert len(frame) == 50
    assert np.all(frame.e2e_s >= frame.ttft_s)


def test_ideal_times_need_no_engine(answer) -> None:
    status, found = answer(*SHORT, "--efficiency", "ideal")
    assert status == 0
    assert found["intervals"]["calibration"] == {}


@pytest.mark.parametrize(
    ("words", "engine"), [("", "vllm"), (" --engine kernels", "kernels"), (" --engine sglang", "sglang")]
)
def test_reports_and_plots_of_a_load_have_the_engine_that_is_set(words, engine, tmp_path, monkeypatch) -> None:
    line = f"llama-3.2-1b --hardware a100 --request-rate 4 --requests 50{words}".split()
    file, drawn = tmp_path / "report.json", []
    assert main(["report", *line, "--batch-size", "1", "-o", str(file)]) == 0
    (made,) = json.loads(file.read_text(encoding="utf-8"))["loads"].values()
    assert made["engine"].partition(" with ")[0].partition("==")[0] == engine

    def simulated(*given):
        drawn.append(loads.simulated(*given))
        return drawn[-1]

    monkeypatch.setattr(given, "simulated", simulated)
    assert main(["plot", "latency-cdf", *line, "-o", str(tmp_path / "plot.png")]) == 0
    assert drawn[0].setting.engine.partition(" with ")[0].partition("==")[0] == engine

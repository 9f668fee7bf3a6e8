"""Contracts: lines that hold, lines that break and by how much, and wrong lines that are told in one line."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import llmviewer as lv
from llmviewer.cli import main
from llmviewer.core.errors import UserError
from llmviewer.language.quantity import unit_of
from llmviewer.planning import contract_line
from llmviewer.planning.contract_line import OF_SERVERS, condition, subject
from llmviewer.simulation.result import METRICS

DOCS = Path(__file__).resolve().parent.parent / "docs"
LLAMA = "llama-3.1-8b"
ON_L40S = f"{LLAMA} on l40s"
CACHE = f"{LLAMA}: kv_cache_bytes_per_token"
#: A load of few requests.
LOAD = "at 4 requests/s, requests 40, input 128, output 16"

Writer = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    """A function that writes lines to contract.yaml in a folder of its own, and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(*lines: str) -> str:
        (tmp_path / "contract.yaml").write_text("".join(f"- {line}\n" for line in lines), encoding="utf-8")
        return "contract.yaml"

    return write


def only(configuration: str, text: str):  # type: ignore[no-untyped-def]
    """The only line of a checked contract."""
    (line,) = lv.check([{configuration: text}]).lines
    return line


def test_the_cache_of_a_token_is_counted_by_hand() -> None:
    """Keys and values x 32 layers x 8 KV heads x 128 x 2 byte = 131,072 byte = 128 KiB."""
    assert 2 * 32 * 8 * 128 * 2 == 131072 == 128 * 1024
    for text in ("== 131072", "== 128 KiB", "<= 128 KiB", ">= 127 KiB", "== 131.072 kB", "within 0.001 % of 128 KiB"):
        line = only(LLAMA, f"kv_cache_bytes_per_token {text}")
        assert line.holds and line.value == 131072, text
    for text in ("< 128 KiB", "> 128 KiB", "== 128 kB", "<= 127 KiB", ">= 129 KiB"):
        assert not only(LLAMA, f"kv_cache_bytes_per_token {text}").holds, text


def test_a_tolerance_is_a_share_of_the_limit() -> None:
    """5 % of 100 s reach from 95 to 105 s; of 105.2 s they would be 5.26 s."""
    within = condition("tpot_s within 5 % of 100 s")
    assert [within.holds(value) for value in (94.9, 95.0, 105.0, 105.2)] == [False, True, True, False]


def test_a_value_is_that_of_analyze() -> None:
    found = lv.analyze(LLAMA, "l40s", engine="vllm", batch_size=8, input_len=2048, output_len=64, quantization="fp8")
    sizes = "at batch 8, input 2k, output 64"
    for name, value in {
        "tpot_s": found.tpot_s,
        "metrics.e2e_s": found.e2e_s,
        "weights_bytes": found.memory["weights_bytes"],
        "decode.flops": found.stage("decode")["flops"],
        "stages.prefill.time_s": found.stage("prefill")["time_s"],
        "intervals.tpot_s.80.high": found.metrics()["intervals"]["tpot_s"]["80"][1],
    }.items():
        assert only(f"{ON_L40S}, vllm, quantization fp8", f"{name} >= 0 {sizes}").value == value


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("vllm", {"engine": "vllm"}),
        ("vllm==0.19, tp 2", {"engine": "vllm==0.19", "tensor_parallel_size": "2"}),
        ("pp 2", {"pipeline_parallel_size": "2"}),
        ("--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}),
        ("kv_cache_dtype fp8, max_num_batched_tokens 4k", {"kv_cache_dtype": "fp8", "max_num_batched_tokens": 4096}),
        ("enforce_eager, sglang", {"enforce_eager": True, "engine": "sglang"}),
        ("gpu_memory_utilization 0.8", {"gpu_memory_utilization": 0.8}),
        ("batching static,longest=512", {"batching": "static,longest=512"}),
    ],
)
def test_words_are_options_by_any_of_their_names(words: str, options: dict[str, object]) -> None:
    found = subject(f"a/b on h100, {words}")
    assert (found.model, found.hardware, found.options) == ("a/b", "h100", options)


@pytest.mark.parametrize(
    ("text", "value"),
    [("12 ms", 0.012), ("3us", 3e-6), ("2 KiB", 2048.0), ("2 KB", 2000.0), ("1.5 TFLOP/s", 1.5e12), ("60 %", 0.6)],
)
def test_amounts_are_kept_in_si_units(text: str, value: float) -> None:
    assert contract_line.amount(text, "x")[0] == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("metric", "kind"),
    [
        ("tpot_s", "time"),
        ("intervals.ttft_s.80.low", "time"),
        ("output_tokens_per_s_per_user", "token rate"),
        ("state_bytes_per_sequence", "bytes"),
        ("kv_cache_bytes_per_token_beyond_windows", "bytes"),
        ("decode.matmul_flops", "work"),
        ("parameters", "number"),
        ("max_concurrent_requests", "number"),
        ("requests_per_s", "request rate"),
    ],
)
def test_a_name_says_the_kind_of_its_quantity(metric: str, kind: str) -> None:
    assert unit_of(metric).kind == kind


def test_a_planted_regression_breaks_by_its_size(tmp_path: Path) -> None:
    """A config with 16 KV heads in place of 8 stores twice the cache: 256 KiB, 128 KiB above the limit."""
    config = yaml.safe_load((DOCS.parent / "model_configs" / f"{LLAMA}.yaml").read_text(encoding="utf-8"))["config"]
    texts = {}
    for heads in (8, 16):
        (tmp_path / f"{heads}.json").write_text(json.dumps(config | {"num_key_value_heads": heads}), encoding="utf-8")
        texts[heads] = {str(tmp_path / f"{heads}.json"): "kv_cache_bytes_per_token <= 128 KiB"}
    kept, broken = lv.check([texts[8], texts[16]]).lines
    assert kept.holds and kept.difference == 0
    assert not broken.holds and broken.difference == 131072


def test_fits_is_room_in_memory() -> None:
    """70.6 x 10^9 parameters of 2 byte are 141 GB; a device of 80 GB holds them only in four parts."""
    lines = lv.check(
        [
            {"llama-3.1-70b on h100": "fits"},
            {"llama-3.1-70b on h100": "does not fit"},
            {"llama-3.1-70b on h100, tp 4": "fits"},
            {"llama-3.1-70b on h100, tp 4": "room_bytes >= 1 GiB at batch 1"},
        ]
    ).lines
    assert [line.holds for line in lines] == [False, True, True, True]
    memory = lv.analyze("llama-3.1-70b", "h100").memory
    assert lines[0].difference == pytest.approx(memory["budget_bytes"] - memory["total_bytes"], rel=1e-12)


def test_times_of_what_does_not_fit_break_and_bytes_do_not() -> None:
    slow = only("llama-3.1-70b on h100", "tpot_s <= 1000 s")
    assert not slow.holds and slow.reason == "does not fit in memory"
    assert only("llama-3.1-70b on h100", "weights_bytes >= 141 GB").holds


def test_names_of_metrics_are_those_of_no_other_group() -> None:
    found = lv.analyze(LLAMA, "h100", engine="vllm").to_dict()
    assert found["metrics"].keys().isdisjoint({*found["memory"], *found["model"]})


def test_a_load_is_simulated() -> None:
    lengths = {"input_len": "128", "output_len": "16"}
    found = lv.simulate(LLAMA, "h100", request_rate=4, requests=40, **lengths).latencies()["ttft_s"]
    mean, p99 = lv.check(
        [{f"{LLAMA} on h100": f"ttft_s <= 9 s {LOAD}"}, {f"{LLAMA} on h100": f"ttft_s p99 <= 1 us {LOAD}"}]
    ).lines
    assert mean.holds and mean.value == found["mean"]
    assert not p99.holds and p99.difference == pytest.approx(found["p99"] - 1e-6, rel=1e-12)


def test_every_number_of_a_load_is_in_its_answer() -> None:
    made = lv.simulate(LLAMA, "h100", concurrency=2, requests=4, input_len="16", output_len="4").to_dict()
    assert {*OF_SERVERS, *METRICS} <= made.keys()


def test_a_saturated_server_keeps_no_latency() -> None:
    line = only(f"{LLAMA} on l40s", "ttft_s p99 <= 1000 s at 500 requests/s, requests 2000, input 2000, output 20")
    assert not line.holds and line.value is None and line.reason.startswith("the server is saturated: it answers")


def test_the_contract_of_the_docs_holds_and_is_the_one_of_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(DOCS / "contract.yaml")]) == 0
    assert capsys.readouterr().out.startswith("Contract  all of 9 lines hold\n")
    page = (DOCS / "guide" / "contract.md").read_text(encoding="utf-8")
    for name in ("contract.yaml", "github-action.yml"):
        assert f"```yaml\n{(DOCS / name).read_text(encoding='utf-8')}```" in page


def test_the_output_of_the_page_is_real(
    written: Writer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    page = (DOCS / "guide" / "contract.md").read_text(encoding="utf-8")
    shown = page.partition("$ llmviewer check contract.yaml\n")[2]
    assert main(["check", written(f"{CACHE} <= 128 KiB", f"{ON_L40S}, vllm: tpot_s <= 12 ms at batch 8")]) == 1
    assert capsys.readouterr().out.strip() == shown.partition("```")[0].strip()


def test_the_workflow_checks_a_contract_and_keeps_the_xml() -> None:
    (job,) = yaml.safe_load((DOCS / "github-action.yml").read_text(encoding="utf-8"))["jobs"].values()
    assert "llmviewer check contract.yaml --junit contract.xml" in [step.get("run") for step in job["steps"]]
    assert job["steps"][-1]["with"]["path"] == "contract.xml"


def test_json_and_csv_have_every_line_in_si_units(written: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(f"{CACHE} <= 128 KiB", f"{CACHE} <= 127 KiB")
    assert main(["check", path, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "llmviewer.check/1" and found["holds"] is False
    assert [line["holds"] for line in found["lines"]] == [True, False]
    wanted = {
        "line": 2,
        "configuration": LLAMA,
        "condition": "kv_cache_bytes_per_token <= 127 KiB",
        "value": 131072,
        "limit": 127 * 1024,
        "unit": "byte",
        "difference": 1024,
    }
    assert wanted.items() <= found["lines"][1].items()
    assert main(["check", path, "--format", "csv"]) == 1
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["holds"] for row in rows] == ["True", "False"] and rows[1]["difference"] == "1024.0"
    assert main(["check", path, "--format", "markdown"]) == 1
    assert "value 128 KiB, limit 127 KiB: 1 KiB above (+0.8 %)" in capsys.readouterr().out


def test_junit_has_a_case_per_line_and_says_by_how_much_it_fails(written: Writer) -> None:
    model = (DOCS.parent / "model_configs" / f"{LLAMA}.yaml").read_text(encoding="utf-8")
    Path("a<&\x07.json").write_text(json.dumps(yaml.safe_load(model)["config"]), encoding="utf-8")
    path = written(
        f"{CACHE} <= 128 KiB", f"{CACHE} <= 127 KiB", '"./a<&\\x07.json": kv_cache_bytes_per_token < 128 KiB'
    )
    assert main(["check", path, "--junit", "out.xml"]) == 1
    root = ElementTree.parse("out.xml").getroot()
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["errors"]) == ("3", "2", "0")
    kept, broken, equal = root.iter("testcase")
    assert kept.find("failure") is None and kept.attrib["name"] == "kv_cache_bytes_per_token <= 128 KiB"
    failure = broken.find("failure")
    assert failure is not None and failure.attrib["message"] == "value 128 KiB, limit 127 KiB: 1 KiB above (+0.8 %)"
    assert equal.find("failure").attrib["message"] == "value 128 KiB, limit 128 KiB: equal"  # type: ignore[union-attr]
    assert equal.attrib["classname"] == "./a<&?.json"


def test_a_file_is_not_written_over_by_its_answer(written: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(f"{CACHE} <= 128 KiB")
    for words in (["--junit", path], ["-o", path], ["--junit", "a", "-o", "./a"], ["--junit", "no/folder.xml"]):
        assert main(["check", path, *words]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert Path(path).read_text(encoding="utf-8").startswith("- llama") and not Path("a").exists()


#: A wrong line -> a part of the error.
WRONG = {
    f"{ON_L40S}, vlm: fits": "unknown word 'vlm'; did you mean 'vllm'?",
    f"{ON_L40S}, vllm,tp 2: fits": "a blank follows each comma",
    f"{ON_L40S}, tp 2, -tp 4: fits": "tensor_parallel_size is given twice",
    f"{ON_L40S}, tp: fits": "tensor_parallel_size has no value",
    f"{ON_L40S}, quantization fp9: fits": "unknown quantization 'fp9'; did you mean 'fp8'?",
    f"{ON_L40S}, vllm, enforce_eager maybe: fits": "unknown enforce_eager 'maybe'; allowed: false, true",
    f"{LLAMA} on l40z: fits": "unknown chip 'l40z'",
    "llama-3.1-8x on l40s: fits": "unknown model 'llama-3.1-8x'; did you mean 'llama-3.1-8b'?",
    f"{LLAMA} on : fits": "names no chip",
    "on l40s: fits": "names no model",
    f"{LLAMA}: fits": "fits needs a chip",
    f"{LLAMA}: tpot_s <= 1 ms": "other metrics need MODEL on CHIP",
    f"{LLAMA}: parameters > 1 at batch 2": "batch_size needs a chip",
    f"{LLAMA}, quantization fp8: parameters > 1": "quantization needs a chip",
    f"{ON_L40S}: fit": "allowed: METRIC <= or < or",
    f"{ON_L40S}: tpot_s = 1 s": "compares nothing",
    f"{ON_L40S}: <= 1": "metric is ''",
    f"{ON_L40S}: tpot <= 1 ms": "unknown metric 'tpot'; did you mean 'tpot_s'?",
    f"{ON_L40S}: decode.flop <= 1": "unknown metric of decode 'flop'",
    f"{ON_L40S}: max_context_len >= 1": "write memory.max_context_len or model.max_context_len",
    f"{ON_L40S}: tpot_s <= 1 GB": "tpot_s is not in GB; allowed: us, ms, s, m, h, d, or a number alone",
    f"{ON_L40S}: tpot_s <= 1 mss": "unknown unit 'mss'; did you mean 'ms'?",
    f"{ON_L40S}: parameters <= 8 B": "parameters is not in B; allowed: %, million, billion",
    f"{ON_L40S}: tpot_s <= 1e999 s": "the limit is '1e999 s'",
    f"{ON_L40S}: tpot_s <= ٣ s": "the limit is",
    f"{ON_L40S}: tpot_s within 5 of 3 s": "within 5 % of 12 ms",
    f"{ON_L40S}: tpot_s within nan % of 3 s": "within 5 % of 12 ms",
    f"{ON_L40S}: tpot_s <= 1 s at batch 0": "batch_size is 0; allowed: whole numbers from 1",
    f"{ON_L40S}: tpot_s <= 1 s at batch 1, batch 2": "batch_size is given twice",
    f"{ON_L40S}: tpot_s <= 1 s at": "unknown size ''",
    f"{ON_L40S}: tpot_s <= 1 s at bach 8": "did you mean 'batch'?",
    f"{ON_L40S}: tpot_s <= 1 s at output 1": "tpot_s has no value",
    f"{ON_L40S}: tpot_s <= 1 s at requests 9": "requests is of a load",
    f"{ON_L40S}: ttft_s p99 <= 1 s": "add at 8 requests/s, or at 64 users",
    f"{ON_L40S}: ttft_s p98 <= 1 s at 8 requests/s": "unknown statistic 'p98'",
    f"{ON_L40S}: ttft_s <= 1 GB at 8 requests/s": "ttft_s is not in GB",
    f"{ON_L40S}: tfft_s <= 1 s at 8 requests/s": "unknown metric of a load 'tfft_s'",
    f"{ON_L40S}: utilization p99 <= 1 at 8 requests/s": "utilization has no p99",
    f"{ON_L40S}: fits at 8 requests/s": "fits is of one batch",
    f"{ON_L40S}: ttft_s <= 1 s at 8 requests/s, batch 2": "batch is of one batch",
    f"{ON_L40S}: ttft_s <= 1 s at -8 requests/s": "request_rate is -8",
    f"{ON_L40S}: ttft_s <= 1 s at 8 requests/s, 64 users": "both say when requests arrive",
    "[a, b]": "a sequence; expected one entry",
    "{a: b, c: d}": "a mapping of 2 entries",
    "{a: [b]}": "expected one entry",
    "fits": "a scalar; expected one entry",
    "[x": "while parsing",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_line_is_told_with_its_number(line: str, written: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", written(f"{CACHE} <= 128 KiB", line), "--junit", "out.xml"]) == 2
    printed = capsys.readouterr()
    (error,) = printed.err.splitlines()
    assert error.startswith("error: 'contract.yaml', line 2: ") or line == "[x"
    assert WRONG[line] in error and not printed.out and not Path("out.xml").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "# nothing", "a: b", "- a: b\n- b\n--- c", "\0", "- &a {a: *a}", "[" * 5000]
)
def test_a_file_that_is_no_contract_is_told(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    assert main(["check", str(tmp_path / "x.yaml")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["check", str(tmp_path / "missing.yaml")]) == main(["check", str(tmp_path)]) == 2


@pytest.mark.parametrize("contract", [[], [{}], ["a: b"], [{"a": "b", "c": "d"}], [{"a": 3}], 7, None, {"a": "b"}])
def test_wrong_lists_of_python_are_refused(contract: object) -> None:
    with pytest.raises(UserError):
        lv.check(contract)  # type: ignore[arg-type]


def test_a_check_in_python_has_frames_and_the_same_line_twice() -> None:
    made = lv.check([{LLAMA: "parameters > 8 billion"}] * 2)
    assert made.holds and not made.broken and repr(made) == "<Check: 2 lines, 0 break>"
    assert made.to_frame()["value"].tolist() == [8030261248] * 2


WORDS = st.sampled_from(
    f"{LLAMA}| on |l40s|, |tp |vllm|tpot_s|<=| within |5 %| of |12 ms| at |batch |8 requests/s|fits|2|room_bytes"
    "|decode.|\n|:|- |=|e9|p99 |quantization |model.|parameters|%|KiB".split("|")
)


@settings(max_examples=150, deadline=None)
@given(st.lists(WORDS | st.text(max_size=6), max_size=9).map("".join))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    for read in (subject, condition):
        try:
            read(text)
        except UserError as error:
            assert len(str(error).splitlines()) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS | st.text(max_size=6), max_size=9).map("".join))
def test_any_file_is_checked_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "contract.yaml"
    path.write_text(f"- {text}\n", encoding="utf-8", errors="replace")
    try:
        lv.check(path)
    except UserError as error:
        assert len(str(error).splitlines()) == 1

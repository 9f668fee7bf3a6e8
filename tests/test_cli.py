"""Commands of the command line: output, exit statuses, files."""

import csv
import io
import json
import math
import os
import pty
import stat
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from llmviewer import models
from llmviewer.cli import COMMANDS, main
from llmviewer.core.errors import UserError
from llmviewer.result import describe

LLAMA = ["llama-2-7b", "--hardware", "a6000"]
ANSI = "\x1b["


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command in this process: (exit status, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words):
        capsys.readouterr()
        status = main([str(word) for word in words])
        return (status, *capsys.readouterr())

    return run


@pytest.fixture
def run_json(run):
    """JSON output of a command that exits 0."""

    def run_json(*words):
        status, out, err = run(*words, "--format", "json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return run_json


def process(*words, **environment):
    command = [sys.executable, "-c", "from llmviewer.cli import run; run()", *words]
    return subprocess.run(command, capture_output=True, env={**os.environ, **environment}, check=False)


STAGE = "time_s ideal_time_s flops matmul_flops traffic_bytes bound new_tokens cached_tokens operators".split()
OPERATOR = (
    "name block kind layers flops matmul_flops traffic_bytes weight_read_bytes activation_read_bytes "
    "activation_write_bytes kv_read_bytes kv_write_bytes arithmetic_intensity attainable_flops_per_s bound time_s "
    "ideal_time_s inputs output_shape compute_dtype"
).split()
SCHEMA = {
    "model": "name architecture parameters active_parameters kv_cache_bytes_per_token "
    "kv_cache_bytes_per_token_beyond_windows state_bytes_per_sequence",
    "hardware": "name aliases memory_bytes bandwidth_bytes_per_s peak_flops_per_s vector_flops_per_s",
    "workload": "batch_size input_len output_len",
    "parallelism": "devices tensor pipeline",
    "efficiency": "kind profile",
    "memory": "weights_bytes kv_cache_bytes activations_bytes framework_bytes total_bytes capacity_bytes fits "
    "max_batch_size max_context_len",
    "metrics": "ttft_s tpot_s e2e_s output_tokens_per_s output_tokens_per_s_per_user output_tokens_per_s_per_device "
    "prefill_mfu decode_mbu",
}


def test_analyze_json_has_every_key_of_the_public_schema(run_json):
    answer = run_json("analyze", *LLAMA)
    assert answer["schema"] == "llmviewer.analysis/1"
    assert {"warnings", "passes", "provenance"} <= set(answer)
    for part, keys in SCHEMA.items():
        assert set(keys.split()) <= set(answer[part]), part
    assert list(answer["stages"]) == ["prefill", "decode"]
    for stage in answer["stages"].values():
        assert set(STAGE) <= set(stage)
        for operator in stage["operators"]:
            assert set(OPERATOR) <= set(operator)


@pytest.mark.parametrize("model", ["llama-2-7b", "deepseek-v2-lite", "gemma-2-2b", "jamba-v0.1"])
def test_stage_totals_are_exactly_the_sum_of_operators_times_layers(run_json, model):
    answer = run_json("analyze", model, "--hardware", "h100", "--no-fit-check")
    for stage in answer["stages"].values():
        for field in ("flops", "matmul_flops", "traffic_bytes"):
            assert stage[field] == sum(row[field] * row["layers"] for row in stage["operators"]), field
        times = [row["time_s"] * row["layers"] for row in stage["operators"]]
        assert stage["time_s"] == pytest.approx(math.fsum(times), rel=1e-14)  # the order of additions


def test_analyze_csv_has_a_row_per_stage_and_operator_with_the_same_numbers(run, run_json):
    answer = run_json("analyze", *LLAMA)
    rows = list(csv.DictReader(io.StringIO(run("analyze", *LLAMA, "--format", "csv")[1])))
    operators = [(name, row) for name, stage in answer["stages"].items() for row in stage["operators"]]
    assert len(rows) == len(operators)
    for row, (stage, operator) in zip(rows, operators, strict=True):
        assert (row["stage"], row["name"], row["bound"]) == (stage, operator["name"], operator["bound"])
        assert float(row["time_s"]) == operator["time_s"]
        assert (row["model"], row["hardware"], row["batch_size"]) == ("llama-2-7b", "a6000", "1")


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_a_workload_that_does_not_fit_is_answered_in_full_with_status_1(run, form):
    status, out, err = run("analyze", *LLAMA, "--batch-size", 64, "--format", form)
    unchecked_status, unchecked, _ = run("analyze", *LLAMA, "--batch-size", 64, "--format", form, "--no-fit-check")
    assert (status, unchecked_status, err) == (1, 0, "")
    assert len(out.splitlines()) >= len(unchecked.splitlines()) > 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["analyzer"], "unknown command 'analyzer'; did you mean 'analyze'? (see llmviewer --help)"),
        (["analyse"], "missing MODEL"),
        (["analyze"], "missing "),
        (["analyze", "llama-2-7b"], "--hardware"),
        (["analyze", *LLAMA, "--bach-size", "2"], "--batch-size"),
        (["analyze", *LLAMA, "--batch-size", "two"], "two"),
        (["analyze", *LLAMA, "--batch-size", "0"], "batch-size is 0; allowed"),
        (["analyze", *LLAMA, "--input-len", "-5"], "input-len is -5"),
        (["analyze", *LLAMA, "--output-len", "99999999999"], "output-len is"),
        (["analyze", *LLAMA, "--format", "tabel"], "unknown format 'tabel'; allowed: csv, json, markdown, table"),
        (["analyze", *LLAMA, "--dtype", "bf17"], "unknown dtype 'bf17'"),
        (["analyze", *LLAMA, "--attention", "flsh"], "did you mean 'flash'"),
        (["analyze", *LLAMA, "--gpu-memory-utilization", "90"], "above 0, at most 1"),
        (["analyze", "llama-2-7c", "--hardware", "a6000"], "did you mean 'llama-2-7b'"),
        (["analyze", "llama-2-7b", "--hardware", "a6001"], "did you mean 'a6000'"),
        (["analyze", "no\nsuch\x1b[2Jmodel", "--hardware", "a6000"], "unknown model"),
        (["analyze", *LLAMA, "--kv-cache-dtype", "auto;fp8"], "for lists use compare"),
        (["analyze", *LLAMA, "--kv-cache-dtype", "auto;fp8"], "--kv-cache-dtype auto,fp8"),
        (["compare", "llama-2-7b", "--hardware", "a6000,,h100"], "a value between the commas is missing"),
        (
            ["sweep", "llama-2-7b", "--hardware", "h100", "--kv-cache-dtype", "auto;fp8"],
            "kv-cache-dtype is 'auto;fp8'; its values are separated by commas: auto,fp8",
        ),
        (["compare", "llama-2-7b", "--hardware", ""], "hardware is ''"),
        (["compare", "llama-2-7b", "--hardware", "a6000,h101"], "unknown chip 'h101'"),
        (["compare", "llama-2-7b", "--hardware", "t4", "--format", "yaml"], "unknown format 'yaml'"),
        (["compare", "llama-2-7b", "--hardware", "t4", "--batch-size", "0"], "batch-size is 0"),
        (["models", "shwo"], "unknown models command 'shwo'; allowed: fetch, list, show; did you mean 'show'?"),
        (["models", "show"], "missing "),
        (["models", "show", "gpt5"], "unknown model 'gpt5'"),
        (["models", "list", "--format", "yml"], "unknown format 'yml'"),
        (["hardware", "show", "h20000"], "unknown chip"),
        (["hardware", "list", "extra"], "extra"),
    ],
)
def test_wrong_input_is_one_line_on_stderr_and_status_2(run, words, message):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
    assert message in err


@pytest.mark.parametrize("words", [[], ["--help"], ["models"], ["hardware"], *([name, "--help"] for name in COMMANDS)])
def test_help_exits_0(run, words):
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    assert "Usage: llmviewer" in out


@pytest.mark.parametrize("words", [["analyze"], ["calibrate", "run"], []])
def test_help_of_a_command_is_that_of_its_option(run, words):
    assert run("help", *words) == run(*words, "--help")


def test_the_list_of_commands_imports_none_of_them():
    code = "import sys; from llmviewer.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(f"\n  {name} " in found.stdout for name in COMMANDS)
    assert not {module for module, _ in COMMANDS.values()} & set(found.stderr.split())


def test_the_version_is_printed(run):
    import llmviewer

    assert run("--version") == (0, f"{llmviewer.__version__}\n", "")


def test_a_configuration_compared_with_itself_has_ratio_1(run_json):
    answer = run_json("compare", "llama-2-7b", "--hardware", "a6000,a6000")
    assert answer["schema"] == "llmviewer.comparison/1"
    first, second = answer["configurations"]
    unknown = {name for name, ratio in second["ratio_to_first"].items() if ratio is None}
    assert all(name.startswith(("usd_", "output_tokens_per_usd", "break_even_", "grams_")) for name in unknown)
    assert "usd_per_million_output_tokens" in unknown, "the A6000 has no known price"
    assert {ratio for ratio in second["ratio_to_first"].values() if ratio is not None} == {1.0}
    assert first == second


def test_a_comparison_contains_the_analysis_of_every_configuration(run_json):
    answer = run_json("compare", "llama-2-7b,llama-3.2-1b", "--hardware", "a6000,h100", "--quantization", "none,w4a16")
    found = [(c["model"]["name"], c["hardware"]["name"], c["quantization"]) for c in answer["configurations"]]
    assert found == [
        (model, chip, scheme)
        for model in ("llama-2-7b", "llama-3.2-1b")
        for chip in ("a6000", "h100-sxm")
        for scheme in ("none", "w4a16")
    ]
    single = run_json("analyze", "llama-3.2-1b", "--hardware", "h100")
    single = {key: value for key, value in single.items() if not key.startswith("served")}  # of one run alone
    assert {key: answer["configurations"][6][key] for key in single} == single


def test_ratios_are_to_the_first_configuration(run_json):
    words = ("compare", "llama-2-7b", "--hardware", "a6000,h100", "--efficiency", "ideal")
    a6000, h100 = run_json(*words)["configurations"]
    # both memory-bound: 768 GB/s against 3350 GB/s
    assert h100["ratio_to_first"]["tpot_s"] == pytest.approx(768 / 3350)
    assert h100["ratio_to_first"]["ttft_s"] == h100["metrics"]["ttft_s"] / a6000["metrics"]["ttft_s"]


def test_a_ratio_of_undefined_metrics_is_null(run_json):
    answer = run_json("compare", "llama-2-7b", "--hardware", "a6000,h100", "--output-len", 1)
    assert [c["ratio_to_first"]["tpot_s"] for c in answer["configurations"]] == [None, None]


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_a_comparison_shows_configurations_that_do_not_fit(run, form):
    words = ["compare", "llama-2-7b", "--hardware", "t4,h100", "--batch-size", 8, "--format", form]
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    assert "t4" in out
    assert "h100-sxm" in out
    nowhere = ["compare", "llama-2-70b", "--hardware", "t4,l4", "--format", form]
    assert run(*nowhere)[0] == 1, "none fits"
    assert run(*nowhere, "--no-fit-check")[0] == 0


def test_a_comparison_of_more_than_twelve_is_rejected_with_its_count(run):
    words = ["compare", "llama-2-7b", "--hardware", "t4,l4,a10,h100,a40", "--quantization", "none,w8a8,w4a16"]
    assert run(*words) == (
        2,
        "",
        "error: 15 configurations; compare shows at most 12, sweep takes any number\n",
    )


def test_a_comparison_in_csv_has_a_row_per_configuration(run):
    out = run("compare", "llama-2-7b", "--hardware", "a6000,h100", "--format", "csv")[1]
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["hardware"] for row in rows] == ["a6000", "h100-sxm"]
    assert float(rows[0]["ttft_s_ratio_to_first"]) == 1.0


def test_every_model_is_listed_and_read(run_json):
    objects = run_json("models", "list")
    assert [entry["name"] for entry in objects] == models.names()
    assert [entry for entry in objects if "error" in entry] == []
    for entry in objects:
        assert set(SCHEMA["model"].split()) <= set(entry)


def test_an_unreadable_model_does_not_break_the_list(run, monkeypatch):
    load = models.load

    def failing(name, **options):
        if name == "gpt2":
            raise UserError("gpt2: missing field 'n_head'")
        return load(name, **options)

    monkeypatch.setattr(describe.models, "load", failing)
    for form in ("table", "json", "csv", "markdown"):
        status, out, _ = run("models", "list", "--format", form)
        assert status == 0
        assert "missing field 'n_head'" in out
        assert "llama-2-7b" in out


def test_every_chip_is_listed_with_its_figures(run_json):
    objects = run_json("hardware", "list")
    assert len(objects) >= 35
    for entry in objects:
        assert set(SCHEMA["hardware"].split()) <= set(entry)


def test_a_model_is_shown_with_its_config_and_published_figures(run_json):
    card = run_json("models", "show", "meta-llama/Llama-2-7b-hf")
    assert card["name"] == "llama-2-7b"
    assert card["parameters"] == card["published_parameters"]["value"] == 6_738_415_616
    assert card["config"]["num_hidden_layers"] == 32
    assert card["source"].startswith("https://")
    assert card["kv_cache_bytes_per_token"] == 512 * 1024


def test_a_chip_is_shown_with_a_source_for_every_figure(run_json):
    card = run_json("hardware", "show", "a6000")
    assert card["peak_flops_per_s"]["fp16"] == 154.8e12
    for figure in card["figures"].values():
        assert figure["source"].startswith("https://")


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
@pytest.mark.parametrize("words", [["models", "show", "gpt-oss-20b"], ["hardware", "show", "groq-lpu"]])
def test_cards_come_in_every_format(run, words, form):
    status, out, err = run(*words, "--format", form)
    assert (status, err) == (0, "")
    assert out.endswith("\n")
    assert ANSI not in out


def test_a_user_config_is_shown_and_analyzed(run, run_json, tmp_path):
    config = run_json("models", "show", "llama-3.2-1b")["config"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    assert run_json("models", "show", tmp_path / "mine")["parameters"] == 1_235_814_400
    status, out, _ = run("analyze", tmp_path / "mine" / "config.json", "--hardware", "a6000")
    assert status == 0
    assert "mine (LlamaForCausalLM)" in out


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_an_output_file_has_the_terminal_text_and_nothing_is_printed(run, tmp_path, form):
    target = tmp_path / "answer"
    assert run("hardware", "list", "--format", form, "-o", target) == (0, "", f"wrote {target}\n")
    text = target.read_text()
    assert "a6000" in text
    assert ANSI not in text
    if form != "table":  # a file has no width limit: its table keeps every column
        assert text == run("hardware", "list", "--format", form)[1]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("suffix", [".json", ".CSV", ".md", ".txt", ""])
def test_the_suffix_of_the_output_file_sets_the_format_unless_one_is_given(run, tmp_path, suffix):
    form = {".json": "json", ".CSV": "csv", ".md": "markdown"}.get(suffix, "table")
    paths = [tmp_path / f"{name}{suffix}" for name in ("by_suffix", "by_name", "other")]
    assert run("hardware", "show", "a6000", "-o", paths[0]) == (0, "", f"wrote {paths[0]}\n")
    assert run("hardware", "show", "a6000", "--format", form, "-o", paths[1]) == (0, "", f"wrote {paths[1]}\n")
    assert run("hardware", "show", "a6000", "--format", "csv", "-o", paths[2]) == (0, "", f"wrote {paths[2]}\n")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert (paths[0].read_bytes() == paths[2].read_bytes()) is (form == "csv")


def test_a_sweep_in_parquet_is_one_by_its_name(run, tmp_path):
    assert run("sweep", *LLAMA, "-o", tmp_path / "s.parquet")[0] == 0
    assert (tmp_path / "s.parquet").read_bytes().startswith(b"PAR1")


def test_a_suffix_of_another_commands_format_is_refused(run, tmp_path):
    status, _, err = run("hardware", "list", "-o", tmp_path / "h.xlsx")
    assert (status, err) == (2, "error: unknown format 'xlsx'; allowed: csv, json, markdown, table\n")
    assert list(tmp_path.iterdir()) == []


def test_an_output_called_minus_is_the_terminal(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("hardware", "show", "a6000", "-o", "-") == run("hardware", "show", "a6000")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["missing/answer.json", "folder", "n" * 300])
def test_an_unwritable_output_path_leaves_nothing_behind(run, tmp_path, place):
    (tmp_path / "folder").mkdir()
    status, out, err = run("hardware", "show", "a6000", "-o", tmp_path / place)
    assert (status, out) == (2, "")
    assert err.startswith("error: -o: cannot write")
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]


def test_wrong_input_writes_no_file(run, tmp_path):
    assert run("analyze", *LLAMA, "--batch-size", 0, "-o", tmp_path / "answer")[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_to_and_not_replaced(run, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    assert run("hardware", "show", "a6000", "-o", pipe)[0] == 0
    assert b"NVIDIA RTX A6000" in reader.communicate(timeout=300)[0]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_symbolic_link_is_kept(run, tmp_path):
    (tmp_path / "link").symlink_to("target")
    assert run("hardware", "show", "a6000", "-o", tmp_path / "link")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").is_file()


def test_a_pipe_gets_no_colours_and_the_width_of_columns():
    done = process("analyze", *LLAMA, COLUMNS="80", PYTHONUTF8="1", TERM="xterm-256color")
    assert (done.returncode, done.stderr) == (0, b"")
    assert ANSI.encode() not in done.stdout
    assert max(map(len, done.stdout.decode().splitlines())) <= 80


@pytest.mark.parametrize(("variable", "coloured"), [("COLORTERM", True), ("NO_COLOR", False)])
def test_a_terminal_gets_colours_unless_disabled(variable, coloured):
    output = on_a_terminal("hardware", "show", "a6000", **{variable: "1", "TERM": "xterm-256color"})
    assert b"RTX A6000" in output
    assert (ANSI.encode() in output) is coloured


def on_a_terminal(*words, **environment):
    """Output received by a pseudo-terminal."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-c", "from llmviewer.cli import run; run()", *words]
    with subprocess.Popen(command, stdout=theirs, env={**kept, **environment}) as running:
        os.close(theirs)
        received = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:
                break
            if not piece:
                break
            received += piece
        running.wait(timeout=300)
    os.close(ours)
    return received


def test_a_terminal_without_utf8_gets_plain_characters():
    done = process("analyze", *LLAMA, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    assert "layer x 32" in text
    assert " us " in text


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -c 'from llmviewer.cli import run; run()' analyze llama-2-7b --hardware a6000"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command} --format json | head -1"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{\n", b"")


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
def test_a_full_disk_is_a_one_line_error():
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", "from llmviewer.cli import run; run()", "hardware", "show", "a6000"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 2
    assert done.stderr.decode() == "error: cannot write to the terminal: No space left on device\n"


@pytest.mark.parametrize("name", ["analyze", "compare", "models", "hardware"])
def test_a_command_imports_nothing_heavy_before_it_is_needed(name):
    script = (
        f"import sys, llmviewer.cli.{name}; "
        "print([m for m in ('pandas', 'matplotlib', 'rich', 'torch', 'reports') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


@pytest.mark.parametrize(("seconds", "terminal", "shown"), [(0.0, True, False), (2.0, True, True), (2.0, False, False)])
def test_a_sweep_of_over_a_second_shows_its_progress_on_a_terminal(run, monkeypatch, seconds, terminal, shown):
    monkeypatch.setenv("FORCE_COLOR", "1" if terminal else "")  # rich takes the stream for a terminal
    ticks = count()
    monkeypatch.setattr("time.monotonic", lambda: seconds * next(ticks))
    status, out, err = run("sweep", "llama-2-7b", "--hardware", "a6000", "--batch-size", "1,2", "--format", "csv")
    assert status == 0
    assert out.count("\n") == 3  # a header and two points: the progress bar is not in stdout
    assert ("2/2" in err) == shown


def test_a_sweep_with_an_impossible_point_writes_nothing(run):
    status, out, err = run("sweep", "llama-2-7b", "--hardware", "groq-lpu", "--dtype", "fp32", "--format", "json")
    assert (status, out) == (2, "")
    assert "no matrix rate for 'fp32'" in err


def test_calibrated_rows_are_marked_and_have_columns_for_interval_bounds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (
        ["analyze", "llama-3.2-1b", "--hardware", "h100"],
        ["sweep", "llama-3.2-1b", "--hardware", "h100", "--efficiency", "calibrated"],
        ["compare", "llama-3.2-1b", "--hardware", "h100,rtx-4090", "--efficiency", "calibrated"],
    ):
        assert main([*words, "--format", "csv"]) == 0
        for row in csv.DictReader(io.StringIO(capsys.readouterr().out)):
            assert row["efficiency"] == "calibrated"
            name = "time" if words[0] == "analyze" else "tpot"
            assert float(row[f"{name}_low80_s"]) <= float(row[f"{name}_s"]) <= float(row[f"{name}_high80_s"])


def test_a_comparison_states_the_origin_of_each_chips_constants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "llama-3.2-1b", "--hardware", "h100,rtx-4090", "--efficiency", "calibrated"]) == 0
    message = " ".join(capsys.readouterr().out.split())
    assert "h100-sxm: kernels measured on h100-sxm" in message
    assert "rtx-4090: kernels not measured on this chip" in message

"""Terminal and Markdown tables of a result."""

import io
import re
from functools import cache

import numpy as np
import pytest

from llmviewer.cli import main
from llmviewer.reports import analysis_page, bottleneck, comparison_page, markdown, memory_bar, stage_table, terminal
from llmviewer.reports import format as fmt
from llmviewer.reports.page import Bar, Column, Facts, Row, Segment, Table, left, right
from llmviewer.reports.terminal import FILE, Screen
from llmviewer.result.comparison import Comparison

from .answers import analyze

MODELS = ("llama-2-7b", "deepseek-v2-lite", "gemma-2-2b", "jamba-v0.1", "mamba-130m", "gpt-oss-20b")
ANSI = "\x1b["
SMALL = Screen(width=50, colour=False)


@cache
def page(model, hardware="h100", **options):
    return analysis_page.page(analyze(model, hardware, **options))


def printed(model, hardware="h100", width=80, **options):
    return terminal.text(page(model, hardware, **options), Screen(width=width, colour=False))


def stage_rows(text, stage):
    """Lines of a stage's operators, between its heading and its total."""
    after = text[text.index(f"\n{stage}") :]
    heading = after.index("\n─")
    return after[heading:].split("\n\n")[0].splitlines()[2:]


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (fmt.count, 34_359_738_368, "34.4 G"),
        (fmt.count, 512, "512"),
        (fmt.count, 0, "0"),
        (fmt.count, 999_999, "1.00 M"),
        (fmt.parameters, 6_738_415_616, "6.738B"),
        (fmt.parameters, 124_439_808, "124.4M"),
        (fmt.traffic, 50_331_648, "50.3 MB"),  # 50.3e6, decimal
        (fmt.memory, 2**31, "2 GiB"),  # 2 x 2**30, binary
        (fmt.memory, 524_288, "512 KiB"),
        (fmt.memory, 13_476_831_232, "12.6 GiB"),
        (fmt.capacity, 80 * 2**30, "80 GiB"),
        (fmt.capacity, 6144 * 2**30, "6,144 GiB"),
        (fmt.flops_per_s, 154.8e12, "154.8 TFLOP/s"),
        (fmt.flops_per_s, 1978.9e12, "1,979 TFLOP/s"),
        (fmt.bandwidth, 768e9, "768 GB/s"),
        (fmt.bandwidth, 3.35e12, "3.35 TB/s"),
        (fmt.duration, 2.1856e-5, "21.9 µs"),
        (fmt.duration, 0.0955, "95.5 ms"),
        (fmt.duration, 1.0, "1.00 s"),
        (fmt.duration, 0.9999, "1.00 s"),
        (fmt.duration, 3.2e-8, "32.0 ns"),
        (fmt.duration, 1234.5, "1,234 s"),
        (fmt.duration, 0.0, "0 s"),
        (fmt.intensity, 1365.33, "1,365"),
        (fmt.intensity, 1 / 6, "0.167"),
        (fmt.share, 0.631, "63.1 %"),
        (fmt.share, 0.0001, "<0.1 %"),
        (fmt.share, 9.999, "999.9 %"),
        (fmt.share, 12.36, "1,236 %"),
        (fmt.share, 268.94, "26,894 %"),
        (fmt.signed, -12.36, "-1,236 %"),
        (fmt.signed, -0.00003, "0 %"),
        (fmt.signed, 0.00003, "<0.1 %"),
        (fmt.signed, 0.023, "+2.3 %"),
        (fmt.share, 0.0, "0.0 %"),
        (fmt.percent, 0.99999, "100 %"),
        (fmt.times, 1.0, "1.00×"),
        (fmt.times, 0.2832, "0.283×"),
    ],
)
def test_numbers_have_a_prefix_and_three_or_four_digits(show, value, text):
    assert show(value) == text


@pytest.mark.parametrize(
    "show", [fmt.count, fmt.memory, fmt.traffic, fmt.duration, fmt.intensity, fmt.share, fmt.times, fmt.whole, fmt.tera]
)
def test_undefined_values_are_a_dash(show):
    assert show(None) == fmt.DASH


def test_formats_accept_every_plausible_number():
    for value in (*np.logspace(-30, 40, 281), *range(2000)):
        for show in (fmt.count, fmt.parameters, fmt.traffic, fmt.memory, fmt.bandwidth, fmt.duration, fmt.intensity):
            text = show(float(value))
            assert text
            assert "\n" not in text


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("width", [80, 160])
def test_only_addresses_may_be_wider_than_the_screen(model, width):
    for line in printed(model, width=width, batch_size=64, output_len=1024).splitlines():
        assert len(line) <= width or "https://" in line, line


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("width", [60, 80, 120, 160])
def test_every_operator_is_in_the_table_with_bound_and_time(model, width):
    result, text = analyze(model, "h100"), printed(model, width=width)
    for stage, title in (("prefill", "Prefill"), ("decode", "Decode step")):
        rows = [line.split() for line in stage_rows(text, title)]
        for operator in result.stage(stage)["operators"]:
            of_it = [cells for cells in rows if cells and cells[0] == operator["name"]]
            assert any(operator["bound"] in cells for cells in of_it), operator["name"]
            assert any(fmt.duration(operator["time_s"]) in " ".join(cells) for cells in of_it), operator["name"]


@pytest.mark.parametrize("model", MODELS)
def test_both_stages_show_the_same_columns(model):
    for width in (60, 80, 100, 120, 160):
        lines = printed(model, width=width).splitlines()
        headings = [line.split() for line in lines if line.startswith("Operator")]
        assert len(headings) == 2
        assert headings[0] == headings[1]


def test_shares_of_a_stage_add_up_to_the_whole():
    stage = analyze("deepseek-v2-lite", "h100").stage("prefill")
    shares = [row["time_s"] * row["layers"] / stage["time_s"] for row in stage["operators"]]
    assert sum(shares) == pytest.approx(1.0)
    assert sum(stage["time_by_bound_s"].values()) == pytest.approx(stage["time_s"])


def test_the_table_states_the_workload_and_its_bottleneck():
    text = " ".join(printed("llama-2-7b", "a6000", input_len=2048).split())
    assert "6.738B parameters, fp16" in text
    assert "154.8 TFLOP/s dense fp16, 768 GB/s, 48 GiB" in text
    assert "batch 1, input 2,048, output 128" in text
    assert "prefill of the whole batch in one pass" in text
    assert "memory-bound" in text
    assert "quantize, fuse, enlarge the batch" in text
    assert "arXiv 2402.16363" in text
    assert "a lower bound" in text
    assert "L2 bandwidth: unknown for a6000" in text


def test_a_kernel_limit_is_a_second_fact_beside_the_bound_of_the_roofline():
    """3.29 FLOP per byte at a ridge of 153 are memory-bound; that 4-bit weights are unpacked first is another fact."""
    text = " ".join(printed("llama-2-7b", "a100", quantization="awq", efficiency="calibrated").split())
    assert "and is memory-bound" in text
    assert re.search(r"Kernel-limited: unpacking of 4-bit weights \(\d+.*? %\).*; .* of the roofline is reached", text)
    assert re.search(r"memory-bound, .*; kernel-limited: unpacking of 4-bit weights", text)
    assert "unpack each weight once for all rows, so a larger batch adds little time" in text
    assert "w8a8" not in text and "-bound by its kernels" not in text


def test_layers_of_different_kinds_have_separate_rows():
    text = printed("deepseek-v2-lite")
    assert "dense × 1" in text
    assert "moe × 26" in text


def test_a_workload_that_does_not_fit_states_the_missing_memory_and_its_cause():
    text = printed("llama-2-7b", "a6000", batch_size=64)
    assert "DOES NOT FIT" in text
    assert "Warning  does not fit: 53.2 GiB needed, budget 43.2 GiB; largest part: KV" in text


def test_one_output_token_has_no_time_per_output_token():
    assert re.search(r"TPOT +– +no decode steps", printed("llama-2-7b", output_len=1))


def test_a_token_budget_is_shown_if_it_splits_the_prefill():
    text = printed("llama-2-7b", batch_size=8, max_num_batched_tokens=2048)
    assert "in passes of at most 2,048 tokens" in text
    assert "in one pass" not in text


def test_the_advice_for_compute_bound_work_names_faster_formats_of_the_chip():
    answer = analyze("llama-2-7b", "h100", batch_size=64, input_len=4096, output_len=2).to_dict()
    assert bottleneck.limiting_stage(answer) == "prefill"
    assert "fp8 (--quantization w8a8-fp8) at 1,979 TFLOP/s (2.00×)" in bottleneck.advice(answer)


def test_the_advice_for_memory_bound_work_names_the_largest_traffic():
    small = analyze("llama-2-7b", "a6000").to_dict()
    assert "of the bytes are weights" in bottleneck.advice(small)
    large = analyze("llama-2-7b", "b200", batch_size=64, input_len=3000, output_len=2000).to_dict()
    assert "of the bytes are KV cache" in bottleneck.advice(large)


@pytest.mark.parametrize(("scheme", "stored"), [("w4a16", "int4-g128"), ("w8a16", None), ("none", None)])
def test_weights_of_four_bits_get_no_advice_to_quantize(scheme: str, stored: str | None) -> None:
    message = bottleneck.advice(analyze("llama-2-7b", "a6000", quantization=scheme).to_dict())
    assert ("--quantization w4a16" in message) is (stored is None)
    assert (f"are weights, already {stored}: amortize each read" in message) is (stored is not None)


def test_every_bound_has_a_resource_and_advice():
    from llmviewer.timing.roofline import BOUNDS

    answer = analyze("llama-2-7b", "a6000").to_dict()
    for bound in BOUNDS:
        answer["stages"]["decode"]["bound"] = bound
        answer["stages"]["decode"]["time_by_bound_s"] = {bound: answer["stages"]["decode"]["time_s"]}
        assert f"{bound}-bound" in bottleneck.sentence(answer)
        assert bottleneck.advice(answer)
        assert bound in stage_table.BOUND_STYLES


@pytest.mark.parametrize("model", MODELS)
def test_markdown_tables_have_a_delimiter_row_and_equal_numbers_of_cells(model):
    text = markdown.text(page(model))
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 3  # prefill, decode, memory
    for lines in tables:
        cells = [len(re.split(r"(?<!\\)\|", line)) for line in lines]
        assert len(set(cells)) == 1
        assert set(lines[1]) <= set("|-: ")
    assert ANSI not in text


def test_an_interval_is_in_the_unit_of_its_upper_end():
    assert fmt.durations(0.9, 1.2) == "0.900 to 1.20 s" and fmt.bounds(0.9e-3, 1.2e-3) == "0.900–1.20 ms"


def test_markdown_has_the_columns_that_a_narrow_screen_drops():
    columns = (left("Name"), right("Time"), right("80 %", 3))
    table = Table(columns=columns, rows=(Row(cells=("x", "2 s", "1–3 s")),))
    assert markdown.text((table,)).splitlines() == [
        "| Name | Time | 80 % |",
        "| --- | ---: | ---: |",
        "| x | 2 s | 1–3 s |",
    ]


def test_markdown_escapes_cell_separators():
    table = Table(columns=(left("a|b"), right("n")), rows=(Row(cells=("x|y*z", "<0.1 %")),))
    assert markdown.text((table,)).splitlines()[2] == r"| x\|y\*z | \<0.1 % |"


def test_control_characters_in_names_are_not_printed():
    facts = Facts(lines=(("Model", "evil\x1b[2J\rname\nline"),))
    assert terminal.text((facts,), Screen(width=80, colour=False)) == "Model  evil?[2J?name?line\n"


def test_columns_of_the_lowest_priority_are_dropped_first():
    columns = (left("name"), Column(title="minor", rank=2), Column(title="major", rank=1))
    table = Table(columns=columns, rows=(Row(cells=("abcd", "12345", "12345")),))
    widths = terminal.column_widths([table])
    assert widths == [4, 5, 5]
    assert terminal.fitted(table, widths, 18) == [[0, 1, 2]]
    assert terminal.fitted(table, widths, 17) == [[0, 2]]
    assert terminal.fitted(table, widths, 3) == [[0]]


def test_a_wide_comparison_is_split_into_tables_with_repeated_labels():
    table = Table(columns=tuple(map(left, "abcd")), rows=(Row(cells=("label", "123", "456", "789")),), keep=1)
    assert terminal.fitted(table, [5, 3, 3, 3], 15) == [[0, 1, 2], [0, 3]]


def test_a_table_of_essential_columns_is_split_and_never_cut():
    table = Table(columns=tuple(map(right, "abc")), rows=(Row(cells=("1,234,567", "2,345,678", "3,456,789")),))
    assert terminal.text((table,), Screen(width=20, colour=False)).split() == [
        "a", "b", "─" * 20, "1,234,567", "2,345,678", "a", "c", "─" * 20, "1,234,567", "3,456,789",
    ]  # fmt: skip
    assert "1,234,567" in terminal.text((table,), Screen(width=6, colour=False))


def test_words_wrap_so_that_essential_columns_stay_together():
    sentence = "a condition of a contract that is longer than the screen is wide"
    columns = (right("Line"), left("Contract", wraps=True), right("Value"))
    text = terminal.text((Table(columns=columns, rows=(Row(cells=("1", sentence, "25.7 ms")),)),), SMALL)
    assert max(map(len, text.splitlines())) <= 50
    assert text.splitlines()[2].startswith("   1  a condition") and text.splitlines()[2].endswith("25.7 ms")
    assert " ".join(text.replace("25.7 ms", "").split()).endswith(sentence)
    wide = terminal.text((Table(columns=columns, rows=(Row(cells=("1", sentence, "25.7 ms")),)),), FILE)
    assert sentence in wide


def test_a_bar_has_the_width_of_the_screen_and_shows_every_part():
    segments = tuple(Segment(label=g, value=v, glyph=g, style="") for g, v in (("A", 50.0), ("B", 0.1), ("C", 0.0)))
    bar = Bar(segments=segments, scale=100.0, mark=90.0, mark_label="limit")
    line, under = (str(text) for text in terminal.bar_lines(bar, 40))
    assert line == "A" * 20 + "B" + "·" * 19
    assert under == " " * 30 + "limit ▲"
    assert under.index("▲") == 36  # 90 % of 40


def test_a_small_part_of_a_full_bar_is_visible():
    parts = (("A", 1000.0), ("B", 0.1), ("C", 0.1))
    segments = tuple(Segment(label=g, value=v, glyph=g, style="") for g, v in parts)
    bar = Bar(segments=segments, scale=1000.2, mark=500.0, mark_label="limit")
    assert str(terminal.bar_lines(bar, 40)[0]) == "A" * 38 + "BC"


@pytest.mark.parametrize("mark", [0.0, 1.0, 50.0, 100.0])
@pytest.mark.parametrize("width", [20, 80])
def test_the_mark_of_a_bar_stays_on_the_screen(mark, width):
    bar = Bar(segments=(), scale=100.0, mark=mark, mark_label="budget")
    line, under = terminal.bar_lines(bar, width)
    assert len(line) == width
    assert len(under) <= width


def test_colours_are_used_only_on_terminals_that_allow_them(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Screen.from_stream(Terminal()).colour
    assert not Screen.from_stream(io.StringIO()).colour
    assert ANSI in terminal.text(page("llama-2-7b"), Screen(width=80, colour=True))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Screen.from_stream(Terminal()).colour


def test_colours_do_not_change_the_text(monkeypatch):
    plain = terminal.text(page("llama-2-7b"), Screen(width=100, colour=False))
    coloured = terminal.text(page("llama-2-7b"), Screen(width=100, colour=True))
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()


def test_the_columns_variable_sets_the_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "133")
    assert Screen.from_stream(io.StringIO()).width == 133


def test_a_comparison_has_a_column_per_configuration_and_named_bounds():
    results = tuple(analyze("llama-2-7b", name) for name in ("a6000", "h100", "t4"))
    text = terminal.text(comparison_page.page(Comparison(results=results)), Screen(width=80, colour=False))
    rows = {line[:16].strip(): line[16:].split() for line in text.splitlines()}
    assert rows["Hardware"] == ["a6000", "h100-sxm", "t4"]
    assert rows["Prefill bound"] == ["compute"] * 3
    assert rows["Decode bound"] == ["memory"] * 3
    assert rows["Fits"] == ["yes", "yes", "yes"]


def test_a_model_without_a_cache_or_limit_is_printed():
    text = printed("mamba-130m", batch_size=2)
    assert "of state per sequence" in text
    assert memory_bar.UNLIMITED == 2**32


def test_the_rate_of_an_operator_is_its_work_over_its_time_as_in_the_total() -> None:
    stage = analyze("llama-2-7b", "a6000").stage("decode")
    table = stage_table.stage_table("Decode", stage, "")
    at = [column.title for column in table.columns].index("FLOP/s")
    cells = {row.cells[0].strip(): row.cells[at] for row in table.rows}
    row = next(one for one in stage["operators"] if one["name"] == "down_proj")
    assert cells["down_proj"] == fmt.rate(row["flops"] / row["time_s"])
    assert table.total[at] == fmt.rate(stage["flops"] / stage["time_s"])


def test_what_all_points_of_a_sweep_share_stands_above_its_table_once(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = ["sweep", "phi-2", "--hardware", "h100", "--batch-size", "1,2", "--input-len", "256"]
    assert main(words) == 0
    above, _, table = capsys.readouterr().out.partition("\n\n")
    assert "Workload        input 256, output 128" in above.splitlines()
    assert table.split()[:2] == ["Batch", "TTFT"]


def test_a_sweep_of_more_points_than_are_shown_names_what_differs_beyond_them(capsys):
    assert main(["sweep", "phi-2", "--hardware", "h100,a100", "--batch-size", "1:250", "--efficiency", "ideal"]) == 0
    above, _, table = capsys.readouterr().out.partition("\n\n")
    assert "h100" not in above
    assert table.startswith("Hardware") and "… 300 more points" in table

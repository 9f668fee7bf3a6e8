"""Traces of requests are read in every known format, and a wrong row is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import llmviewer as lv
from llmviewer.cli import COMMANDS
from llmviewer.cli.app import command_tree
from llmviewer.cli.typed import as_typed
from llmviewer.core.errors import UserError
from llmviewer.simulation import trace_rows
from llmviewer.simulation.traces import Trace, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-17 00:00:01.0000000,10,1
"""
BURST_GPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = [
    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]},
    {"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 48]},
]
SHARE_GPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "12345678"}, {"from": "gpt", "value": "123456789"}]},
]
FILES = Path(__file__).resolve().parent / "data" / "traces"


def written(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def lines_of(entries: list[dict[str, object]]) -> str:
    return "\n".join(map(json.dumps, entries))


def test_azures_times_are_seconds_from_the_first_request(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, AZURE))
    assert found.arrival_s is not None
    # 18:15:46.68059 to midnight are 20,653.31941 s
    assert found.arrival_s.tolist() == pytest.approx([0.0, 4.314579, 20653.31941 + 1.0])
    assert found.input_len.tolist() == [374, 396, 10]
    assert found.output_len.tolist() == [44, 109, 1]


def test_times_of_azure_may_have_a_zone(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    assert len(read_trace(written(tmp_path, text))) == 1


def test_failed_requests_of_burstgpt_are_left_out_and_counted(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, BURST_GPT))
    assert found.arrival_s is not None
    assert (found.arrival_s.tolist(), found.output_len.tolist()) == ([0.0, 113.0], [18, 276])
    assert found.notes == ("1 failed requests of the trace, without an answer, are left out",)


def test_mooncakes_block_hashes_are_prefixes_of_512_tokens(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, lines_of(MOONCAKE)))
    assert found.arrival_s is not None
    assert found.arrival_s.tolist() == pytest.approx([0.0, 3.053])
    assert (found.prefixes, found.prefix_tokens) == (((46, 47), (46, 48)), 512)


def test_tokens_of_conversations_are_estimated_and_that_is_said(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, json.dumps(SHARE_GPT)))
    assert (found.input_len.tolist(), found.output_len.tolist(), found.arrival_s) == ([2], [3], None)
    assert "estimated" in found.notes[0]


def test_conversations_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    single = {"conversations": [{"from": "human", "value": "1234"}]}
    found = read_trace(written(tmp_path, json.dumps([single, *SHARE_GPT, {"conversations": []}])))
    assert len(found) == 1
    assert found.notes[0] == "2 conversations without an answer are left out"


def test_our_own_csv_of_requests_is_a_trace(tmp_path: Path) -> None:
    text = "request,arrival_s,input_len,output_len\n0,1.5,10,2\n1,2.5,20,3\n"
    found = read_trace(written(tmp_path, text))
    assert found.arrival_s is not None
    assert found.arrival_s.tolist() == [0.0, 1.0]


def test_a_part_of_a_trace_is_read_by_number_and_by_time(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE)
    assert len(read_trace(path, most=2)) == 2
    assert len(read_trace(path, duration_s=60.0)) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (AZURE.replace("396", "abc"), "line 3: contexttokens is a text; allowed: a whole number from 1"),
        (AZURE.replace("18:15:50", "18:xx:50"), "line 3: timestamp is"),
        (AZURE.replace("18:15:50", "18:15:40"), "line 3: it arrives 5.68542 s before the row above"),
        (AZURE + "1,2\n", "line 5: it has 2 columns; the header has 3"),
        (AZURE.replace(",44", ",0"), "line 2: generatedtokens is '0'"),
        ("a,b\n1,2\n", "line 1: it has no columns of a trace"),
        ("", "line 1: it has no columns of a trace"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "has no request"),
        (lines_of(MOONCAKE) + "\n{", "line 3: it is no JSON object"),
        (lines_of([*MOONCAKE, {"timestamp": 1}]), "line 3: it has no lengths"),
        (lines_of([{**MOONCAKE[0], "input_length": -4}]), "line 1: input_length is -4"),
        (lines_of([{**MOONCAKE[0], "timestamp": None}]), "line 1: timestamp is null"),
        (lines_of([{**MOONCAKE[0], "hash_ids": "x"}]), "line 1: hash_ids is no list"),
        ("[1, 2]", "line 1: it is 1; expected an object"),
        ("[" * 100_000, "line 1: it is no JSON object"),
        (AZURE.replace("18:15:50", "18:15:nan"), "line 3: timestamp is"),
        (AZURE.replace("18:15:50", "99:15:50"), "line 3: timestamp is"),
        (lines_of([MOONCAKE[0], {"timestamp": 3e4, "input_length": 1, "output_length": 1}]), "without hash_ids"),
        (lines_of([MOONCAKE[0], {"input_length": 1, "output_length": 1, "hash_ids": [1]}]), "without a time"),
    ],
)
def test_a_wrong_row_is_named_by_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_trace(written(tmp_path, text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"TIMESTAMP,ContextTokens,GeneratedTokens\n\xff\xfe,1,2\n")
    with pytest.raises(UserError, match="no text in UTF-8"):
        read_trace(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/", "/nowhere/at/all"])
def test_devices_folders_and_missing_files_are_refused(path: str) -> None:
    with pytest.raises(UserError):
        read_trace(path)


def test_a_hundred_thousand_rows_are_read_as_numbers(tmp_path: Path) -> None:
    rows = "\n".join(f"{at},1,2,3" for at in range(100_000))
    found = read_trace(written(tmp_path, f"arrival_s,input_len,output_len,x\n{rows}\n"))
    assert found.arrival_s is not None
    assert (len(found), found.arrival_s[-1]) == (100_000, 99_999.0)
    assert found.input_len.dtype == np.int64


def bailian(count: int) -> list[dict[str, object]]:
    """Prompts of 320 tokens each, whose 20 blocks have 16 tokens; 1.5 s apart."""
    return [
        {"chat_id": at, "timestamp": 1.5 * at, "input_length": 320, "output_length": 64, "hash_ids": [*range(20)]}
        for at in range(count)
    ]


def test_timestamps_and_blocks_of_bailian_are_seconds_and_16_tokens(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, lines_of(bailian(3))))
    assert found.arrival_s is not None and found.arrival_s.tolist() == [0.0, 1.5, 3.0]
    assert found.prefix_tokens == 16


@pytest.mark.parametrize("size", [16, 32, 64, 128, 256, 512, 1024])
def test_blocks_have_the_tokens_that_give_every_prompt_its_number_of_ids(size: int, tmp_path: Path) -> None:
    rows = [
        {"timestamp": at, "input_length": length, "output_length": 1, "hash_ids": [*range(-(-length // size))]}
        for at, length in enumerate((5000, 12_345, 40_000))
    ]
    assert read_trace(written(tmp_path, lines_of(rows))).prefix_tokens == size


def test_requests_of_vidur_are_read(tmp_path: Path) -> None:
    text = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,500,50\n0.5,510,51\n"
    found = read_trace(written(tmp_path, text))
    assert found.arrival_s is not None and found.arrival_s.tolist() == [0.0, 0.5]
    assert (found.input_len.tolist(), found.output_len.tolist()) == ([500, 510], [50, 51])


def test_spans_of_agents_are_read(tmp_path: Path) -> None:
    spans = [
        {
            "start_time_unix_nano": 1_760_000_000_000_000_000 + at * 10**9,
            "attributes": {"gen_ai.usage.input_tokens": 500 + at, "gen_ai.usage.output_tokens": 50},
        }
        for at in range(2)
    ]
    found = read_trace(written(tmp_path, lines_of(spans)))
    assert found.arrival_s is not None and found.arrival_s.tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    assert (found.input_len.tolist(), found.output_len.tolist()) == ([500, 501], [50, 50])


def test_a_turn_follows_the_one_before_it_of_its_session(tmp_path: Path) -> None:
    rows = [
        {"session_id": "a", "timestamp": 0, "input_length": 4, "output_length": 5},
        {"session_id": "b", "timestamp": 1000, "input_length": 4, "output_length": 5},
        {"session_id": "a", "delay": 1500, "input_length": 3, "output_length": 6},
        {"session_id": "a", "delay": 0, "input_length": 3, "output_length": 6},
    ]
    found = read_trace(written(tmp_path, lines_of(rows)))
    assert found.after == {2: (0, 1.5), 3: (2, 0.0)}
    for wrong, told in (
        ({"session_id": "c"}, "no row above is of its session_id"),
        ({"delay": -1}, "delay is below 0"),
    ):
        with pytest.raises(UserError, match=f"line 4: .*{told}"):
            read_trace(written(tmp_path, lines_of([*rows[:3], {**rows[3], **wrong}])))


def test_an_unnamed_field_is_no_clock(tmp_path: Path) -> None:
    rows = [{"input_length": 3, "output_length": 4, "": 14000}] * 2
    assert read_trace(written(tmp_path, lines_of(rows))).arrival_s is None


@pytest.mark.parametrize("begin", ["", "arrival_s,input_len,output_len\n", '{"input_len": 1, "output_len": 1}\n'])
def test_a_line_without_an_end_is_refused(begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_rows, "MAX_LINE", 100)
    with pytest.raises(UserError, match="a line of more than 100 characters"):
        read_trace(written(tmp_path, begin + "1" * 101))


def test_quoted_cells_are_cells(tmp_path: Path) -> None:
    """Writers of CSV may quote every cell."""
    quoted = "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in AZURE.splitlines()) + "\n"
    plain, found = (read_trace(written(tmp_path, text)) for text in (AZURE, quoted))
    assert found.arrival_s is not None and plain.arrival_s is not None
    assert found.arrival_s.tolist() == plain.arrival_s.tolist()
    assert found.input_len.tolist() == plain.input_len.tolist()


@pytest.mark.parametrize(("unit", "start"), [(1, 1_700_000_000), (1000, 1_700_000_000_000), (1000, 0)])
def test_seconds_since_1970_are_seconds(unit: int, start: int, tmp_path: Path) -> None:
    rows = [{"timestamp": start + unit * at, "prompt_tokens": 4, "completion_tokens": 5} for at in range(3)]
    found = read_trace(written(tmp_path, lines_of(rows)))
    assert found.arrival_s is not None and found.arrival_s.tolist() == pytest.approx([0.0, 1.0, 2.0])
    assert bool(found.notes) == (start == 0)  # milliseconds from the start of the trace are found, and told


@pytest.mark.parametrize(
    ("times", "arrives", "told"),
    [
        ([0, 3, 6], [0.0, 3.0, 6.0], "timestamp is read as seconds (0.333 requests/s; milliseconds would be 333)"),
        ([0, 3000, 6000], [0.0, 3.0, 6.0], "timestamp is read as milliseconds (0.333 requests/s)"),
        ([0.25, 21.5, 42.75], [0.0, 21.25, 42.5], "timestamp is read as seconds (0.0471 requests/s)"),
        ([0.5, 3000.5, 6000.5], [0.0, 3.0, 6.0], "timestamp is read as milliseconds (0.333 requests/s)"),
        ([0, 3 * 10**9, 6 * 10**9], [0.0, 3.0, 6.0], "timestamp is read as nanoseconds (0.333 requests/s;"),
        ([0, 0.001, 0.002], [0.0, 0.001, 0.002], "timestamp is read as seconds (1e+03 requests/s, which few"),
    ],
)  # fmt: skip
def test_the_unit_of_times_is_found_from_their_mean_difference_and_told(
    times: list[float], arrives: list[float], told: str, tmp_path: Path
) -> None:
    rows = [{"timestamp": at, "input_length": 4, "output_length": 5} for at in times]
    found = read_trace(written(tmp_path, lines_of(rows)))
    assert found.arrival_s is not None and found.arrival_s.tolist() == pytest.approx(arrives)
    assert found.notes[0].startswith(told)


def test_a_stated_unit_is_taken_and_doubted_where_the_rate_is_absurd(tmp_path: Path) -> None:
    rows = [{"arrival_s": 0.0001 * at, "input_length": 4, "output_length": 5} for at in range(3)]
    found = read_trace(written(tmp_path, lines_of(rows)))
    assert found.arrival_s is not None and found.arrival_s.tolist() == pytest.approx([0.0, 0.0001, 0.0002])
    assert found.notes == ("10,000 requests/s arrive if arrival_s is in seconds: see that its unit is right",)
    slow = [{"arrival_ms": 3 * at, "input_length": 4, "output_length": 5} for at in range(3)]
    stated = read_trace(written(tmp_path, lines_of(slow)))
    assert stated.arrival_s is not None and stated.arrival_s.tolist() == pytest.approx([0.0, 0.003, 0.006])
    assert not stated.notes


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"created": 1.7e9, "num_model_requests": 5, "input_tokens": 9, "output_tokens": 9}, "it sums up 5 requests"),
        ({"created_at": "2026-02-30T00:00:00Z", "req_units": 9, "res_units": 9}, "line 1: created_at is a text"),
        ({"session_id": "a", "turns": [{"text": "what"}]}, "line 1: it has no lengths"),
    ],
)
def test_rows_that_are_no_single_request_are_refused(row: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_trace(written(tmp_path, lines_of([row])))
    assert message in str(caught.value)


def test_a_log_is_cut_after_it_is_put_in_order() -> None:
    """The newest request of litellm.csv stands first."""
    path = FILES / "litellm.csv"
    assert read_trace(path, most=1).input_len.tolist() == [200]
    assert read_trace(path, duration_s=0.5).input_len.tolist() == [200]


#: File of tests/data/traces -> times [s], lengths of prompts and answers, tokens of a block and share of prompt tokens
#: that a cache without limit finds, worked by hand from the file.
WORKED: dict[str, tuple[list[float] | None, list[int], list[int], int, float]] = {
    "azure_2023.csv": ([0.0, 2.0, 4.0], [374, 396, 430], [44, 109, 27], 0, 0.0),
    "azure_2024.csv": ([0.0, 0.5, 1.0], [2162, 2399, 76], [5, 6, 15], 0, 0.0),
    "azure_2025_multimodal.csv": ([0.0, 4.0], [1000, 600], [40, 20], 0, 0.0),
    "burst_gpt.csv": ([0.0, 80.0], [472, 417], [18, 276], 0, 0.0),
    "vidur.csv": ([0.0, 0.5, 1.0], [500, 510, 520], [50, 51, 52], 0, 0.0),
    "servegen.csv": ([0.0, 0.25, 0.5], [10, 15, 35], [20, 25, 30], 0, 0.0),
    "servegen_multimodal.csv": ([0.0, 2.0], [100 + 1200 + 800, 60 + 150], [20, 40], 0, 0.0),
    "servegen_offline.jsonl": (None, [61, 54], [2370, 2031], 0, 0.0),
    "mooncake.jsonl": ([0.0, 1.0, 2.0], [1200, 1500, 900], [52, 26, 30], 512, 1024 / 3600),
    "mooncake_seconds.jsonl": ([0.0, 2.0, 4.0], [1200, 1500, 900], [52, 26, 30], 512, 1024 / 3600),
    "bailian.jsonl": ([0.0, 5.0], [40, 60], [12, 8], 16, 32 / 100),  # of id 3, 8 tokens alone are the first prompt's
    "litellm.json": ([0.0, 10.0], [300, 900], [10, 30], 0, 0.0),
    "litellm.csv": ([0.0, 1.0], [200, 400], [20, 40], 0, 0.0),
    "portkey.jsonl": ([0.0, 4.0], [120, 160], [60, 100], 0, 0.0),
    "openrouter.json": ([0.0, 10.0], [11, 33], [27, 39], 0, 0.0),
    "openai.jsonl": ([0.0, 8.0], [47, 53], [59, 61], 0, 0.0),
    "otel_spans.jsonl": ([0.0, 1.0], [500, 520], [50, 52], 0, 0.0),
    "otlp.json": ([0.0, 5.0], [100, 300], [10, 30], 0, 0.0),
    # prompts of 400, then 400 + 50 + 300: of each session the 25 blocks of the first prompt are found again
    "aiperf_delay.jsonl": ([0.0, 0.0, 1.0, 1.0], [400, 750, 400, 750], [50, 60, 50, 60], 16, 800 / 2300),
    # characters / 4: 8 of the system + 8; 16 + 20 + 2; 8; 8 + 12 + 2: one block of 16 is found
    "aiperf_turns.jsonl": ([0.0, 0.0, 1.0, 5.0], [16, 38, 8, 22], [20, 30, 12, 14], 16, 16 / 84),
    "copilot_agents.jsonl": ([0.0, 10.0, 20.0], [10000, 5000, 12000], [100, 50, 200], 0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_every_format_is_read_as_worked_by_hand(name: str) -> None:
    found, (times, prompts, answers, block, share) = read_trace(FILES / name), WORKED[name]
    assert (None if found.arrival_s is None else found.arrival_s.tolist()) == (times and pytest.approx(times))
    assert (found.input_len.tolist(), found.output_len.tolist(), found.prefix_tokens) == (prompts, answers, block)
    assert found_share(found) == pytest.approx(share)


def found_share(trace: Trace) -> float:
    """Share of prompt tokens in leading blocks that an earlier prompt has whole."""
    seen: set[int] = set()
    tokens = 0
    for ids, length in zip(trace.prefixes or (), trace.input_len.tolist(), strict=False):
        fresh = next((at for at, name in enumerate(ids) if name not in seen), len(ids))
        tokens += fresh * trace.block_tokens
        seen.update(ids[: length // trace.block_tokens])
    return tokens / int(trace.input_len.sum())


@pytest.mark.parametrize(
    ("name", "notes"),
    [
        ("litellm.json", ["1 failed requests of", "1 requests that the gateway answered from its own cache"]),
        ("portkey.jsonl", ["1 failed requests of", "1 requests that the gateway answered from its own cache"]),
        ("otel_spans.jsonl", ["2 spans that are no call of a model"]),
        ("azure_2025_multimodal.csv", ["1 requests have images"]),
        ("mooncake_seconds.jsonl", ["timestamp is read as seconds (0.5 requests/s; milliseconds would be 500)"]),
        ("bailian.jsonl", ["blocks of hash_ids have 16 tokens"]),
        ("aiperf_delay.jsonl", ["timestamp is read as milliseconds (1 requests/s)", "2 prompts begin with the turns"]),
        ("servegen.csv", []),
        ("azure_2024.csv", []),
    ],
)
def test_what_is_found_or_left_out_is_told(name: str, notes: list[str]) -> None:
    told = read_trace(FILES / name).notes
    assert len(told) == len(notes)
    assert all(text.startswith(note) for text, note in zip(told, notes, strict=True))


def test_the_simulator_finds_what_a_cache_without_limit_finds() -> None:
    """800 of the 2,300 prompt tokens of aiperf_delay.jsonl; its second turn starts 1.5 s after the first ends."""
    ran = lv.simulate("llama-3.1-8b", "h100-sxm", engine="vllm", trace=str(FILES / "aiperf_delay.jsonl"))
    assert ran.to_dict()["prefix_hit_rate"] == pytest.approx(800 / 2300)


def test_fields_of_a_file_are_not_spelled_as_options(tmp_path: Path) -> None:
    path = written(tmp_path, '{"timestamp": 0, "input_len": 0, "output_len": 1}')
    with pytest.raises(UserError) as caught:
        read_trace(path)
    told = as_typed(caught.value, ["simulate", "--trace", str(path)], command_tree(COMMANDS, "simulate"))
    assert "line 1: input_len is 0" in str(told)

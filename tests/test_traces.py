"""Traces of requests are read in every known format, and a wrong row is named by its line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from llmviewer.cli import COMMANDS
from llmviewer.cli.app import command_tree
from llmviewer.cli.typed import as_typed
from llmviewer.core.errors import UserError
from llmviewer.simulation import traces
from llmviewer.simulation.traces import read_trace

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


@pytest.mark.parametrize("begin", ["", "arrival_s,input_len,output_len\n", '{"input_len": 1, "output_len": 1}\n'])
def test_a_line_without_an_end_is_refused(begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_LINE", 100)
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
    assert not found.notes


def test_times_so_close_that_their_unit_is_in_doubt_are_noted(tmp_path: Path) -> None:
    """Times 3 s apart, read as 3 ms."""
    rows = [{"timestamp": 3.0 * at, "input_length": 4, "output_length": 5} for at in range(3)]
    assert "read as milliseconds" in read_trace(written(tmp_path, lines_of(rows))).notes[0]
    slow = [{**row, "timestamp": 1000.0 * at} for at, row in enumerate(rows)]
    assert not read_trace(written(tmp_path, lines_of(slow))).notes


def test_fields_of_a_file_are_not_spelled_as_options(tmp_path: Path) -> None:
    path = written(tmp_path, '{"timestamp": 0, "input_len": 0, "output_len": 1}')
    with pytest.raises(UserError) as caught:
        read_trace(path)
    told = as_typed(caught.value, ["simulate", "--trace", str(path)], command_tree(COMMANDS, "simulate"))
    assert "line 1: input_len is 0" in str(told)

"""Published figures against the roofline of the data sheet: `--efficiency ideal` has no engine's habits.

Run as a script on a table of figures with the command of each (columns: source, model, format, batch, input_len, take,
value, command): `python -m tests.published_bounds FIGURES.csv` lists those that are faster, and exits 1 if one of them
stands in no list of faster_than_ideal.yaml.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmviewer.cli import main as command_line
from llmviewer.core import data
from llmviewer.core.errors import UserError

LISTED = Path(__file__).resolve().with_name("faster_than_ideal.yaml")
#: Options that state an engine's habits, and switches of it.
HABITS = (
    "--engine", "--efficiency", "--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--attention",
    "--gpu-memory-utilization", "--fusion", "--format",
)  # fmt: skip
SWITCHES = ("--enforce-eager",)
#: Takes of a table that are times; all others are rates.
TIMES = ("tpot", "ttft", "e2e")


def reason_of(figure: Mapping[str, Any], part: str) -> str:
    """The reason of a figure that may be faster than the roofline; empty if it stands in no list.

    part: ledger, fresh.
    """
    for one in data.read_yaml(LISTED)[part]:
        if all(figure[name] in values for name, values in one["rows"].items()):
            return str(one["reason"])
    return ""


def ideal_command(row: Mapping[str, str]) -> list[str]:
    """The command of a row without an engine's habits, with the formats of the file that was served."""
    words, kept = shlex.split(row["command"])[1:], list[str]()
    while words:
        word = words.pop(0)
        if word in HABITS:
            words.pop(0)
        elif word not in SWITCHES:
            kept.append(word)
    if row["format"] == "mxfp4" and not {"-q", "--quantization"} & set(kept):
        kept += ["--quantization", "mxfp4_moe"]  # attention and head in 8 bit, as such files hold them
    return [*kept, "--efficiency", "ideal", "--format", "json"]


def share_of_row(row: Mapping[str, str], answer: Mapping[str, Any]) -> float | None:
    """Roofline time over published time of a row; None where the answer bounds no such figure.

    Under load only the throughput is bounded: an engine that runs fewer requests at once has a smaller TPOT and a
    larger TTFT.
    """
    take, published = row["take"], float(row["value"])
    if row["kind"] == "simulate":
        bound = float(answer["output_tokens_per_s"]) if take == "out" else 0.0
        return published / bound if bound else None
    metrics, batch = answer["metrics"], float(answer["workload"]["batch_size"])
    if take in TIMES:
        return float(metrics[f"{take}_s"]) * 1e3 / published
    tokens = {"decode": batch, "request": batch * answer["workload"]["output_len"]}.get(take)
    tokens = batch * float(take.partition(":")[2]) if tokens is None else tokens
    seconds = {"decode": metrics["tpot_s"], "request": metrics["e2e_s"]}.get(take, metrics["ttft_s"])
    return published * float(seconds) / float(tokens) if seconds else None


def answer_of(words: Sequence[str]) -> dict[str, Any] | None:
    """The JSON answer of a command; None if it has none."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        command_line(list(words))
    found: dict[str, Any] | None = json.loads(printed.getvalue()) if printed.getvalue().startswith("{") else None
    return found


def main(table: str) -> int:
    """Print the figures of a table that are faster than the roofline; 1 if one stands in no list."""
    answers: dict[tuple[str, ...], dict[str, Any] | None] = {}
    faster, unlisted, bounded = 0, 0, 0
    for row in csv.DictReader(Path(table).read_text(encoding="utf-8").splitlines()):
        words = tuple(ideal_command(row))
        if words not in answers:
            answers[words] = answer_of(words)
        answer = answers[words]
        share = share_of_row(row, answer) if answer else None
        bounded += share is not None
        if share is not None and share > 1.0:
            reason = reason_of(row, "fresh")
            faster, unlisted = faster + 1, unlisted + (not reason)
            told = f"{share:.3f}  {row['source']}  {shlex.join(words)}\n       {reason or 'NO REASON KNOWN'}\n"
            sys.stdout.write(told)
    sys.stdout.write(f"{bounded} figures are bounded, {faster} are faster, {unlisted} of these without a reason\n")
    return 1 if unlisted else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1]))
    except UserError as error:
        raise SystemExit(str(error)) from None

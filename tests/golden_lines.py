"""The command lines of the golden table, and the folder of files that they read."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import yaml

from llmviewer import models
from llmviewer.cli import COMMANDS
from llmviewer.hardware import specs
from tests import test_every_option as cases
from tests.certificate.meta_model import ENCODERS
from tests.certificate.our_counts import published_config
from tests.option_cases import LOAD, OWN

ROOT = Path(__file__).resolve().parent.parent
#: Lines that run until they are stopped, use the network or processes, measure, or take over ten seconds; the cases of
#: options and other lines ask the same of less.
LEFT_OUT = re.compile(
    r"(serve|mcp|calibrate (run|fit|all)|models fetch|survey)\b|.*(--trace-model|-o (campaign|loads)/)"
    r"|(size|advise) llama-3.1-8b .*(ttft|tpot|engine vllm --batch-size 16$)|simulate .*--find-rate --ttft p99"
    r"|plot (ledger|latency-rate|frontier)|report .* h100,a100|report .*-sxm,a100|sweep opt-30b|.*--tpot 1us$"
)
#: Commands without `--format json`.
UNPRINTED = ("plot", "trace", "calibrate", "serve", "mcp", "survey", "report", "page")
#: Batches and lengths of the certificate, for a decoder and for an encoder.
DECODED, ONE_PASS = "--batch-size 8 --input-len 1023 --output-len 2", "--input-len 512 --output-len 1"
#: What a crossover needs beside an option.
TWO = "--quantization none,w4a16"
#: Commands in which every option of a load is tried.
LOADED = ("simulate", "size")
#: An option that all commands share is tried in `analyze`, and in every n-th other pair of command and option.
SHARED_EACH = 12
#: A second format of every n-th line that is given as JSON.
TABLE_EACH, CSV_EACH = 12, 12


def prepare(folder: Path) -> list[str]:
    """Write the files that the lines read, with the contracts of the options of `check`; all lines found today."""
    cases.write_inputs(folder)
    for name in ("contract.yaml", "profile.json.gz"):
        for target in (folder, folder / "docs"):
            target.mkdir(exist_ok=True)
            shutil.copy(ROOT / "docs" / name, target / name)
    (folder / "path" / "to").mkdir(parents=True)
    (folder / "path" / "to" / "config.json").write_text(json.dumps(published_config("mistral-7b")), encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        return _lines()
    finally:
        os.chdir(before)


def _lines() -> list[str]:
    """All lines, without `llmviewer`."""
    found = []
    for number, line in enumerate((*_of_documents(), *_of_coverage(), *_of_options(), *_of_data())):
        if LEFT_OUT.match(line):
            continue
        plain = line.startswith(UNPRINTED) or " --format" in line or " -o " in line or " --emit" in line
        found.append(line if plain else f"{line} --format json")
        if not plain and number % TABLE_EACH == 0:
            found.append(line)
        if not plain and number % CSV_EACH == CSV_EACH // 2:
            found.append(f"{line} --format csv")
    return list(dict.fromkeys(found))


def _of_documents() -> Iterator[str]:
    """Lines of README and docs, where a whole line is ours."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"^```\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        for line in re.findall(r"^(?:\$ )?llmviewer (.+)$", "\n".join(blocks), flags=re.MULTILINE):
            words = shlex.split(line, comments=True)
            if words and words[0] in COMMANDS and not {"|", ">", "&&", "\\", "..."} & set(words):
                yield shlex.join(words)


def _of_coverage() -> Iterator[str]:
    text = (ROOT / "docs" / "coverage.yaml").read_text(encoding="utf-8")
    for section in yaml.safe_load(text)["sections"]:
        yield from (row[2].replace("{folder}/", "") for row in section["rows"])


def _of_options() -> Iterator[str]:
    """Every option of every command in its case, what all share in some; writes contracts into the current folder."""
    for number, pair in enumerate(cases.PAIRS):
        command, name = (str(one) for one in pair.values)
        shared = command != "analyze" and name not in (*OWN.get(command, ()), *(LOAD if command in LOADED else ()))
        if not shared or number % SHARED_EACH == 0:
            line = shlex.join(cases.typed_line(command, name, cases.typed_of(command, name)))
            yield f"{line} {TWO}" if command == "crossover" and "-q" not in line else line


def _of_data() -> Iterator[str]:
    """A model of every architecture in the certificate's passes, every chip, and the lists."""
    classes = {str(published_config(name).get("architectures")): name for name in models.names()}
    for name in classes.values():
        encoder = published_config(name).get("model_type") in (*ENCODERS, "dit")
        yield f"analyze {name} {ONE_PASS if encoder else DECODED} --hardware h100 --attention eager --efficiency ideal"
    chips = specs.names()
    for first in range(0, len(chips), 9):
        yield f"compare llama-3.2-1b --hardware {','.join(chips[first : first + 9])}"
    for suffix in ("html", "md", "csv", "json"):
        yield f"report llama-3.2-1b --hardware h100 -o report.{suffix}"
    yield from ("models list", "hardware list", "techniques list", "hardware show h100", "models show llama-3.1-8b")

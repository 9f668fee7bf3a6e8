"""Golden figures of some hundred command lines: `python -m tests.goldens write | compare [--only PATTERN]`.

`compare` runs the lines of the table and says which figures, keys and exit statuses are other ones; words are counted
only.  For the figures themselves, write those of an older checkout with `write --full FOLDER` and give that folder to
`compare --against FOLDER`.  Figures are compared to the bit, so the table holds for one machine and one numpy.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

from tests import golden_lines
from tests.golden_answers import Figure, answer, enter

TABLE = Path(__file__).resolve().parent / "data" / "goldens.json"
#: Figures that the table holds as numbers, to 12 digits: the first of each name in an answer; answers without them have
#: those of `explain`, `require`, `why`, `crossover` and `diagnose`.
HEADS = ("ttft_s", "tpot_s", "e2e_s", "total_bytes")
OTHERS = ("value", "reached", "amount", "margin", "busy_s", "step_s")
#: Differences shown of one line in detail.
SHOWN = 20
#: status, figures (hash of all), words (hash), heads (name -> number), keys (name -> hash of its figures)
Entry: TypeAlias = dict[str, Any]


def digest(parts: Iterable[str], characters: int = 12) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:characters]


def mark(values: Iterable[str]) -> str:
    """Two characters that say which key changed, beside the hash of all figures that says whether any did."""
    return base64.b64encode(hashlib.sha256("\0".join(values).encode()).digest()).decode()[:2]


def entry(status: int, found: list[Figure], words: str) -> Entry:
    """The entry of an answer in the table."""
    by_name: dict[str, list[str]] = {}
    for _, name, value in found:
        by_name.setdefault(name, []).append(value)
    given = {name for name, (first, *_) in by_name.items() if first != "None"}
    named = given.intersection(HEADS) or given.intersection(OTHERS)
    heads = {name: float(f"{float(by_name[name][0]):.12g}") for name in (*HEADS, *OTHERS) if name in named}
    keys = {name: mark(values) for name, values in sorted(by_name.items())}
    everything = digest(f"{name}={value}" for name, values in sorted(by_name.items()) for value in values)
    return {"status": status, "figures": everything, "words": digest([words], 6), "heads": heads, "keys": keys}


def differences(old: Entry, new: Entry) -> list[str]:
    """Changes between two entries, words aside."""
    found = []
    if old["status"] != new["status"]:
        found.append(f"exit status {old['status']} -> {new['status']}")
    for what, names in (("gone", old["keys"].keys() - new["keys"]), ("new", new["keys"].keys() - old["keys"])):
        if names:
            found.append(f"keys {what}: {', '.join(sorted(names))}")
    changed = [name for name, value in old["keys"].items() if new["keys"].get(name, value) != value]
    if changed or (old["figures"] != new["figures"] and old["keys"].keys() == new["keys"].keys()):
        heads = {name: (one, new["heads"].get(name)) for name, one in old["heads"].items()}
        shown = [f"{name} {a!r} -> {b!r}" for name, (a, b) in heads.items() if a != b and name in changed]
        shown += [name for name in changed if heads.get(name, (0, 0))[0] == heads.get(name, (0, 0))[1]]
        found.append(f"figures changed: {', '.join(shown) or 'unknown'}")
    return found


def _task(job: tuple[str, str | None]) -> tuple[str, Entry, float]:
    line, full = job
    began = time.process_time()
    status, found, words = answer(line)
    if full:
        text = json.dumps({"line": line, "status": status, "figures": found, "words": words})
        (Path(full) / f"{digest([line])}.json").write_text(text, encoding="utf-8")
    return line, entry(status, found, words), time.process_time() - began


def run_all(table: Iterable[str], only: str, full: str | None = None) -> dict[str, Entry]:
    """Entries of the lines of a table, if empty of those of `golden_lines`, by a process for each core.

    Their home and caches are empty folders; `full` is a folder for the whole answers.
    """
    with tempfile.TemporaryDirectory() as top:
        os.environ |= {"HOME": top, "XDG_CACHE_HOME": f"{top}/cache", "HF_HUB_OFFLINE": "1", "COLUMNS": "240"}
        os.environ |= {"MPLBACKEND": "agg", "OPENBLAS_NUM_THREADS": "1"}
        prepared = Path(top) / "prepared"
        prepared.mkdir()
        collected = golden_lines.prepare(prepared)
        if full:
            Path(full).mkdir(parents=True, exist_ok=True)
        jobs = [(line, full and str(Path(full).resolve())) for line in table or collected if re.search(only, line)]
        with multiprocessing.get_context("spawn").Pool(initializer=enter, initargs=(str(prepared),)) as pool:
            rows = []
            for row in pool.imap_unordered(_task, jobs):
                rows.append(row)
                print(f"{len(rows)} of {len(jobs)}: {row[2]:.1f} s  {row[0]}", file=sys.stderr, flush=True)
    found = {line: one for line, one, _ in rows}
    return {line: found[line] for line, _ in jobs}


def write(entries: dict[str, Entry], path: Path = TABLE) -> None:
    """Write the table: names of keys and lists of them once, then a line of text for each command line."""
    kinds = list(dict.fromkeys(tuple(one["keys"]) for one in entries.values()))
    # names that occur in the same answers stand side by side, which keeps the lists short
    names = sorted(
        {name for kind in kinds for name in kind}, key=lambda name: ([name not in kind for kind in kinds], name)
    )
    number = {name: at for at, name in enumerate(names)}
    rows = []
    for line, one in entries.items():
        heads = ",".join(repr(one["heads"].get(name, "")).strip("'") for name in (*HEADS, *OTHERS)).rstrip(",")
        marks = "".join(one["keys"].values())
        rows.append([line, one["status"], one["figures"], one["words"], heads, kinds.index(tuple(one["keys"])), marks])
    shapes = [_ranges(sorted(number[name] for name in kind)) for kind in kinds]
    parts = {"names": names, "shapes": shapes}
    head = ",\n".join(f'"{name}":{json.dumps(parts[name], separators=(",", ":"))}' for name in ("names", "shapes"))
    body = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    path.write_text(f'{{{head},\n"lines":[\n{body}\n]}}\n', encoding="utf-8")


def _ranges(numbers: Iterable[int]) -> str:
    """`3-7,9` for rising numbers."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def read(path: Path = TABLE) -> dict[str, Entry]:
    """The entries of the table."""
    table = json.loads(path.read_text(encoding="utf-8"))
    shapes = []
    for text in table["shapes"]:
        ends = [one.split("-") for one in filter(None, text.split(","))]
        shapes.append(sorted(table["names"][at] for pair in ends for at in range(int(pair[0]), int(pair[-1]) + 1)))
    found = {}
    for line, status, everything, words, heads, shape, hashes in table["lines"]:
        keys = dict(zip(shapes[shape], (hashes[at : at + 2] for at in range(0, len(hashes), 2)), strict=True))
        own = {name: float(value) for name, value in zip((*HEADS, *OTHERS), heads.split(","), strict=False) if value}
        found[line] = {"status": status, "figures": everything, "words": words, "heads": own, "keys": keys}
    return found


def detail(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Changes between two full answers, figure by figure."""
    before, after = ({path: value for path, _, value in one["figures"]} for one in (old, new))
    found = [f"  - {path} = {before[path]}" for path in before if path not in after]
    found += [f"  + {path} = {after[path]}" for path in after if path not in before]
    both = [path for path in before if after.get(path, before[path]) != before[path]]
    return found + [f"  {path}: {before[path]} -> {after[path]}" for path in both]


def compare(old: dict[str, Entry], new: dict[str, Entry]) -> tuple[list[str], list[str]]:
    """A text for each line that differs, and the lines whose words differ."""
    found = [f"{line}\n  " + "\n  ".join(texts) for line in new if (texts := differences(old[line], new[line]))]
    return found, [line for line in new if old[line]["words"] != new[line]["words"]]


def main() -> int:
    """Exit status 1 if `compare` finds another figure, key or exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("--only", default="", metavar="PATTERN", help="lines that a regular expression finds")
    parser.add_argument("--collect", action="store_true", help="write: find the lines in documents, options, models")
    parser.add_argument("--full", metavar="FOLDER", help="write: whole answers into this folder, and no table")
    parser.add_argument("--against", metavar="FOLDER", help="compare with whole answers, figure by figure")
    parser.add_argument("--words", action="store_true", help="compare: list the lines whose words differ")
    asked = parser.parse_args()
    table = {} if asked.collect else read()
    if asked.action == "write":
        found = run_all(table, asked.only, asked.full)
        if not asked.full:
            write(table | found)
        return 0
    with tempfile.TemporaryDirectory() as here:
        new = run_all(table, asked.only, here if asked.against else None)
        texts, words = compare(table, new)
        if asked.against:
            texts = [text for line in new if (text := _detailed(line, Path(asked.against), Path(here)))]
    print(*texts, sep="\n")
    if asked.words:
        print(*(f"words: {line}" for line in words), sep="\n")
    print(f"{len(new)} lines: {len(texts)} differ; the words of {len(words)} differ")
    return int(bool(texts))


def _detailed(line: str, before: Path, after: Path) -> str:
    """Differences of the whole answers of a line in two folders, or nothing."""
    name = f"{digest([line])}.json"
    if not (before / name).exists():
        return f"{line}\n  not in {before}"
    old, new = (json.loads((folder / name).read_text(encoding="utf-8")) for folder in (before, after))
    both = [entry(one["status"], one["figures"], one["words"]) for one in (old, new)]
    listed = detail(old, new)
    more = [f"  ... and {len(listed) - SHOWN} more"] if len(listed) > SHOWN else []
    texts = [f"  {one}" for one in differences(*both)] + listed[:SHOWN] + more
    return "\n".join([line, *texts]) if listed or both[0]["status"] != both[1]["status"] else ""


if __name__ == "__main__":
    sys.exit(main())

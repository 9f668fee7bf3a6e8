"""Reader of the JSON, JSON lines, CSV, SQL and Markdown of llama.cpp's llama-bench: one record for each test.

Fields: https://github.com/ggml-org/llama.cpp/blob/master/tools/llama-bench/README.md.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from llmviewer.calibrate.environment import chip_name
from llmviewer.calibrate.readers.run import BenchmarkRun, Record, number
from llmviewer.core.errors import UserError, quoted
from llmviewer.timing import engine_backends

#: Fields of every record.
SIGNS = ("model_filename", "n_prompt", "n_gen", "avg_ts")
#: Quantization in a file's name: the last part that looks like one (`Q4_K_M`, `IQ2_XXS`, `F16`).
FORMAT = re.compile(r"[-._](i?q\d\w*|bf16|f16|f32|mxfp4)$", re.IGNORECASE)
#: Number of a part of a model in several files, and Unsloth's mark of mixed formats: no part of the model's name.
PART, MIXED = re.compile(r"-\d{5}-of-\d{5}$"), re.compile(r"-UD$")
#: Fields of layers or caches on the host -> values for none.
ON_HOST = {"n_cpu_moe": ("0",), "no_kv_offload": ("0", "false"), "tensor_buft_overrides": ("none", "")}
#: Formats of llama.cpp -> weight dtype of end-to-end tables; others keep their name.  MXFP4: experts, all else Q8_0.
WEIGHTS = {"f16": "fp16", "f32": "fp32", "mxfp4": "mxfp4_moe"}
#: In the Markdown: the column of rates, the mean in it, the line of dashes; a test of prompt and answer tokens after
#: cached ones.
RATE = "t/s"
RATE_OF, RULE = re.compile(r"([0-9.]+)"), re.compile(r"[|:\s-]+")
TEST = re.compile(r"(?:pp ?\d+)?\+?(?:tg ?\d+)?(?: @ d\d+)?")
#: Bits per weight behind the name of a format (`IQ4_XS - 4.25 bpw`).
BITS = re.compile(r" - [\d.]+ bpw")
TEST_PART = re.compile(r"(pp|tg|d) ?(\d+)")
#: Words of a model's type that are no part of its name.
NO_NAME = ("MoE", "mostly")
#: In the SQL: the table, and the names and values of a row.
SQL = "llama_bench ("
INSERT = re.compile(r"INSERT INTO llama_bench \(([^)]*)\) VALUES \((.*)\);\s*")
#: Columns of the Markdown -> fields of the JSON.
COLUMNS = {
    **{name: name for name in ("type_k", "type_v", "n_batch", "n_cpu_moe")}, "nkvo": "no_kv_offload",
    "backend": "backends",
    "ot": "tensor_buft_overrides",
}  # fmt: skip
#: `flash_attn` -> attention; others are chosen by llama.cpp.
ATTENTION = {"true": "flash", "1": "flash", "on": "flash", "false": "eager", "0": "eager", "off": "eager"}
CACHES = {"f16": "auto", "bf16": "auto", "q8_0": "int8"}
#: Default of `n_ubatch`, the tokens of a pass, which `n_batch` limits.
MICRO_BATCH = 512


def llama_bench(record: Record) -> BenchmarkRun | None:
    """The run of one test of llama-bench; None for another record.

    `avg_ts` is tokens per second: of the prompt (`n_prompt` alone), of generation (`n_gen` alone) or of both together.
    """
    if not set(SIGNS) <= set(record):
        return None
    stem = PurePosixPath(str(record["model_filename"]).replace("\\", "/")).name.removesuffix(".gguf")
    stem = PART.sub("", stem)
    stated = FORMAT.search(stem)
    weights = stated[1].lower() if stated else ""
    devices = [name.strip() for name in str(record.get("gpu_info") or "").split(",") if name.strip()]
    # none: the processor alone, whose name is no chip of ours; -1: all
    layers = math.inf if str(record.get("n_gpu_layers")) == "-1" else number(record, "n_gpu_layers")
    figures, prompt, answer = _figures(record)
    split = str(record.get("split_mode", "layer"))
    if len(devices) > 1 and split != "layer":
        raise UserError(f"split_mode is {split} on {len(devices)} devices; only a split by layers is predicted")
    for name, none in ON_HOST.items():
        if str(value := record.get(name, none[0])).lower() not in none:
            raise UserError(f"{name} is {quoted(value)}: what runs on the processor is not predicted")
    return BenchmarkRun(
        program="llama-bench", engine="llama.cpp", batching="static", batch=1.0, figures=figures,
        input_len=prompt, output_len=answer, weight_dtype=WEIGHTS.get(weights, weights),
        model=MIXED.sub("", stem[: stated.start()] if stated else stem),
        hardware=chip_name(devices[0]) if devices and layers else "",
        kv_dtype=CACHES.get(str(record.get("type_k", "f16")), str(record.get("type_k"))),
        pipeline=max(len(devices), 1), gpu_layers=layers, token_budget=_budget(record),
        attention=ATTENTION.get(str(record.get("flash_attn")).lower(), ""), note=_of_caches(record),
        backend=engine_backends.of_results(str(record.get("backends") or "")) if devices and layers else "",
    )  # fmt: skip


def _budget(record: Record) -> int:
    """Most tokens of a pass; 0: not stated."""
    micro, batch = number(record, "n_ubatch"), number(record, "n_batch")
    return int(min(micro or MICRO_BATCH, batch)) if batch else int(micro or 0)


def _of_caches(record: Record) -> str:
    """The format that is taken for a cache with values in another format than keys."""
    keys, values = (str(record.get(f"type_{name}") or "f16") for name in "kv")
    return "" if keys == values else f"the cache has values in {values}; all of it is predicted as {keys}, as its keys"


def of_sql(text: str) -> Iterator[Record]:
    """Records of the rows that a text inserts, with the fields of the JSON.  Raises UserError."""
    for found in filter(None, map(INSERT.fullmatch, text.splitlines())):
        values = next(csv.reader([found[2]], quotechar="'", skipinitialspace=True))
        names = [name.strip() for name in found[1].split(",")]
        if len(values) != len(names):
            raise UserError(f"a row of the SQL of llama-bench has {len(values)} values for {len(names)} columns")
        yield dict(zip(names, values, strict=True))


def is_markdown(line: str) -> bool:
    """Whether a line is the header of a table that llama-bench prints."""
    return line.lstrip().startswith("|") and {"model", "test", RATE} <= {*_cells(line)}


def of_markdown(text: str) -> Iterator[Record]:
    """Records of the rows of the tables in a text, with the fields of the JSON.  Raises UserError."""
    names: list[str] = []
    for line in text.splitlines():
        if is_markdown(line):
            names = _cells(line)
        elif names and line.lstrip().startswith("|") and not RULE.fullmatch(line.strip()):
            yield _of_row(dict(zip(names, _cells(line), strict=False)))


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _of_row(row: Record) -> Record:
    test, rate = TEST.fullmatch(row.get("test", "")), RATE_OF.match(row.get(RATE, ""))
    if test is None or rate is None:
        raise UserError(f"a row of the table of llama-bench has no test such as pp512, or no {RATE}")
    words = BITS.sub("", row["model"]).replace(" - ", "_").split()
    stored = next((word for word in reversed(words) if FORMAT.search(f"-{word}")), "")
    name = "-".join(word for word in words if word not in (stored, *NO_NAME))
    sizes = {"pp": "0", "tg": "0", "d": "0", **dict(TEST_PART.findall(row["test"]))}
    return {
        "model_filename": f"{name}-{_short(stored)}" if stored else name,
        "n_prompt": sizes["pp"], "n_gen": sizes["tg"], "n_depth": sizes["d"], "avg_ts": rate[1],
        "n_gpu_layers": row.get("ngl", "-1"), "n_ubatch": row.get("n_ubatch"), "flash_attn": row.get("fa"),
        **{field: row[column] for column, field in COLUMNS.items() if column in row},
    }  # fmt: skip


def _short(stored: str) -> str:
    """Name of a format in a file's name: `Q4_K_Medium` of the table is `Q4_K_M`."""
    head, _, last = stored.rpartition("_")
    return f"{head}_{last[0]}" if last in ("Small", "Medium", "Large") else stored


def _figures(record: Record) -> tuple[dict[str, float], float, float]:
    """Figures, prompt tokens and generated tokens of a test."""
    rate = number(record, "avg_ts")
    prompt, answer, depth = (number(record, name) or 0.0 for name in ("n_prompt", "n_gen", "n_depth"))
    if rate is None:
        return {}, prompt, answer
    if prompt and depth:
        raise UserError(f"a prompt after {depth:g} cached tokens (-d) is not predicted by this table")
    if depth:  # as many steps as tokens, each over the tokens before it: TPOT of one token more
        return {"tpot_ms": 1e3 / rate}, depth, answer + 1.0
    if prompt and answer:
        return {"latency_ms": (prompt + answer) / rate * 1e3}, prompt, answer
    return {"throughput_tok_s" if prompt else "decode_tok_s": rate}, prompt, answer

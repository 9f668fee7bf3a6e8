"""Campaigns: questions cut into chunks that any machine can answer, a killed run of which resumes."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from llmviewer import api
from llmviewer.api import build
from llmviewer.core.data import ROOT, display_path
from llmviewer.core.errors import UserError, printable
from llmviewer.core.files import BESIDE, recording
from llmviewer.core.frozen import frozen
from llmviewer.core.version import __version__
from llmviewer.planning import cluster
from llmviewer.planning.call import size
from llmviewer.planning.data_set import SCHEMA, DataSet, data_set, part
from llmviewer.planning.options import question
from llmviewer.planning.sizing import Sizing
from llmviewer.result import columns as of_results
from llmviewer.result.sweep import Candidate, Grid, Sweep, parse_values
from llmviewer.simulation import options as load
from llmviewer.simulation.call import simulate
from llmviewer.simulation.limits import STATISTICS
from llmviewer.simulation.result import METRICS, Simulation
from llmviewer.techniques.options import OPTIONS

#: Content of a larger file is not read whole: its size and its beginning stand for it [byte].
WHOLE_BYTES, BEGINNING_BYTES = 2**28, 2**20
SUFFIXES = (".py", ".yaml")


@frozen
class Inputs:
    """The inputs of a campaign.

    package: hash of the code and data of llmviewer.  files: the user's files, path -> hash.  folder: the current
    directory of the command, from which relative paths are read.
    """

    package: str
    files: Mapping[str, str]
    folder: str

    def here(self) -> Any:
        """A context in which the user's paths are read as where the campaign began.

        Raises UserError on a machine that has another llmviewer or other files.
        """
        if package_hash() != self.package:
            raise UserError(f"a worker runs another version of llmviewer, or with other data, than {__version__} here")
        for path, known in self.files.items():
            if file_hash(path) != known:
                raise UserError(f"a worker cannot read '{printable(path, 200)}', or reads another file there")
        return chdir(self.folder) if self.files and Path.cwd() != Path(self.folder) else nullcontext()


def inputs_of(read: Mapping[str, object]) -> Inputs:
    """The inputs of a campaign that has read these paths, some of which may not exist."""
    own = {path.resolve() for path in _package_files()}
    hashes = {
        path: file_hash(path) for path in sorted(read) if Path(path).is_file() and Path(path).resolve() not in own
    }
    return Inputs(package=package_hash(), files=hashes, folder=os.getcwd())  # noqa: PTH109


@lru_cache(maxsize=1)
def package_hash() -> str:
    """Hash of all code and data of the package, which is read once per process."""
    found = hashlib.sha256()
    for path in sorted(_package_files()):
        found.update(f"{display_path(path)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _package_files() -> Iterator[Path]:
    """Files of the package; its folders `reports`, `calibrate` and others are links in a checkout."""
    for root in (ROOT, *map(Path, BESIDE)):
        for folder, folders, names in os.walk(root, followlinks=True):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (Path(folder) / name for name in names if name.endswith(SUFFIXES))


def file_hash(path: str) -> str:
    """Hash of a file's content; empty for a file that cannot be read."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 (a path of a recording is text)
            size = os.fstat(stream.fileno()).st_size
            return hashlib.sha256(
                b"%d\n" % size + stream.read(WHOLE_BYTES if size <= WHOLE_BYTES else BEGINNING_BYTES)
            ).hexdigest()
    except OSError:
        return ""


def text_hash(value: object) -> str:
    """Hash of a JSON-like value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


Columns = dict[str, Any]
#: Fields of a simulation's JSON object that its row shows otherwise, or not.
NOT_CELLS = ("schema", "intervals", "limits", "refused", *METRICS)


@lru_cache(maxsize=8)
def grid_of(batch_size: str, input_len: str, output_len: str) -> Grid:
    """The grid of three lists as they are typed.  Raises UserError."""
    return Grid(
        batch_sizes=parse_values("batch_size", batch_size),
        input_lens=parse_values("input_len", input_len),
        output_lens=parse_values("output_len", output_len),
    )


def sweep_rows(words: Mapping[str, Any]) -> Columns:
    """Columns of some points of a grid on one configuration, as of `Sweep.chunks`.

    words: `configuration` (options with model and hardware), `grid` (three lists), `points` (first and last + 1) and
    `columns` (names of all, since ideal times have no bounds).
    """
    one = api.configuration(**words["configuration"])
    requests = grid_of(*words["grid"]).chunks(one.token_budget, one.most_points, range(*words["points"]))
    return of_results.joined([one.answer(request).columns() for request in requests], words["columns"])


def simulation_rows(words: Mapping[str, Any]) -> Columns:
    """The row of one simulation.  words: `options` of `simulate`, and `shown`, names of those that the row states."""
    made = simulate(**words["options"])
    shown = {name: str(words["options"][name]) for name in words["shown"] if words["options"][name] is not None}
    return one_row({**dict.fromkeys(words["shown"], ""), **shown, **simulation_cells(made)})


def simulation_cells(made: Simulation) -> dict[str, object]:
    """Cells of a simulation: what its JSON object says, in names of columns like those of a sweep."""
    document = made.to_dict()
    cells = {name: _cell(value) for name, value in document.items() if name not in NOT_CELLS}
    bounds = document["intervals"].get("calibration", {})
    for metric in METRICS:
        name = metric.removesuffix("_s")
        for statistic in STATISTICS:
            cells[f"{name}_{statistic}_s"] = document[metric][statistic]
            low, high = bounds.get(metric, {}).get(statistic, {}).get("80", (None, None))
            cells |= {f"{name}_{statistic}_low80_s": low, f"{name}_{statistic}_high80_s": high}
    low, high = bounds.get("output_tokens_per_s", {}).get("80", (None, None))
    cells |= {"output_tokens_per_s_low80": low, "output_tokens_per_s_high80": high}
    broken = (f"{one.metric.removesuffix('_s')} {one.statistic} <= {one.seconds:g} s" for one in made.broken)
    return {**cells, "refused": sum(document["refused"].values()), "holds": made.holds, "broken": ", ".join(broken)}


def size_rows(words: Mapping[str, Any]) -> Columns:
    """The row of one sizing of one chip.  words: `options` of `size`, and `shown`, those that the row states."""
    made = size(**words["options"])
    shown = {name: str(words["options"][name]) for name in words["shown"] if words["options"][name] is not None}
    return one_row({**dict.fromkeys(words["shown"], ""), **shown, **sizing_cells(made)})


def sizing_cells(made: Sizing) -> dict[str, object]:
    """Cells of a sizing: figures of the best configuration, undefined without one, or the gate that rejects."""
    names = "devices replicas request_rate_per_replica ttft_s tpot_s probability usd_per_hour watts head_room".split()
    names += ["output_tokens_per_s_per_device", "usd_per_million_output_tokens", "joules_per_output_token"]
    best = made.rows()[0] if made.best is not None else {}
    rejected = made.rejected[0].gate.text if made.rejected else ""
    texts = {"options": best.get("options", ""), "command": best.get("command", ""), "rejected": rejected}
    asked = {"model": made.question.model_name, "hardware": str(made.question.hardware[0])}
    rate = {
        "request_rate": made.question.workload.rate or None,
        "feasible": made.best is not None,
        "searched": made.searched,
    }
    return {**asked, **rate, **{name: best.get(name) for name in names}, **texts}


def _cell(value: Any) -> Any:
    """The value of a cell; lists of texts become one text."""
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def one_row(cells: Mapping[str, object]) -> Columns:
    """Columns of one row of texts and numbers; None is an undefined number."""
    return {name: _column(value) for name, value in cells.items()}


def _column(value: object) -> Any:
    if isinstance(value, str):
        return np.array([value], dtype=object)
    return np.array([np.nan if value is None else value])


#: Kind of a campaign -> function that computes the columns of a chunk; `model` and `hardware` are the same in all rows.
KINDS: Mapping[str, Callable[[Mapping[str, Any]], Columns]] = {
    "sweep": sweep_rows,
    "simulate": simulation_rows,
    "size": size_rows,
}


#: A chunk of a sweep takes a second or a few of a core, so that handing it over costs little: at most so many forward
#: passes, and points, which the worker holds in memory; or points that are answered one by one.
CHUNK_PASSES, CHUNK_POINTS, SINGLE_POINTS = 2**19, 2**16, 2**8
#: Chunks of one campaign; the scheduler and the folder hold them all.
MAX_CHUNKS = 10**6
#: Options that a row states anyway.
STATED = ("model", "hardware", "engine", "efficiency", "seed", "replications", "request_rate")
DEFAULTS = {name: one.default for name, one in OPTIONS.items()} | {n: one.default for n, one in load.LOAD.items()}

Options = Mapping[str, Any]


def sweep_campaign(
    configurations: Sequence[Options], sizes: Mapping[str, str], most_points: int = CHUNK_POINTS
) -> tuple[Campaign, tuple[str, ...]]:
    """The campaign of a sweep, and its warnings.

    configurations: options of each, with model and hardware.  sizes: batch_size, input_len and output_len as typed.
    most_points: of a chunk.  Raises UserError.
    """
    texts = (sizes["batch_size"], sizes["input_len"], sizes["output_len"])
    with recording() as read:
        candidates = [api.configuration(**chosen) for chosen in configurations]
        sweep = Sweep(configurations=tuple(candidates), grid=grid_of(*texts))
        warnings, names = sweep.checked()
    chunks = []
    for chosen, one in zip(configurations, candidates, strict=True):
        shared = {"configuration": dict(chosen), "grid": texts, "columns": names}
        size = _size(sweep.grid, one, most_points)
        for start in range(0, len(sweep.grid), size):
            stop = min(start + size, len(sweep.grid))
            chunks.append(Chunk(words={**shared, "points": (start, stop)}, rows=stop - start))
    asked = {**_asked(configurations), **sizes}
    return _checked(Campaign(kind="sweep", asked=asked, inputs=inputs_of(read), chunks=tuple(chunks))), warnings


def _size(grid: Grid, one: Candidate, most_points: int) -> int:
    """Points of a chunk; it does not depend on the number of workers, which may differ when a run resumes."""
    together = SINGLE_POINTS if np.isfinite(one.most_points) else CHUNK_PASSES // grid.passes(one.token_budget)
    return max(1, min(together, most_points))


def simulation_campaign(simulations: Sequence[Options]) -> Campaign:
    """The campaign of some simulations.  simulations: options of each, as of `simulate`.  Raises UserError."""
    checked: dict[str, None] = {}
    with recording() as read:
        for options in simulations:
            _check_simulation(options, checked)
    return one_row_each("simulate", simulations, inputs_of(read))


def size_campaign(sizings: Sequence[Options]) -> Campaign:
    """The campaign of some sizings of one chip each.  sizings: options of each, as of `size`.  Raises UserError."""
    with recording() as read:
        for options in sizings:
            asked = {name: value for name, value in options.items() if name not in ("model", "hardware")}
            question(options["model"], (options["hardware"],), asked)
            build.chip_of(options["hardware"])
            build.model_of(options["model"], build.options_of({}))
    return one_row_each("size", sizings, inputs_of(read))


def one_row_each(kind: str, questions: Sequence[Options], inputs: Inputs) -> Campaign:
    """The campaign of questions that have one row each, which states the options that differ from their defaults."""
    asked = _asked(questions)
    shown = [name for name in asked if name not in STATED]
    chunks = (Chunk(words={"options": dict(one), "shown": shown}, rows=1) for one in questions)
    return _checked(Campaign(kind=kind, asked=asked, inputs=inputs, chunks=tuple(chunks)))


def _check_simulation(options: Options, known: dict[str, None]) -> None:
    """Read what a simulation reads.  known: texts of loads that were checked.  Raises UserError."""
    words = load.checked({name: value for name, value in options.items() if name in load.LOAD})
    if str(words) not in known:
        load.traffic_of(words)
        load.limits_of(words)
        known[str(words)] = None
    if words["pools"] is None:
        api.configuration(**{name: value for name, value in options.items() if name not in load.LOAD})


def _asked(configurations: Sequence[Options]) -> dict[str, str]:
    """Options that are not at their defaults everywhere, with their values in the order in which they first occur."""
    values = {name: list(dict.fromkeys(str(one[name]) for one in configurations)) for name in configurations[0]}
    return {name: "; ".join(found) for name, found in values.items() if found != [str(DEFAULTS.get(name))]}


def _checked(campaign: Campaign) -> Campaign:
    if len(campaign.chunks) > MAX_CHUNKS:
        raise UserError(f"the campaign has {len(campaign.chunks):,} chunks; allowed: at most {MAX_CHUNKS:,}")
    return campaign


#: Configurations are kept for one thread; a worker with several computes one chunk at a time.
_ONE_AT_A_TIME = threading.Lock()


@frozen
class Chunk:
    """A part of a campaign that one task computes.  words: arguments of the kind's function.  rows: their number."""

    words: Mapping[str, Any]
    rows: int


@frozen
class Campaign:
    """An ordered list of chunks of one kind.  asked: the options that were given.  inputs: what decides the rows."""

    kind: str
    asked: Mapping[str, str]
    inputs: Inputs
    chunks: tuple[Chunk, ...]

    def __len__(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def manifest(self) -> dict[str, Any]:
        """The description that the folder keeps; its key is equal for equal questions to the same llmviewer."""
        told = {"kind": self.kind, "asked": dict(self.asked), "files": dict(self.inputs.files)}
        key = text_hash([told, self.inputs.package])
        return {"schema": SCHEMA, "key": key, **told, "chunks": len(self.chunks), "rows": len(self)}


@frozen
class Finished:
    """The outcome of a run.  found: chunks that were there.  computed: chunks of this run.

    foreign: Parquet files in the folder that are no part of the campaign, which readers of the data set would read.
    """

    folder: str
    found: int
    computed: int
    foreign: tuple[str, ...] = ()


@frozen
class Part:
    """A computed chunk.  content: of its file; None if the worker has written it."""

    index: int
    path: Path
    content: bytes | None


def run(
    campaign: Campaign, folder: str, scheduler: str = cluster.LOCAL, advance: Callable[[int], None] = lambda rows: None
) -> Finished:
    """Compute the chunks that the folder lacks, on the workers of a scheduler.

    advance: called with numbers of new rows.  Raises UserError; what is finished is kept.
    """
    cluster.local_workers(scheduler)
    manifest = campaign.manifest()
    made = data_set(folder, manifest)
    rows = [chunk.rows for chunk in campaign.chunks]
    found, others = made.finished(rows)
    missing = [index for index in range(len(campaign.chunks)) if index not in found]
    advance(sum(campaign.chunks[index].rows for index in found))
    if missing:
        with cluster.connected(scheduler) as client:
            made.begin(manifest)
            _compute(campaign, made, missing, client, advance)
        made.clear()
    foreign = tuple(name for name in others if made.index_of(made.folder / name, rows) is None)
    return Finished(folder=folder, found=len(found), computed=len(missing), foreign=foreign)


def _compute(
    campaign: Campaign, made: DataSet, missing: list[int], client: Any, advance: Callable[[int], None]
) -> None:
    """Compute chunks.  Raises the first error of a chunk after all others have been computed."""
    tasks = [
        (f"{made.key}-{index}", (campaign.kind, index, campaign.chunks[index].words, campaign.inputs, made))
        for index in missing
    ]
    errors: list[Exception] = []
    for answer in cluster.answers(client, compute, tasks):
        if isinstance(answer, Exception):
            errors.append(answer)
            continue
        if answer.content is not None:
            made.store(answer.path, answer.content)
        advance(campaign.chunks[answer.index].rows)
    if errors and len(missing) == 1:
        raise errors[0]
    if errors:
        first = errors[0]
        if not isinstance(first, UserError):
            raise first
        raise UserError(f"{len(errors)} of {len(missing)} chunks cannot be computed, the others are kept: {first}")


def compute(kind: str, index: int, words: Mapping[str, Any], inputs: Inputs, made: DataSet) -> Part:
    """Compute a chunk on a worker, which writes its file if it sees the folder.  Raises UserError."""
    with _ONE_AT_A_TIME, inputs.here():
        columns = KINDS[kind](words)
        path = made.path(index, columns)
        content = part(columns, path)
    if not made.is_seen():
        return Part(index=index, path=path, content=content)
    made.store(path, content)
    return Part(index=index, path=path, content=None)

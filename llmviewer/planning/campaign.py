"""Campaigns: questions cut into chunks that any machine can answer, a killed run of which resumes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmviewer.core.errors import UserError
from llmviewer.planning import cluster
from llmviewer.planning.campaign_inputs import Inputs, text_hash
from llmviewer.planning.campaign_rows import KINDS
from llmviewer.planning.data_set import SCHEMA, DataSet, data_set, part

#: Configurations are kept for one thread; a worker with several computes one chunk at a time.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A part of a campaign that one task computes.  words: arguments of the kind's function.  rows: their number."""

    words: Mapping[str, Any]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The outcome of a run.  found: chunks that were there.  computed: chunks of this run.

    foreign: Parquet files in the folder that are no part of the campaign, which readers of the data set would read.
    """

    folder: str
    found: int
    computed: int
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
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

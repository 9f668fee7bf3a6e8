"""Runs that do not depend on each other, on all cores."""

from __future__ import annotations

import os
import pickle
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

One = TypeVar("One")
Answer = TypeVar("Answer")
#: Bytes of the size of an answer in a pipe.
SIZE = 8


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(
    function: Callable[[One], Answer],
    values: Sequence[One],
    done: Callable[[int, Answer], None] = lambda place, answer: None,
) -> list[Answer]:
    """`function` of every value, in their order; one after the other where processes cannot be forked,
    as on a thread of a worker of Dask.

    done: called with the place of a value and its answer as soon as this process knows it.  Each process takes the
    first value that none has taken, and those but this one send every answer through a pipe.  No thread runs in any of
    them, so that none can hold a lock while another is forked.
    """
    workers = min(cores(), len(values))
    if workers < 2 or not hasattr(os, "fork") or threading.current_thread() is not threading.main_thread():
        workers = 1
    answers: dict[int, Answer] = {}

    def known(place: int, answer: Answer) -> None:
        answers[place] = answer
        done(place, answer)

    queue = os.pipe()
    os.write(queue[1], (0).to_bytes(SIZE))
    children = [_Child.forked(function, values, queue) for _ in range(1, workers)]
    try:
        for place in _taken(queue, len(values)):
            known(place, function(values[place]))
            for child in children:
                child.receive(known)
        while waiting := [child for child in children if child.is_open]:
            select.select([child.pipe for child in waiting], (), ())
            for child in waiting:
                child.receive(known)
    finally:
        for child in children:
            child.end()
        for end in queue:
            os.close(end)
    if len(answers) < len(values):
        raise RuntimeError("a process that simulates ended early")
    return [answers[place] for place in range(len(values))]


def _taken(queue: tuple[int, int], count: int) -> Iterator[int]:
    """Places of values that no other process has taken.  queue: a pipe with the next place, read by one at a time."""
    reading, writing = queue
    while True:
        place = int.from_bytes(os.read(reading, SIZE))
        os.write(writing, (place + 1).to_bytes(SIZE))
        if place >= count:
            return
        yield place


@dataclass(slots=True, kw_only=True)
class _Child:
    """A process that answers some of the values.  pipe: where its answers can be read; is_open: whether more may come;
    sent: bytes of the next answer that have come."""

    process: int
    pipe: int
    is_open: bool = True
    sent: bytearray = field(default_factory=bytearray)

    @staticmethod
    def forked(function: Callable[[One], Answer], values: Sequence[One], queue: tuple[int, int]) -> _Child:
        """A process that answers values of the queue."""
        reading, writing = os.pipe()
        if child := os.fork():
            os.close(writing)
            return _Child(process=child, pipe=reading)
        status = 1
        try:
            os.close(reading)
            _send(writing, ((place, _answered(function, values[place])) for place in _taken(queue, len(values))))
            status = 0
        finally:
            os._exit(status)  # without what the parent does when it ends

    def receive(self, known: Callable[[int, Any], None]) -> None:
        """Take the answers that have come; raises the error that one of them is."""
        while self.is_open and select.select((self.pipe,), (), (), 0.0)[0]:
            if not (part := os.read(self.pipe, 1 << 20)):
                self.is_open = False
            self.sent += part
            while len(self.sent) >= SIZE and len(self.sent) >= (end := SIZE + int.from_bytes(self.sent[:SIZE])):
                place, answer = pickle.loads(self.sent[SIZE:end])
                del self.sent[:end]
                if isinstance(answer, Exception):
                    raise answer
                known(place, answer)

    def end(self) -> None:
        """Stop the process if it still runs, as after an interrupt, and wait for its end."""
        os.close(self.pipe)
        with suppress(ProcessLookupError):
            os.kill(self.process, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.process, 0)


def _answered(function: Callable[[One], Answer], value: One) -> Answer | Exception:
    """The answer, or the error that is raised."""
    try:
        return function(value)
    except Exception as error:
        return error


def _send(pipe: int, answers: Iterable[tuple[int, object]]) -> None:
    """Write places and answers, each after its size; they wait here while the pipe is full and others are worked on."""
    os.set_blocking(pipe, False)
    left = b""
    for answer in answers:
        text = pickle.dumps(answer)
        left += len(text).to_bytes(SIZE) + text
        with suppress(BlockingIOError):
            left = left[os.write(pipe, left) :]
        if isinstance(answer[1], Exception):
            break
    os.set_blocking(pipe, True)
    while left:
        left = left[os.write(pipe, left) :]

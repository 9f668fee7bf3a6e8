"""Workers of Dask: an embedded cluster, or those of a scheduler at an address."""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from llmviewer.core.arguments import parse_number
from llmviewer.core.errors import UserError, missing_extra, printable, quoted
from llmviewer.simulation.parallel import cores

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
#: Time in which a scheduler has to answer, and to have a worker [s].
PATIENCE_S = 8
#: Tasks handed to the scheduler at a time, per thread of a worker, and at least.
AHEAD, LEAST_AHEAD = 4, 16
#: Time after which threads are counted again [s].
RECOUNT_S = 1.0
MAX_LOCAL = 1024


def local_workers(scheduler: str) -> int:
    """Workers of an embedded cluster; 0: the scheduler is at an address.  Raises UserError for other texts."""
    name, colon, count = scheduler.partition(":")
    if name == LOCAL:
        number = parse_number(count) if colon else cores()
        if isinstance(number, int) and 1 <= number <= MAX_LOCAL:
            return number
    elif colon and count.startswith("//") and len(count) > 2:
        return 0
    allowed = f"tcp://HOST:PORT, {LOCAL} (a worker per core) or {LOCAL}:N"
    raise UserError(f"scheduler is {quoted(scheduler)}; allowed: {allowed}")


@contextmanager
def connected(scheduler: str) -> Iterator[Client]:
    """A client of the scheduler, which has at least one worker.  Raises UserError if it does not answer in time."""
    embedded = local_workers(scheduler)
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise missing_extra("campaigns need dask and distributed", "scale") from error
    _silence()
    with ExitStack() as stack:
        address: Any = scheduler
        if embedded:
            quiet = {"dashboard_address": None, "silence_logs": logging.CRITICAL}
            with _interrupts_wait():
                address = stack.enter_context(LocalCluster(n_workers=embedded, threads_per_worker=1, **quiet))
        else:
            _check_answers(scheduler)
        try:
            client = stack.enter_context(Client(address, timeout=PATIENCE_S, set_as_default=False))
            client.wait_for_workers(1, timeout=PATIENCE_S)
        except OSError as error:  # TimeoutError among them
            raise UserError(f"the scheduler at {quoted(scheduler)} has no worker: dask worker {scheduler}") from error
        yield client


def _silence() -> None:
    """Silence the log of distributed, whose parts have levels of their own: what matters is told in one line."""
    if not os.environ.get("LLMVIEWER_DEBUG"):
        for name in list(logging.root.manager.loggerDict):
            if name.split(".")[0] == "distributed":
                logging.getLogger(name).setLevel(logging.CRITICAL)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Hold Ctrl-C back, and keep it from the threads that begin meanwhile and the workers that they start.

    A terminal sends it to all processes; this one ends the workers itself, which would each print a traceback.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would let the thread that starts it have interrupts again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _check_answers(scheduler: str) -> None:
    """Raise UserError unless a scheduler answers at the address, in time.

    Asked before a client is made: one that cannot connect takes long to close, and prints a traceback.
    """
    import asyncio

    from distributed.comm import connect

    async def identity() -> Any:
        comm = await connect(scheduler, timeout=PATIENCE_S)
        try:
            await comm.write({"op": "identity", "reply": True})
            return await comm.read()
        finally:
            comm.abort()

    async def in_time() -> Any:
        return await asyncio.wait_for(identity(), PATIENCE_S)

    try:
        found = asyncio.run(in_time())
        kind = found.get("type") if isinstance(found, dict) else None
        reason = "" if kind == "Scheduler" else f"a {printable(kind)} of Dask answers"
    except Exception as error:  # whatever bytes another server sends
        reason = str(error) if isinstance(error, (OSError, ValueError)) and str(error) else "something else answers"
    if reason:
        raise UserError(f"no scheduler of Dask answers at {quoted(scheduler)}: {printable(reason, 200)}")


def answers(
    client: Client, function: Callable[..., Any], tasks: Sequence[tuple[str, tuple[Any, ...]]]
) -> Iterator[Any]:
    """The answer of every task as it is ready, or the exception that it raised; a lost worker's go to others.

    tasks: key -> arguments of the function.  Only as many are handed over as keep the workers busy, so that neither
    the scheduler nor a worker holds many answers.  Raises UserError if the scheduler is lost.
    """
    import asyncio
    from concurrent import futures

    from distributed import as_completed

    left, running = iter(tasks), as_completed(loop=client.loop)
    ahead, counted_s = 0, -math.inf
    try:
        while True:
            if time.monotonic() - counted_s > RECOUNT_S:  # workers come and go
                ahead, counted_s = max(AHEAD * sum(client.nthreads().values()), LEAST_AHEAD), time.monotonic()
            given = list(islice(left, max(ahead - running.count(), 0)))
            if given:
                keys, arguments = zip(*given, strict=True)
                running.update(client.map(function, *zip(*arguments, strict=True), key=list(keys), pure=False))
            if running.is_empty():
                return
            batch = running.next_batch()
            yield from map(_error, (future for future in batch if future.status != "finished"))
            yield from client.gather([future for future in batch if future.status == "finished"])
    except (OSError, asyncio.CancelledError, futures.CancelledError) as error:  # of the connection
        raise _lost() from error


def _error(future: Any) -> Any:
    """The exception of a task.  Raises UserError if the scheduler has forgotten it."""
    if future.status != "error":
        raise _lost()
    error = future.exception()
    if type(error).__name__ == "KilledWorker":
        return UserError("a chunk has ended its worker again and again; give each worker more memory")
    return error


def _lost() -> UserError:
    return UserError("the scheduler was lost; what is finished is kept, and the same command resumes")

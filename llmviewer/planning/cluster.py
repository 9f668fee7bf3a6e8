"""Workers of Dask: an embedded cluster, or those of a scheduler at an address."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from llmviewer.core.arguments import parse_number
from llmviewer.core.errors import UserError, printable, quoted
from llmviewer.simulation.parallel import cores

if TYPE_CHECKING:
    from distributed import Client

LOCAL = "local"
#: Time in which a scheduler has to answer, and to have a worker [s].
PATIENCE_S = 8
#: Tasks handed to the scheduler at a time, per thread of a worker, and at least.
AHEAD, LEAST_AHEAD = 4, 16
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
        raise UserError("campaigns need dask and distributed: pip install 'llmviewer[scale]'") from error
    if not os.environ.get("LLMVIEWER_DEBUG"):
        logging.getLogger("distributed").setLevel(
            logging.CRITICAL
        )  # a lost worker is no news: its chunk goes to another
    with ExitStack() as stack:
        address: Any = scheduler
        if embedded:
            address = stack.enter_context(
                LocalCluster(
                    n_workers=embedded, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
                )
            )
        try:
            client = stack.enter_context(Client(address, timeout=PATIENCE_S, set_as_default=False))
        except (OSError, ValueError) as error:  # ValueError: an unknown protocol, no port
            raise UserError(f"no scheduler answers at {quoted(scheduler)}: {printable(error, 200)}") from error
        try:
            client.wait_for_workers(1, timeout=PATIENCE_S)
        except TimeoutError as error:
            raise UserError(f"the scheduler at {quoted(scheduler)} has no worker: dask worker {scheduler}") from error
        yield client


def answers(
    client: Client, function: Callable[..., Any], tasks: Sequence[tuple[str, tuple[Any, ...]]]
) -> Iterator[Any]:
    """The answer of every task as it is ready, or the exception that it raised; a lost worker's go to others.

    tasks: key -> arguments of the function.  Only as many are handed over as keep the workers busy, so that neither
    the scheduler nor a worker holds many answers.  Raises UserError if the scheduler is lost.
    """
    from distributed import as_completed

    left, running = iter(tasks), as_completed(loop=client.loop)

    def hand_over() -> None:
        ahead = max(AHEAD * sum(client.nthreads().values()), LEAST_AHEAD) - running.count()
        for key, given in islice(left, max(ahead, 0)):
            running.add(client.submit(function, *given, key=key, pure=False))

    try:
        hand_over()
        for batch in running.batches():
            for future in batch:
                yield _answer(future)
            hand_over()
    except OSError as error:  # of the connection
        raise _lost() from error


def _answer(future: Any) -> Any:
    """The answer of a task, or its exception.  Raises UserError if the scheduler has forgotten it."""
    if future.status in ("cancelled", "lost"):
        raise _lost()
    if future.status != "error":
        return future.result()
    error = future.exception()
    if type(error).__name__ == "KilledWorker":
        return UserError("a chunk has ended its worker again and again; give each worker more memory")
    return error


def _lost() -> UserError:
    return UserError("the scheduler was lost; what is finished is kept, and the same command resumes")

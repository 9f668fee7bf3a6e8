"""Serving an application with gunicorn: several processes behind one port, each replaced when it ends.

Workers have a few threads (gthread), so that a short request passes a long one; computing on all cores takes several
workers.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmviewer.core.errors import UserError, missing_extra, printable
from llmviewer.server import calls

if TYPE_CHECKING:
    from flask import Flask

#: Threads of a worker, connections that it takes at once, and connections that wait for a worker.  A worker that took
#: more than it answers would let them wait while another one is idle.
THREADS, CONNECTIONS, BACKLOG = 3, 4, 256
#: Seconds for which the kernel keeps a connection that has sent nothing from a worker: browsers open spare ones.
SILENT_CONNECTION_S = 60
#: Seconds after which a worker that gives no sign of life is replaced, and in which requests may end at a stop.
SILENT_S, STOP_S = 30, 3
#: Requests after which a worker is replaced, give or take some, so that no leak lasts.
REQUESTS, GIVE_OR_TAKE = 5000, 500
#: Longest address of a page with its method [byte]; proxies take no more either.
MAX_LINE = 8190
#: Memory of the data of one worker [byte]; more raises MemoryError, which is a problem document.
MAX_DATA_BYTES = 4 * 2**30
#: Thresholds of the garbage collector: one collection in some answers instead of many in each.
GARBAGE = (50_000, 20, 20)
#: Memory file system for the signs of life, which a slow disk would delay.
SHARED_MEMORY = Path("/dev/shm")


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens at an address.  port: 0 for any free one.  Raises UserError if it is in use."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_DEFER_ACCEPT"):  # Linux
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENT_CONNECTION_S)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        reason = "it is in use; choose another --port" if error.errno == errno.EADDRINUSE else error.strerror or error
        raise UserError(f"cannot listen at {printable(host)}:{port}: {reason}") from error
    made.set_inheritable(True)
    return made


def url(host: str, port: int) -> str:
    """The address to type into a browser."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def run(app: Flask, listener: socket.socket, workers: int, ready: Callable[[], None]) -> None:
    """Serve until a signal ends it.  ready: called once, when the port answers.

    Raises UserError where gunicorn is missing; ends by SystemExit with the status of the server.
    """
    base = _base()
    _warm_up()
    descriptor = listener.detach()  # from here on gunicorn's to close

    class Server(base):  # type: ignore[misc, valid-type]
        def load_config(self) -> None:
            for name, value in _settings(descriptor, workers, ready).items():
                self.cfg.set(name, value)

        def load(self) -> Flask:
            return app

    Server().run()


def _settings(descriptor: int, workers: int, ready: Callable[[], None]) -> dict[str, Any]:
    """Settings of gunicorn."""
    from llmviewer.server.worker import Worker

    return {
        "bind": f"fd://{descriptor}",
        "workers": workers,
        "worker_class": Worker,
        "threads": THREADS,
        "worker_connections": CONNECTIONS,
        "keepalive": 0,
        "timeout": SILENT_S,
        "graceful_timeout": STOP_S,
        "max_requests": REQUESTS,
        "max_requests_jitter": GIVE_OR_TAKE,
        "limit_request_line": MAX_LINE,
        "preload_app": True,
        "loglevel": "warning",
        "proc_name": "llmviewer",
        "control_socket_disable": True,
        "worker_tmp_dir": str(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None,
        "when_ready": lambda server: ready(),
        "pre_fork": lambda server, worker: gc.freeze(),
        "post_fork": lambda server, worker: _begin(),
    }


def _base() -> type[Any]:
    if os.name == "nt":
        raise UserError("serve runs on Linux and macOS; on Windows run it in WSL or in a container")
    try:
        from gunicorn.app.base import BaseApplication
    except ImportError as error:
        raise missing_extra("serve needs gunicorn", "web") from error
    base: type[Any] = BaseApplication
    return base


def _warm_up() -> None:
    """Import what answers need before workers are forked, which then share its memory."""
    from llmviewer.core import files

    with files.only_package_data():
        for name in ("analyze", "why"):
            calls.answer(name, dict(calls.CALLS[name].example))


def _begin() -> None:
    """Begin a worker: limit its memory, and collect garbage, which an answer makes little of, seldom."""
    gc.set_threshold(*GARBAGE)
    _limit_memory()


def _limit_memory() -> None:
    """Limit the data of this worker, so that one request cannot take the machine's memory."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MAX_DATA_BYTES if most == resource.RLIM_INFINITY else min(MAX_DATA_BYTES, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))

"""A worker of gunicorn whose threads no client holds alone, and whose errors are problem documents."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import ThreadWorker

from llmviewer.server import headers, limits, problems
from llmviewer.server.app import DIRECT
from llmviewer.server.limits import client_at

#: Seconds in which a request has to arrive whole, and where its client keeps all other threads waiting already.
READ_S, CROWDED_READ_S = 10.0, 1.0
#: Seconds for which an answered connection is read on, and bytes at once, so that its client gets the answer and no
#: reset.
LINGER_S, READ_BYTES = 1.0, 65536
#: Connections of one client, and of all, that may wait in one worker for a thread.
MOST_WAITING, MOST_WAITING_OF_ALL = 32, 256
#: Statuses of what gunicorn refuses to read, by the name of its exception; 400 for the others.
STATUSES: Mapping[str, int] = {
    "LimitRequestLine": 414, "LimitRequestHeaders": 431, "ExpectationFailed": 417, "UnsupportedTransferCoding": 501,
    "ForbiddenProxyRequest": 403, "ConfigurationProblem": 500, "InvalidResponseHeader": 500,
    "InvalidResponseHeaderName": 500,
}  # fmt: skip


class Worker(ThreadWorker):  # type: ignore[misc]
    """A worker whose threads wait for the rest of a request for READ_S at most.

    Where other machines reach it, one thread is always left for others than the client of the rest; further connections
    of a client wait, and too many are refused.  Elsewhere all connections have one address, and a client that occupies
    all threads but one with requests that are not whole has CROWDED_READ_S.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.lock = threading.Lock()
        self.reading: Counter[str] = Counter()
        self.holding: Counter[str] = Counter()
        self.waiting: list[Any] = []

    def enqueue_req(self, conn: Any) -> None:
        """Give a connection to a thread; let it wait while its client holds as many as it may, or refuse it."""
        conn.owner = client_at(str(conn.client[0] if isinstance(conn.client, tuple) else conn.client))
        most = max(self.cfg.threads - 1, 1) if self.wsgi.config.get(DIRECT) else sys.maxsize
        with self.lock:
            begins = self.holding[conn.owner] < most
            waits = not begins and sum(one.owner == conn.owner for one in self.waiting) < MOST_WAITING
            self.holding[conn.owner] += begins
            self.waiting += [conn] * waits
            self._make_room()
        if begins:
            super().enqueue_req(conn)
        elif not waits:
            self.nr_conns -= 1
            _answer(conn.sock, 429, "this client has too many open connections; try again later", {"Retry-After": "1"})
            with contextlib.suppress(OSError):
                conn.sock.recv(READ_BYTES)  # what has come already: else a reset would overtake the answer
            conn.close()

    def handle(self, conn: Any) -> Any:
        """Handle a connection, in a thread."""
        with self.lock:
            self.reading[conn.owner] += 1
            limit_s = READ_S if self.reading[conn.owner] < self.cfg.threads else CROWDED_READ_S
        conn.late = False
        conn.clock = threading.Timer(limit_s, self._hang_up, (conn,))
        conn.clock.daemon = True
        conn.clock.start()
        try:
            kept = super().handle(conn)
            if conn.late:
                _answer(conn.sock, 408)
            if not kept:
                _linger(conn.sock)
            return kept
        finally:
            self._end_of_reading(conn)
            self._end_of_holding(conn)

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer a request, whose body is read first."""
        if _declared_bytes(req) > limits.MAX_BODY_BYTES:
            _answer(conn.sock, 413)
            return False
        if req.version >= (1, 1) and any(name == "EXPECT" for name, _ in req.headers):
            conn.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            req._expected_100_continue = False  # or gunicorn would say it again; version 23 looks for the header
            req.headers = [one for one in req.headers if one[0] != "EXPECT"]
        try:
            req.body = io.BytesIO(req.body.read(limits.MAX_BODY_BYTES + 1))
        except ParseException:
            if not conn.late:  # else the rest is missing because the time is over
                raise
        self._end_of_reading(conn)
        return False if conn.late else super().handle_request(req, conn)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Answer what cannot be read as a request as every other error is: with a problem."""
        status = STATUSES.get(type(exc).__name__, 400) if isinstance(exc, ParseException) else 500
        if status == 500:
            self.log.error("unexpected error", exc_info=exc)
        _answer(client, status)

    def _end_of_reading(self, conn: Any) -> None:
        """End the time for reading, once the request is whole or given up."""
        with self.lock:
            if conn.clock is not None:
                conn.clock.cancel()
                conn.clock = None
                self.reading -= Counter([conn.owner])

    def _end_of_holding(self, conn: Any) -> None:
        """Give the thread of a connection to the next one of its client, if any waits."""
        with self.lock:
            found = next((one for one in self.waiting if one.owner == conn.owner), None)
            if found is None:
                self.holding -= Counter([conn.owner])
            else:
                self.waiting.remove(found)
                self._make_room()
        if found is not None:
            super().enqueue_req(found)

    def _make_room(self) -> None:
        """Let connections that wait take no place from those that are accepted."""
        self.worker_connections = self.cfg.worker_connections + min(len(self.waiting), MOST_WAITING_OF_ALL)

    def _hang_up(self, conn: Any) -> None:
        """Let a read of a connection end, as if its client, late if it has sent anything, had closed it."""
        with self.lock, contextlib.suppress(OSError):
            if conn.clock is not None:
                conn.late = conn.initialized
                conn.sock.shutdown(socket.SHUT_RD)


def _declared_bytes(req: Any) -> int:
    """Length of the body of a request by its head [byte]; 0 if it is sent in chunks."""
    return next((int(value) for name, value in req.headers if name == "CONTENT-LENGTH"), 0)


def _answer(sock: socket.socket, status: int, detail: str = "", more: Mapping[str, str] | None = None) -> None:
    """Send a problem without a request that it belongs to."""
    body = json.dumps(problems.document(status, detail)).encode()
    own = {"Content-Type": problems.MEDIA_TYPE, "Content-Length": str(len(body)), "Connection": "close"}
    lines = [f"{name}: {value}" for name, value in {**own, **headers.FIXED, **(more or {})}.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} {problems.TITLES[status][0]}", *lines, "", ""])
    with contextlib.suppress(OSError):
        sock.sendall(head.encode() + body)


def _linger(sock: socket.socket) -> None:
    """Read on, for a short time, until the client of an answered connection closes it.

    Here, in the thread that its client holds: gunicorn waits for the same in the loop that accepts connections.
    """
    until = time.monotonic() + LINGER_S
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while (left_s := until - time.monotonic()) > 0.0:
            sock.settimeout(left_s)
            if not sock.recv(READ_BYTES):
                return
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RD)

"""A worker of gunicorn that reads a request for a limited time, and whose errors are problem documents."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
from collections import Counter
from typing import Any, ClassVar

from gunicorn.http.errors import ParseException
from gunicorn.workers.gthread import ThreadWorker

from llmviewer.server import limits, problems

#: Seconds in which a request has to arrive whole, and where its client keeps all other threads waiting already.
READ_S, CROWDED_READ_S = 10.0, 1.0


class Worker(ThreadWorker):  # type: ignore[misc]
    """A worker whose threads wait for the rest of a request for READ_S at most.

    A client that already occupies all threads but one with requests that are not whole has CROWDED_READ_S: another
    client finds a thread.
    """

    reading: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()

    def handle(self, conn: Any) -> Any:
        """Handle a connection, in a thread."""
        client = _client(conn)
        with self.lock:
            self.reading[client] += 1
            limit_s = READ_S if self.reading[client] < self.cfg.threads else CROWDED_READ_S
        conn.clock = threading.Timer(limit_s, _hang_up, (conn.sock,))
        conn.clock.daemon = True
        conn.clock.start()
        try:
            return super().handle(conn)
        finally:
            self.end_of_reading(conn)

    def handle_request(self, req: Any, conn: Any) -> Any:
        """Answer a request, whose body is read first."""
        req.body = io.BytesIO(req.body.read(limits.MAX_BODY_BYTES + 1))
        self.end_of_reading(conn)
        return super().handle_request(req, conn)

    def handle_error(self, req: Any, client: socket.socket, addr: Any, exc: BaseException) -> None:
        """Answer what cannot be read as a request as every other error is: with a problem."""
        status = 400 if isinstance(exc, ParseException) else 500
        if status == 500:
            self.log.error("unexpected error", exc_info=exc)
        body = json.dumps(problems.document(status)).encode()
        lines = (
            f"HTTP/1.1 {status} {problems.TITLES[status][0]}", f"Content-Type: {problems.MEDIA_TYPE}",
            f"Content-Length: {len(body)}", "Connection: close", "", "",
        )  # fmt: skip
        with contextlib.suppress(OSError):
            client.sendall("\r\n".join(lines).encode() + body)

    def end_of_reading(self, conn: Any) -> None:
        """End the time for reading, once the request is whole or given up."""
        if conn.clock is None:
            return
        conn.clock.cancel()
        conn.clock = None
        with self.lock:
            self.reading[_client(conn)] -= 1
            if self.reading[_client(conn)] <= 0:
                del self.reading[_client(conn)]


def _client(conn: Any) -> str:
    return str(conn.client[0] if isinstance(conn.client, tuple) else conn.client)


def _hang_up(connection: socket.socket) -> None:
    """Let a read of a connection end, as if the client had closed it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RD)

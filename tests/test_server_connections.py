"""One client does not hold a worker alone, and what is no whole request is answered with a problem.

A worker of gunicorn runs in a thread of the test, around an application that tells what it reads, or waits.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("flask")
pytest.importorskip("gunicorn")

from gunicorn import util
from gunicorn.config import Config
from gunicorn.glogging import Logger
from gunicorn.http import errors
from gunicorn.workers import base

from llmviewer.server import headers, limits, problems, run, worker
from llmviewer.server.app import DIRECT, Settings

#: Seconds after which a worker that does not answer is taken for dead.
PATIENCE_S = 300.0
#: Two clients: every address of 127.0.0.0/8 is this machine's on Linux.
ONE, OTHER = "127.0.0.1", "127.0.0.2"
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
WAITING = WHOLE.replace(b"/", b"/wait", 1)
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
#: Requests of which the rest is missing.
HALVES = (
    b"POST / HT",
    POST + b"Content-Le",
    POST + b"Content-Length: 9\r\n\r\n{",
    POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
    POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n",
)


class Echo:
    """A WSGI application that answers with the body of a request: at /wait when the test says so, at /broken never."""

    def __init__(self, *, direct: bool) -> None:
        self.config = {DIRECT: direct}
        self.go, self.entered = threading.Event(), threading.Semaphore(0)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        if environ["PATH_INFO"] == "/broken":
            raise RuntimeError
        if environ["PATH_INFO"] == "/wait":
            self.entered.release()
            assert self.go.wait(PATIENCE_S)
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    def wsgi(self) -> Echo:
        return self


class Running:
    """A worker at a port of this machine."""

    def __init__(self, *, direct: bool = False) -> None:
        self.echo = Echo(direct=direct)
        self.listener = run.listening("127.0.0.1", 0)
        config = Config()
        self.given = run._settings(self.listener.fileno(), 1, lambda: None)
        for name in ("threads", "worker_connections", "keepalive", "limit_request_line"):
            config.set(name, self.given[name])
        self.worker = worker.Worker(1, os.getppid(), [self.listener], self.echo, 1.0, config, Logger(config))
        self.worker.init_signals = lambda: None  # which a thread has none of
        self.thread = threading.Thread(target=self.worker.init_process, daemon=True)
        self.thread.start()

    def connected(self, sent: bytes, address: str = ONE) -> socket.socket:
        one = socket.create_connection(self.listener.getsockname(), timeout=PATIENCE_S, source_address=(address, 0))
        one.sendall(sent)
        return one

    def end(self) -> None:
        self.echo.go.set()
        self.worker.handle_exit(signal.SIGTERM, None)
        self.thread.join(PATIENCE_S)


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    begun: list[Running] = []

    def begin(**named: Any) -> Running:
        begun.append(Running(**named))
        return begun[-1]

    yield begin
    for one in begun:
        one.end()


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the one answer that a connection gets before it is closed."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    connection.close()
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(one.split(": ", 1) for one in lines), body


def refused(connection: socket.socket, status: int) -> dict[str, str]:
    """The headers of an answer that is a problem and nothing else."""
    found, sent, body = answer(connection)
    assert (found, sent["Content-Type"]) == (status, problems.MEDIA_TYPE)
    problem = json.loads(body)
    assert problem["status"] == status and problem["detail"].isprintable()
    assert headers.FIXED.items() <= sent.items()
    return sent


# --- connections of a client -----------------------------------------------------------------------------------------

needs_two_addresses = pytest.mark.skipif(not hasattr(socket, "TCP_DEFER_ACCEPT"), reason="a second address needs Linux")


@needs_two_addresses
def test_a_client_leaves_a_thread_to_others(start: Callable[..., Running]) -> None:
    """Ten requests that compute for ever occupy two of the three threads; the rest wait, and all are answered."""
    running = start(direct=True)
    held = [running.connected(WAITING) for _ in range(10)]
    for _ in range(run.THREADS - 1):
        assert running.echo.entered.acquire(timeout=PATIENCE_S)
    for _ in range(5):
        assert answer(running.connected(WHOLE, OTHER))[0] == 200
    assert not running.echo.entered.acquire(blocking=False), "more of the first client's requests run"
    running.echo.go.set()
    assert [answer(one)[0] for one in held] == [200] * 10
    running.end()
    assert not (running.worker.waiting or +running.worker.holding)


@needs_two_addresses
def test_a_client_has_so_many_connections(start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "READ_S", PATIENCE_S)
    running = start(direct=True)
    allowed = run.THREADS - 1 + worker.MOST_WAITING
    held = [running.connected(HALVES[1]) for _ in range(allowed)]
    for _ in range(3):
        assert refused(running.connected(HALVES[1]), 429)["Retry-After"] == "1"
    assert answer(running.connected(WHOLE, OTHER))[0] == 200
    for one in held:
        one.sendall(WHOLE.partition(b"/")[2].partition(b"\r\n")[2].replace(b"Host", b"ngth: 0\r\nX"))
    assert [answer(one)[0] for one in held] == [200] * allowed


def test_one_user_alone_may_hold_every_thread(start: Callable[..., Running]) -> None:
    running = start()
    held = [running.connected(WAITING) for _ in range(run.THREADS)]
    for _ in held:
        assert running.echo.entered.acquire(timeout=PATIENCE_S)
    running.echo.go.set()
    assert [answer(one)[0] for one in held] == [200] * run.THREADS


@pytest.mark.parametrize(
    ("settings", "direct"),
    [
        (Settings(), False),
        (Settings(public_host="example.org"), False),
        (Settings(host="0.0.0.0", public_host="example.org"), False),
        (Settings(host="0.0.0.0"), True),
    ],
)
def test_an_address_is_a_client_where_no_proxy_stands_between(settings: Settings, *, direct: bool) -> None:
    assert settings.is_direct is direct


def test_a_client_that_stays_does_not_stop_the_loop_that_accepts(
    start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait after an answer is over when the loop of gunicorn closes the connection."""
    monkeypatch.setattr(worker, "LINGER_S", 0.01)
    closed = threading.Event()
    waits: list[bool] = []

    def close(connection: socket.socket, *given: Any, **named: Any) -> None:
        connection.setblocking(False)
        try:
            waits.append(connection.recv(1) != b"")
        except BlockingIOError:
            waits.append(True)
        connection.close()
        closed.set()

    monkeypatch.setattr(util, "close_graceful", close, raising=False)
    monkeypatch.setattr(util, "close", close)
    with start().connected(WHOLE) as one:
        assert one.recv(65536).startswith(b"HTTP/1.1 200")
        assert closed.wait(PATIENCE_S)
    assert waits == [False]


# --- Expect: 100-continue --------------------------------------------------------------------------------------------


def test_a_client_that_expects_to_be_asked_for_its_body_is_asked(start: Callable[..., Running]) -> None:
    """RFC 9110, section 10.1.1: the answer 100 comes before the body is sent, and once."""
    one = start().connected(POST + b"Content-Length: 5\r\nExpect: 100-continue\r\n\r\n")
    assert one.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    one.sendall(b"body.")
    status, _, body = answer(one)
    assert (status, body) == (200, b"body.")


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_a_body_that_is_too_large_is_refused_before_it_is_sent(start: Callable[..., Running], expect: bytes) -> None:
    length = str(limits.MAX_BODY_BYTES + 1).encode()
    refused(start().connected(POST + b"Content-Length: " + length + b"\r\n" + expect + b"\r\n"), 413)


# --- errors of the server itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", HALVES)
def test_what_does_not_arrive_whole_is_late(
    half: bytes, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "READ_S", 0.1)
    refused(start().connected(half), 408)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/7.3\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA B: c\r\n\r\n", 400),
        (POST + b"Content-Length: x\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (POST + b"Expect: wonders\r\n\r\n", 417),
        (POST + b"A: " + b"b" * 9000 + b"\r\n\r\n", 431),
        (POST + b"A: b\r\n" * 101 + b"\r\n", 431),
        (POST + b"Transfer-Encoding: magic\r\n\r\n", 501),
    ],
)
def test_what_is_no_request_is_a_problem(sent: bytes, status: int, start: Callable[..., Running]) -> None:
    refused(start().connected(sent), status)


def test_what_an_application_raises_is_a_problem(start: Callable[..., Running]) -> None:
    refused(start().connected(WHOLE.replace(b"/", b"/broken", 1)), 500)


@pytest.mark.parametrize("kind", [one for one in vars(errors).values() if inspect.isclass(one)])
def test_statuses_are_those_of_gunicorn(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every error that gunicorn knows, with the status that it would answer itself."""
    if not issubclass(kind, errors.ParseException) or kind is errors.ParseException:
        pytest.skip("no error of a request")
    made: Any = kind.__init__ if kind is not errors.InvalidSchemeHeaders else lambda self: None
    error = kind(*["x"] * (made.__code__.co_argcount - 1 - len(made.__defaults__ or ())))
    told: list[int] = []
    monkeypatch.setattr(util, "write_error", lambda sock, status, reason, text: told.append(status))
    monkeypatch.setattr(worker, "_answer", lambda sock, status: told.append(status))
    monkeypatch.setattr(base.Worker, "log", Logger(Config()), raising=False)
    plain: Any = object.__new__(worker.Worker)
    worker.Worker.handle_error(plain, None, None, None, error)  # type: ignore[arg-type]
    base.Worker.handle_error(plain, None, None, None, error)
    ours, theirs = told
    assert ours == getattr(error, "code", theirs) and ours in problems.TITLES

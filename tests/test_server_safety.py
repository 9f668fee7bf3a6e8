"""A server reads no file that a visitor names, answers within limits, and restricts what pages may do."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from llmviewer.cli import main
from llmviewer.core import data, files
from llmviewer.core.errors import UserError
from llmviewer.questions import QUESTIONS
from llmviewer.result.columns import json_parts
from llmviewer.server import arguments, calls, guard, headers, limits, openapi, problems
from llmviewer.server.app import Settings, create_app
from llmviewer.server.limits import Budget

pytest.importorskip("flask")
pytest.importorskip("gunicorn")

RUN = {"model": "llama-3.2-1b", "hardware": "a100-80gb-sxm"}
#: Seconds after which a server that does not answer is taken for dead; a busy machine takes a part of them.
PATIENCE_S = 300.0
#: Part of every path that visitors name here, by which attempts to look at it are found.
MARK = "vis1tor"
#: Where a path may stand in the text of an option.
PLACES = ("{}", "draft={},tokens=4,acceptance=0.8", "weights=1,host={}", "{},tokens=4", "a={}", "prefill=1xtp1@{}")


def client(**settings: Any) -> Any:
    return create_app(Settings(pages=False, **settings)).test_client()


@pytest.fixture(scope="module")
def visitor() -> Any:
    return client()


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Paths with the mark that the process opens, lists or asks about."""
    found: list[str] = []

    def noted(path: object) -> None:
        if MARK in str(path) and not files.is_of_package(str(path)):  # the catalogue is looked through by name
            found.append(str(path))

    def watching(function: Any) -> Any:
        def call(path: Any = ".", *more: Any, **named: Any) -> Any:
            noted(path)
            return function(path, *more, **named)

        return call

    for name in ("stat", "lstat", "open", "access", "listdir", "scandir", "readlink"):
        monkeypatch.setattr(os, name, watching(getattr(os, name)))
    _WATCHES.append(noted)
    yield found
    _WATCHES.remove(noted)


_WATCHES: list[Any] = []


def _audited(event: str, given: tuple[Any, ...]) -> None:
    if _WATCHES and event in ("open", "os.listdir", "os.scandir", "socket.connect", "sqlite3.connect"):
        for one in _WATCHES:
            one(given[0])


sys.addaudithook(_audited)


def paths(folder: Path) -> list[str]:
    """Paths that a visitor may try; those in the folder exist."""
    config = data.read_yaml(data.folder("model_configs") / "llama-3.2-1b.yaml")["config"]
    spec = (data.folder("hardware_specs") / "h100-sxm.yaml").read_text(encoding="utf-8")
    own = folder / MARK
    own.mkdir()
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (own / "chip.yaml").write_text(spec, encoding="utf-8")
    (own / "model.gguf").write_bytes(b"GGUF")
    absent = [f"/etc/{MARK}", f"../../{MARK}", f"C:\\{MARK}", f"~/.ssh/{MARK}", f"{MARK}/{MARK}", f"{own}/none.yaml"]
    return [*absent, str(own), *(str(own / name) for name in ("config.json", "chip.yaml", "model.gguf"))]


@pytest.mark.parametrize("call", calls.CALLS)
def test_no_argument_of_any_call_is_read_as_a_path(
    call: str, visitor: Any, tmp_path: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every argument with every path: nothing is opened, listed or asked about, in no folder."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / MARK / "hub"))
    tried = paths(tmp_path) if call in ("analyze", "simulate") else paths(tmp_path)[-4:]
    looked_at.clear()
    plain = {**calls.CALLS[call].example, **({"ttft": "1us", "requests": 5} if call in ("size", "simulate") else {})}
    for name, described in arguments.schema(call)["properties"].items():
        if not {"string", "array"} & set(arguments._kinds(described)):
            continue
        for path in tried:
            for text in (place.format(path) for place in (PLACES if call == "analyze" else PLACES[:1])):
                answer = visitor.post(f"{openapi.PREFIX}/{call}", json={**plain, name: text})
                assert answer.status_code in (200, 400), (name, text, answer.get_json())
                assert looked_at == [], (name, text)


def test_a_line_of_why_is_read_as_no_path(visitor: Any, tmp_path: Path, looked_at: list[str]) -> None:
    for path in paths(tmp_path):
        looked_at.clear()
        for line in (f"{path} --hardware h100", f"llama-3.2-1b --hardware {path}", f"gpt2 --hardware h100 -q {path}"):
            answer = visitor.post(
                f"{openapi.PREFIX}/why", json={"a": line.replace("\\", "/"), "b": "gpt2 --hardware a100"}
            )
            assert answer.status_code == 400
        assert looked_at == []


@pytest.mark.parametrize("name", ["model", "hardware"])
def test_a_name_in_given_fields_is_no_path(name: str, visitor: Any, tmp_path: Path, looked_at: list[str]) -> None:
    """The name of a chip finds its calibration; one that climbs out of the folder finds none."""
    target = tmp_path / MARK / "profile.yaml"
    target.parent.mkdir()
    target.write_text("schema: llmviewer.profile/1\n", encoding="utf-8")
    spec = data.read_yaml(data.folder("hardware_specs") / "h100-sxm.yaml")
    chip = {key: value for key, value in spec.items() if key != "sources"}
    config = data.read_yaml(data.folder("model_configs") / "llama-3.2-1b.yaml")["config"]
    climbing = os.path.relpath(target, data.folder("calibrate/profiles")).removesuffix(".yaml")
    for path in (climbing, str(target), f"../../{MARK}"):
        looked_at.clear()
        fields = {"hardware": {**chip, "name": path}, "model": {**config, "_name_or_path": path}}
        answer = visitor.post(f"{openapi.PREFIX}/analyze", json={**RUN, name: fields[name]})
        assert answer.status_code == 200
        assert looked_at == []


@pytest.mark.parametrize("place", ["model", "hardware", "profile", "speculative", "network", "trace"])
def test_a_refusal_does_not_tell_whether_a_file_exists(place: str, visitor: Any, tmp_path: Path) -> None:
    there, absent = tmp_path / "there.yaml", tmp_path / "absen.yaml"
    there.write_text("name: x\n", encoding="utf-8")
    call = "simulate" if place == "trace" else "analyze"
    texts = []
    for path in (there, absent):
        text = f"draft={path},tokens=4,acceptance=0.8" if place == "speculative" else str(path)
        answer = visitor.post(f"{openapi.PREFIX}/{call}", json={**RUN, place: text})
        assert answer.status_code == 400
        texts.append(answer.get_json()["detail"].replace(path.stem, ""))
    assert texts[0] == texts[1]


def test_what_was_read_without_the_restriction_is_not_answered_within_it(tmp_path: Path) -> None:
    """A file that the same process has read for its own user is in no cache of visitors."""
    import llmviewer as lv

    path = tmp_path / "own.json"
    path.write_text(json.dumps(data.read_yaml(data.folder("model_configs") / "gpt2.yaml")["config"]), encoding="utf-8")
    lv.analyze(str(path), "h100")
    with files.only_package_data(), pytest.raises(UserError, match="would be read as a file"):
        lv.analyze(str(path), "h100")
    lv.analyze(str(path), "h100")


def test_nothing_of_another_package_is_run_for_a_visitor(visitor: Any) -> None:
    answer = visitor.post(f"{openapi.PREFIX}/analyze", json={**RUN, "trace_model": True})
    assert answer.status_code == 400 and "runs the code of another package" in answer.get_json()["detail"]


# --- limits ----------------------------------------------------------------------------------------------------------

LOAD = {**RUN, "ttft": "1s"}


@pytest.mark.parametrize(
    ("call", "given", "line"),
    [
        ("sweep", {"batch_size": [1] * 200, "input_len": [1] * 200}, "40,000 points; allowed here: at most 10,000"),
        ("sweep", {"quantization": ["none"] * 101}, "101 configurations; allowed here: at most 100"),
        ("sweep", {"batch_size": [1] * 2001}, "batch_size has 2,001 entries; allowed: at most 2,000"),
        ("compare", {"quantization": ["none"] * 13}, "13 configurations; allowed here: at most 12"),
        ("analyze", {"engine": "v" * 20_001}, "engine has a text of 20,001 characters; allowed: at most 20,000"),
        ("simulate", {"request_rate": 1000}, "600,000 requests; allowed here: at most 100,000"),
        ("simulate", {"concurrency": 20_000}, "200,000 requests; allowed here: at most 100,000"),
        ("simulate", {"rate_curve": "0h:20"}, "1,728,000 requests; allowed here"),
        ("simulate", {"request_rate": 1, "replications": 100}, "allowed here: at most 100,000"),
        ("simulate", {"find_rate": True, "ttft": "1s"}, "find_rate needs requests in place of duration here"),
        ("simulate", {"request_rate": 1, "requests": 5, "replicas": 65}, "replicas is 65; allowed here: at most 64"),
        ("size", {"hardware": "all", "request_rate": 1, "ttft": "1s"}, "chips; allowed here: at most 12"),
        ("size", {"request_rate": 1, "ttft": "1s", "max_num_seqs": list(range(1, 66))}, "65 combinations to try"),
    ],
)
def test_a_request_for_too_much_is_refused_before_it_computes(
    call: str, given: dict[str, Any], line: str, visitor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def computes(*_: object, **__: object) -> None:
        raise AssertionError("a request that is refused has computed")

    for name in ("document", "_sweep"):
        monkeypatch.setattr(calls, name, computes)
    answer = visitor.post(f"{openapi.PREFIX}/{call}", json={**RUN, **given})
    assert answer.status_code == 400 and line in answer.get_json()["detail"]


class Clock:
    """A timer of `limits.within` that says when its time is over: no test waits for a real one."""

    made: ClassVar[list[Clock]] = []

    def __init__(self, seconds: float, stop: Callable[[], None]) -> None:
        self.stop = stop
        self.made.append(self)

    def start(self) -> None: ...

    def cancel(self) -> None: ...


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The end of the time of the innermost function that has a limit."""
    monkeypatch.setattr(limits.threading, "Timer", Clock)

    def over() -> None:
        Clock.made[-1].stop()

    return over


def for_ever() -> None:
    for _ in iter(int, 1):
        pass


def test_a_request_that_takes_too_long_is_ended(clock: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> None:
        clock()
        for_ever()

    monkeypatch.setattr(calls, "answer", endless)
    answer = client().post(f"{openapi.PREFIX}/sweep", json=RUN)
    assert answer.status_code == 503 and answer.mimetype == problems.MEDIA_TYPE
    assert answer.headers["Retry-After"] == "60"  # it computed next to nothing
    assert "busy" in answer.get_json()["detail"]
    computed = iter((0.0, 40.0, 40.0))
    monkeypatch.setattr(guard.time, "thread_time", lambda: next(computed))
    answer = client().post(f"{openapi.PREFIX}/sweep", json=RUN)
    assert answer.status_code == 503 and "Retry-After" not in answer.headers


def test_the_limit_of_time_reaches_only_its_own_function(clock: Callable[[], None]) -> None:
    """Work that follows a function that was ended, or that ended in time, is not disturbed, however late its clock."""

    def endless() -> None:
        clock()
        for_ever()

    for _ in range(20):
        with pytest.raises(limits.OverTimeError):
            limits.within(1.0, endless)
        clock()
        assert limits.within(1.0, lambda: "done") == "done"
        clock()
    assert sum(range(1000)) == 499_500


def test_the_limit_of_time_waits_for_a_part_that_must_not_be_interrupted(clock: Callable[[], None]) -> None:
    done = []

    def work() -> None:
        with limits.uninterrupted():
            late = threading.Thread(target=clock)
            late.start()
            done.append(sum(range(1000)))
        late.join()
        for_ever()

    for _ in range(5):
        with pytest.raises(limits.OverTimeError):
            limits.within(1.0, work)
    assert done == [499_500] * 5
    with limits.uninterrupted():  # without a limit
        pass


def test_rows_of_a_sweep_are_written_without_interruption() -> None:
    """An exception in pandas' JSON writer ends the whole process; limits of any length pass here."""
    rows = {f"column_{index}": [index / 7] * 4000 for index in range(20)}

    def written() -> str:
        with limits.uninterrupted():
            return "".join(json_parts([rows]))

    for step in range(40):
        with contextlib.suppress(limits.OverTimeError):
            limits.within(0.002 * step, written)


def test_text_with_half_of_a_surrogate_pair_is_refused(visitor: Any) -> None:
    config = {"model_type": "llama", "_name_or_path": "half \ud800"}
    answer = visitor.post(f"{openapi.PREFIX}/sweep", json={**RUN, "model": config})
    assert answer.status_code == 400 and "half of a surrogate pair" in answer.get_json()["detail"]


def test_a_client_has_a_budget_that_refills() -> None:
    now = [0.0]
    kept = Budget(10.0, 0.5, clock=lambda: now[0])
    assert kept.wait_s("a") == 0
    kept.charge("a", 12.0)
    assert kept.wait_s("a") == 4 and kept.wait_s("b") == 0
    now[0] += 5.0
    assert kept.wait_s("a") == 0
    now[0] += 1000.0
    kept.charge("a", 9.5)
    assert kept.wait_s("a") == 0, "a budget that was not used does not add up"
    kept.charge("a", 1.0)
    assert kept.wait_s("a") == 1


def test_clients_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_CLIENTS", 5)
    kept = Budget()
    for number in range(100):
        kept.charge(str(number), 1.0)
    assert len(kept) == 5


def test_addresses_of_one_subscriber_are_one_client() -> None:
    def named(address: str) -> str:
        return limits.client_of({"REMOTE_ADDR": address})

    assert named("2001:db8::1") == named("2001:db8::ffff") != named("2001:db8:0:1::1")
    assert named("192.0.2.1") != named("192.0.2.2")


def test_a_used_up_budget_says_when_to_come_back() -> None:
    app = create_app(Settings(pages=False, budgets=True))
    kept: Any = app.wsgi_app
    kept.budget.charge("127.0.0.1", limits.BURST_S + 10.0)
    answer = app.test_client().post(f"{openapi.PREFIX}/analyze", json=RUN)
    assert answer.status_code == 429 and answer.mimetype == problems.MEDIA_TYPE
    assert 1 <= int(answer.headers["Retry-After"]) <= 10.0 / limits.REFILL + 1
    other = app.test_client().post(f"{openapi.PREFIX}/analyze", json=RUN, environ_base={"REMOTE_ADDR": "192.0.2.9"})
    assert other.status_code == 200


def test_computing_is_charged_to_its_client() -> None:
    app = create_app(Settings(pages=False, budgets=True))
    kept: Any = app.wsgi_app
    app.test_client().post(f"{openapi.PREFIX}/analyze", json=RUN, environ_base={"REMOTE_ADDR": "192.0.2.7"})
    assert kept.budget._clients["192.0.2.7"].left_s < limits.BURST_S


@pytest.mark.parametrize(
    ("settings", "limited"),
    [
        (Settings(), False),
        (Settings(host="::1"), False),
        (Settings(host="0.0.0.0"), True),
        (Settings(public_host="example.org"), True),
    ],
)
def test_only_what_others_reach_has_budgets(settings: Settings, limited: bool) -> None:  # noqa: FBT001
    assert settings.is_private is not limited


# --- where requests come from ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/v1/models", "/api/v1/nothing", "/"])
def test_every_response_has_the_headers(path: str, visitor: Any) -> None:
    found = visitor.get(path).headers
    for name, value in headers.FIXED.items():
        assert found[name] == value
    assert "default-src 'none'" in found["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in found["Content-Security-Policy"]
    assert "unsafe-eval" not in found["Content-Security-Policy"]
    assert not re.search(r"\d", found.get("Server", ""))


def test_refusals_have_the_headers_too(visitor: Any) -> None:
    for answer in (
        visitor.get("/", headers={"Host": "example.org"}),
        visitor.post("/api/v1/analyze", json=RUN, headers={"Origin": "https://example.org"}),
        visitor.post("/api/v1/analyze", data="x" * (limits.MAX_BODY_BYTES + 1), content_type="application/json"),
    ):
        assert answer.status_code >= 400
        assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.mimetype == problems.MEDIA_TYPE


def test_a_policy_allows_inline_scripts_by_their_hash_alone() -> None:
    """Source: the example of https://www.w3.org/TR/CSP3/#external-hash is computed in the same way, over SHA-256."""
    found = headers.policy([headers.script_hash("alert('Hello, world.');")])
    assert "script-src 'self' 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='" in found


def test_hashes_of_the_pages_are_in_the_policy() -> None:
    from flask import Flask

    app = Flask("pages")
    app.config["SCRIPT_HASHES"] = ["sha256-abc"]
    guard.install(app)
    assert "'sha256-abc'" in app.test_client().get("/").headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "host", ["example.org", "127.0.0.1.example.org", "", "example.org:80", "[::2]", "[", "a@b:1:2"]
)
def test_a_name_that_is_not_this_machine_is_refused(host: str, visitor: Any) -> None:
    """A page elsewhere can make its own name mean 127.0.0.1 (DNS rebinding); Host tells it apart."""
    assert visitor.get("/api/v1/models", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "localhost:8050", "127.0.0.1:8050", "[::1]:8050"])
def test_names_of_this_machine_are_answered(host: str, visitor: Any) -> None:
    assert visitor.get("/api/v1/models", headers={"Host": host}).status_code == 200


def test_the_name_of_a_proxy_is_answered() -> None:
    found = client(public_host="Example.org")
    assert found.get("/api/v1/models", headers={"Host": "example.org"}).status_code == 200
    assert found.get("/api/v1/models", headers={"Host": "other.org"}).status_code == 421


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "https://localhost:1"}, 403),
        ({"Origin": "https://example.org"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({}, 200),
    ],
)
def test_pages_of_other_origins_may_not_compute(sent: dict[str, str], status: int, visitor: Any) -> None:
    assert visitor.post("/api/v1/analyze", json=RUN, headers=sent).status_code == status


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_forms_of_other_pages_are_not_read(kind: str, visitor: Any) -> None:
    """These types need no permission of the server before a browser sends them; JSON does."""
    answer = visitor.post("/api/v1/analyze", data=json.dumps(RUN), content_type=kind)
    assert answer.status_code == 415


# --- llmviewer serve -------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server of two processes at a free port, and its address."""
    started = subprocess.Popen(
        [sys.executable, "-m", "llmviewer", "serve", "--api-only", "--port", "0", "--workers", "2"],
        stderr=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    assert started.stderr is not None
    assert select.select([started.stderr], [], [], PATIENCE_S)[0], "no address"
    line = started.stderr.readline()
    found = re.search(r"serves (http://\S+/)", line)
    assert found, line
    yield started, found[1]
    if started.poll() is None:
        started.kill()
    started.wait()


def asked(address: str, given: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
    request = urllib.request.Request(
        f"{address}api/v1/analyze", json.dumps(given).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def workers(of: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{of}/task/{of}/children").read_text(encoding="ascii").split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_server_answers_replaces_its_workers_and_ends_on_an_interrupt(
    served: tuple[subprocess.Popen[str], str],
) -> None:
    started, address = served
    status, answer, sent = asked(address, RUN)
    assert (status, answer["schema"]) == (200, "llmviewer.analysis/1")
    assert not re.search(r"\d", sent.get("Server", ""))
    before = workers(started.pid)
    os.kill(before[0], signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while len(set(workers(started.pid)) - {before[0]}) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert all(asked(address, {**RUN, "batch_size": size})[0] == 200 for size in range(1, 9))
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda size=size: results.append(asked(address, {**RUN, "batch_size": size})))
        for size in range(1, 9)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(answer["workload"]["batch_size"] for _, answer, _ in results) == [*range(1, 9)]
    os.killpg(started.pid, signal.SIGINT)
    assert started.wait(PATIENCE_S) == 0
    assert started.stderr is not None and "Traceback" not in started.stderr.read()


def test_requests_that_never_become_whole_do_not_stop_a_server(served: tuple[subprocess.Popen[str], str]) -> None:
    """Two workers of three threads, and eight clients that send half a head or half a body and keep the line open."""
    _, address = served
    place = urllib.parse.urlsplit(address)
    halves = [b"POST /api/v1/analyze HTTP/1.1\r\nHost: localhost\r\nContent-Le"] * 4
    halves += [
        b"POST /api/v1/analyze HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    ] * 4
    held = [socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) for _ in halves]
    for one, half in zip(held, halves, strict=True):
        one.sendall(half)
    assert asked(address, RUN)[0] == 200
    for one in held:
        assert one.recv(100).startswith(b"HTTP/1.1 408")
        one.close()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"{}", b"null", b'{"output": 3}', b'{"output": "late.text"}',
        b'{"output": "late.text", "inputs": [null]}', b'{"output": "late.text", "inputs": {"id": "settled"}}',
        b'{"output": "late.text", "inputs": [{"id": "settled", "property": "data", "value": 3}]}',
        b'{"output": "late.text", "inputs": [{"id": "settled", "property": "data", "value": [3]}]}',
    ],
)  # fmt: skip
def test_a_malformed_callback_is_wrong_input(body: bytes) -> None:
    pytest.importorskip("dash")
    sent = create_app().test_client().post("/_dash-update-component", data=body, content_type="application/json")
    assert sent.status_code == 400 and sent.mimetype == problems.MEDIA_TYPE


@pytest.mark.parametrize(
    ("sent", "status"),
    [({}, 200), ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "cross-site"}, 403),
     ({"Origin": "https://example.org"}, 403)],
)  # fmt: skip
def test_downloads_are_computed_for_own_pages_only(sent: dict[str, str], status: int) -> None:
    pytest.importorskip("dash")
    from llmviewer.reports.web.downloads import FILES

    visitor = create_app().test_client()
    answer = visitor.get(f"/download/{next(iter(FILES))}?model=llama-3.2-1b", headers=sent)
    assert answer.status_code == status
    assert visitor.get("/", headers=sent).status_code == 200  # a link to the page is no harm


def test_a_port_in_use_is_one_line(
    served: tuple[subprocess.Popen[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    port = served[1].rstrip("/").rpartition(":")[2]
    assert main(["serve", "--api-only", "--port", port]) == 2
    assert capsys.readouterr().err == (
        f"error: cannot listen at 127.0.0.1:{port}: it is in use; choose another --port\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--port", "70000"], "port is 70000; allowed: at most 65,535"),
        (["--port", "x"], "port is 'x'; allowed: whole numbers"),
        (["--workers", "0"], "workers is 0; allowed: whole numbers from 1"),
        (["--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid:"),
    ],
)
def test_a_wrong_option_of_a_server_is_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--api-only", *words]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ([], ""),
        (["--host", "0.0.0.0"], "warning: 0.0.0.0 is reached from other machines"),
        (["--public-host", "example.org"], "warning: example.org is reached from other machines"),
    ],
)
def test_a_server_that_others_reach_warns(
    words: list[str], warned: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_nothing(app: Any, listener: Any, workers: int, ready: Any) -> None:
        ready()
        listener.close()

    monkeypatch.setattr("llmviewer.server.run.run", run_nothing)
    assert main(["serve", "--api-only", "--port", "0", *words]) == 0
    told = capsys.readouterr().err
    assert re.search(r"llmviewer serves http://\S+:\d+/ \(Ctrl-C ends it\)", told)
    assert told.startswith(warned) if warned else "warning" not in told


@pytest.mark.parametrize("missing", ["flask", "gunicorn.app.base"])
def test_a_missing_extra_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["serve", "--api-only", "--port", "0"]) == 2
    assert "pip install 'llmviewer[web]'" in capsys.readouterr().err


def test_arguments_that_name_files_are_known() -> None:
    """Every option whose help speaks of a file is left out of what a server describes."""
    for call in QUESTIONS:
        for name, one in arguments.schema(call)["properties"].items():
            if re.search(r"\b([Ff]ile of|[Pp]ath of|profile of your own)", one["description"]):
                assert name in arguments.OF_FILES, (call, name)

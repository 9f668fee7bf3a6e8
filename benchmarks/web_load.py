"""Load on the web viewer: users who change one control a second each, against `llmviewer serve` on this machine.

    python benchmarks/web_load.py [--users 50] [--seconds 60] [--workers 2] [--kill]

Prints requests, failures and latencies.  --kill ends a worker halfway, which loses its own running requests only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

#: Models and chips of the users; each stays with one pair most of the time.
PAIRS = (
    ("llama-3.1-8b", "h100-sxm"),
    ("llama-3.1-70b", "h200"),
    ("qwen2.5-7b", "a100-80gb-sxm"),
    ("qwen3-32b", "h100-sxm"),
    ("mixtral-8x7b", "h200"),
    ("gemma-2-9b", "l40s"),
    ("llama-3.2-1b", "rtx-4090"),
    ("qwen3-30b-a3b", "h100-sxm"),
)
TABS = ("verdict", "verdict", "network", "roofline", "operators", "memory", "sweep", "explain")
#: Seconds until the server has to answer its first request, and a user gives up a request.
START, PATIENCE = 30.0, 20.0


@dataclass
class Tally:
    """Latencies [s], failures and requests lost with a killed worker."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    lost: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


def main() -> None:
    """Start a server, load it, and print what users saw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", action="store_true")
    asked = parser.parse_args()
    port = _free_port()
    words = ["serve", "--port", str(port), "--workers", str(asked.workers)]
    with subprocess.Popen([sys.executable, "-m", "llmviewer", *words], stdout=subprocess.DEVNULL) as server:
        try:
            shapes = _callbacks(port)
            _warm(port, shapes)
            before = _cpu(server.pid)
            tally = _loaded(port, shapes, asked, server.pid)
            _tell(tally, asked, _cpu(server.pid) - before)
        finally:
            server.send_signal(signal.SIGINT)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _callbacks(port: int) -> tuple[dict, dict]:
    """The callbacks that answer an address and that give its controls, as the page describes them."""
    until = time.monotonic() + START
    while True:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            connection.request("GET", "/_dash-dependencies")
            listed = json.loads(connection.getresponse().read())
            asked = [one for one in listed if {"id": "address", "property": "data"} in one["inputs"]]
            answer, controls = sorted(asked, key=lambda one: bool(one["state"]))
            return answer, controls
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def _body(shape: dict, search: str, offered: str) -> bytes:
    """The body that a browser posts when the address changes."""
    names = shape["output"].strip(".").split("...")
    values = {"address": search, "theme": "light", "offered": offered}
    body = {
        "output": shape["output"],
        "outputs": [dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in names],
        "inputs": [{**one, "value": values[one["id"]]} for one in shape["inputs"]],
        "changedPropIds": ["address.data"],
        "state": [{**one, "value": values[one["id"]]} for one in shape["state"]],
    }
    return json.dumps(body).encode()


def _post(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, bytes]:
    """Status and content of the answer to a body."""
    connection.request("POST", "/_dash-update-component", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def _warm(port: int, shapes: tuple[dict, dict]) -> None:
    """One answer of each pair, so that the first user of a model does not wait for its files."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    for model, chip in PAIRS * 4:
        for shape in shapes:
            _post(connection, _body(shape, "?" + urlencode({"model": model, "hardware": chip}), ""))


def _loaded(port: int, shapes: tuple[dict, dict], asked: argparse.Namespace, server: int) -> Tally:
    tally, until = Tally(), time.monotonic() + asked.seconds
    users = [threading.Thread(target=_user, args=(port, shapes, until, seed, tally)) for seed in range(asked.users)]
    for user in users:
        user.start()
    if asked.kill:
        time.sleep(asked.seconds / 2.0)
        os.kill(_children(server)[0], signal.SIGKILL)
    for user in users:
        user.join()
    return tally


def _user(port: int, shapes: tuple[dict, dict], until: float, seed: int, tally: Tally) -> None:
    """One user: every second another size, tab or model; the controls follow the answer."""
    chance = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    model, chip = chance.choice(PAIRS)
    tab, offered = "verdict", ""
    sizes = {"batch_size": 1, "input_len": 1024}
    time.sleep(chance.random())
    while time.monotonic() < until:
        change = chance.random()
        if change < 0.1:
            model, chip = chance.choice(PAIRS)
        elif change < 0.3:
            tab = chance.choice(TABS)
        else:
            name, most = chance.choice((("batch_size", 256), ("input_len", 8192)))
            sizes = {**sizes, name: chance.randint(1, most)}
        search = "?" + urlencode({"model": model, "hardware": chip, **sizes, "tab": tab})
        began = time.monotonic()
        try:
            status, _ = _post(connection, _body(shapes[0], search, offered))
            _count(tally, time.monotonic() - began, status)
            status, content = _post(connection, _body(shapes[1], search, offered))
            if status == http.client.OK:
                offered = json.loads(content)["response"].get("offered", {}).get("data", offered)
            elif status != http.client.NO_CONTENT:
                tally.failures.append(f"controls: {status}")
        except (http.client.HTTPException, OSError) as error:
            with tally.lock:
                tally.lost += isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
                tally.failures += [] if isinstance(error, ConnectionError) else [repr(error)]
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        time.sleep(max(1.0 - (time.monotonic() - began), 0.0))


def _count(tally: Tally, seconds: float, status: int) -> None:
    with tally.lock:
        tally.seconds.append(seconds)
        if status != http.client.OK:
            tally.failures.append(str(status))


def _children(server: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{server}/task/{server}/children").read_text().split()]


def _cpu(server: int) -> float:
    """Processor time of the workers [s]."""
    ticks = 0
    for child in _children(server):
        fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _tell(tally: Tally, asked: argparse.Namespace, cpu: float) -> None:
    ordered = sorted(tally.seconds)
    at = {share: ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3 for share in (0.5, 0.95, 0.99)}
    print(f"{asked.users} users, {asked.seconds:g} s, {asked.workers} workers: {len(ordered)} answers")
    print(f"failed {len(tally.failures)}, lost with a killed worker {tally.lost}")
    print(f"p50 {at[0.5]:.0f} ms, p95 {at[0.95]:.0f} ms, p99 {at[0.99]:.0f} ms, longest {ordered[-1] * 1e3:.0f} ms")
    if not asked.kill:
        print(f"{cpu / len(ordered) * 1e3:.1f} ms of a core per answer: {len(ordered) / cpu:.0f} answers/s per core")
    for text in sorted(set(tally.failures))[:5]:
        print(f"  {text}")


if __name__ == "__main__":
    main()

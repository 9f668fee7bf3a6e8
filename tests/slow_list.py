"""The list of slow tests: `pytest --durations=0 --durations-min=0.3 -m '' > log; python -m tests.slow_list log`.

tests/data/slow.txt names the tests that take longer than LEAST seconds on two quiet cores, one per line: `make test`
leaves them out, `make slow` and CI run them.  A file alone stands for all its tests, as where a fixture is slow.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "data" / "slow.txt"
#: Seconds from which on a test is slow, and from which on a fixture makes all tests of its file slow.
LEAST, LEAST_OF_A_FIXTURE = 0.5, 5.0
LINE = re.compile(r"^([0-9.]+)s (call|setup)\s+(\S.*?)\s*$", re.MULTILINE)


def listed() -> frozenset[str]:
    """Names of slow tests, and files all of whose tests are slow."""
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())


def slow_in(log: str, scale: float) -> list[str]:
    """Names of slow tests in a log of durations.  scale: seconds of the log per second of a quiet machine."""
    found = [(float(seconds) / scale, what, name) for seconds, what, name in LINE.findall(log)]
    files = {
        name.partition("::")[0] for seconds, what, name in found if what == "setup" and seconds > LEAST_OF_A_FIXTURE
    }
    tests = {name for seconds, what, name in found if what == "call" and seconds > LEAST}
    return sorted(files | {name for name in tests if name.partition("::")[0] not in files})


if __name__ == "__main__":
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    LIST.write_text("\n".join(slow_in(text, float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)) + "\n", encoding="utf-8")

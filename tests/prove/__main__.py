"""`python -m tests.prove [NAME ...] [--jobs N]`: plant every fault; docs/evidence/proof.md if all were planted."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.prove.checkout import Checkout
from tests.prove.faults import ROOT, Fault, select
from tests.prove.page import page


def main(words: Sequence[str] | None = None) -> int:
    """Exit status 1 if a fault survives."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description="Plant faults; the tests must fail.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="faults to plant (default: all)")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        choices=range(1, 17),
        metavar="N",
        help="copies of the checkout that run side by side",
    )
    given = parser.parse_args(words)
    try:
        faults = select(given.names)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory(prefix="prove-") as folder:
        copies = [Checkout.copied(Path(folder) / str(number) / "checkout") for number in range(given.jobs)]
        noticed = plant_all(faults, copies)
        already_red = copies[0].failed_tests("-n", "0", *dict.fromkeys(filter(None, noticed))) if any(noticed) else []
    if already_red:
        raise RuntimeError(f"these tests fail without any fault and prove nothing: {', '.join(already_red)}")
    text = page(faults, noticed)
    sys.stdout.write(text)
    if not given.names:
        (ROOT / "docs" / "evidence" / "proof.md").write_text(text, encoding="utf-8")
    return 0 if all(noticed) else 1


def plant_all(faults: Sequence[Fault], copies: Sequence[Checkout]) -> list[str]:
    """The first failing test of each fault; "" if it survived."""
    free: Queue[Checkout] = Queue()
    for copy in copies:
        free.put(copy)

    def planted(fault: Fault) -> str:
        copy, start = free.get(), time.monotonic()
        try:
            with copy.with_fault(fault):
                test = copy.first_failed(fault.paths)
        finally:
            free.put(copy)
        sys.stderr.write(f"{fault.name:32} {time.monotonic() - start:6.1f} s  {test or 'SURVIVED'}\n")
        return test

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(planted, faults))


if __name__ == "__main__":
    sys.exit(main())

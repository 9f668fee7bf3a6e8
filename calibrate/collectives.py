"""Exchanges between devices, timed by one process for each.

`torchrun --nproc-per-node N -m llmviewer.calibrate.collectives DIR` captures each in a CUDA graph, as serving engines
run it, so its rows are NCCL's; on processors they are gloo's, which show that the command works.  The first process
writes DIR/samples.jsonl, which `calibrate fit` takes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from llmviewer.calibrate import environment, record, sizes
from llmviewer.calibrate.kernel_case import KernelCase
from llmviewer.calibrate.rows.collective import IN_GRAPH
from llmviewer.calibrate.run import lacking, result_columns
from llmviewer.calibrate.timer import DeviceReading, Limits, PreparedKernel, Stopwatch, measure

#: Bytes on each processor, beside which gloo's own time is small.
CPU_BYTES = (2**12, 2**16, 2**20, 2**22)
OPS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


@dataclass(slots=True)
class Peers:
    """A stopwatch that tells every process the longest time of all, so that all run as many calls and samples."""

    own: Stopwatch
    agree: Callable[[float], float]
    cache_bytes: float

    def prepare(self, kernel: PreparedKernel, calls: int) -> tuple[str, Callable[[], float]]:
        """The method, and a sample of which all processes learn the longest time [s]."""
        timed, sample = self.own.prepare(kernel, calls)
        return timed, lambda: self.agree(sample())

    def reading(self, sample: Callable[[], float], power_s: float = 0.0) -> DeviceReading:
        """Clock and power of this process' device after a common sample."""
        return self.own.reading(sample, power_s)


def cases(kind: str, count: int, size: sizes.RunSize, library: str) -> Iterator[KernelCase]:
    """Every exchange between `count` devices over the sizes of a run; `bytes` is the whole tensor of each device.

    library: name and version for the columns `engine` and `impl`.
    """
    on_gpu = kind == "cuda"
    for op in OPS:
        for each in size.allreduce_bytes if on_gpu else CPU_BYTES:
            columns = {"op": op, "dtype": "bfloat16" if on_gpu else "float32", "gpus": count, "bytes": each}
            columns |= {"impl": f"{library.partition(' ')[0]}_{IN_GRAPH}" if on_gpu else library, "engine": library}
            yield KernelCase(table="allreduce", kernel="exchange", columns=columns)


def main(words: list[str] | None = None) -> int:
    """Join the other processes, and time what the file lacks."""
    parser = argparse.ArgumentParser(prog="llmviewer.calibrate.collectives", description=__doc__)
    parser.add_argument("output", help="directory of samples, which one process writes")
    parser.add_argument("--device", choices=environment.DEVICES, default=None)
    parser.add_argument("--size", choices=("quick", "default", "full"), default="quick")
    given = parser.parse_args(words)
    rank, count = (int(os.environ.get(name, "-1")) for name in ("RANK", "WORLD_SIZE"))
    if count < 2:
        parser.error("start one process per device: torchrun --nproc-per-node N -m llmviewer.calibrate.collectives DIR")
    kind = environment.choose_device(given.device)
    import torch
    import torch.distributed as dist

    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(1)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        nccl = torch.cuda.nccl.version() if kind == "cuda" else ()  # type: ignore[no-untyped-call]
        library = f"nccl {'.'.join(map(str, nccl))}" if nccl else f"gloo {torch.__version__}"
        size = sizes.size_named(kind, given.size)
        planned = list(cases(kind, count, size, library))
        return _timed(planned, kind, size, given.output if rank == 0 else "")
    finally:
        dist.destroy_process_group()


def _timed(planned: list[KernelCase], kind: str, size: sizes.RunSize, folder: str) -> int:
    """Time all cases that the first process lacks; only it has a folder."""
    import torch.distributed as dist

    facts = environment.describe(kind)
    peers = _peers(kind, facts["cache_bytes"])
    if not folder:
        wanted: list[Any] = [None]
        dist.broadcast_object_list(wanted, src=0)
        for case in wanted[0]:
            _row(case, kind, peers, size)
        return 0
    with closing(record.Recorder(record.prepare_folder(folder))) as recorder:
        recorder.start(facts)
        missing = lacking(planned, {"device": facts["device"], "source": "llmviewer"}, recorder)
        dist.broadcast_object_list([[case for case, _ in missing]], src=0)
        for case, row in missing:
            recorder.append(row | _row(case, kind, peers, size))
        sys.stdout.write(f"{len(missing)} exchanges timed, {len(planned) - len(missing)} kept: {recorder.path}\n")
    return 0


def _peers(kind: str, cache_bytes: float) -> Peers:
    """The stopwatch of this process, which learns the longest time of all."""
    import torch
    import torch.distributed as dist

    from llmviewer.calibrate.stopwatch import stopwatch

    def agree(seconds: float) -> float:
        longest = torch.tensor([seconds], dtype=torch.float64, device=kind)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        return float(longest)

    return Peers(stopwatch(kind, cache_bytes), agree, cache_bytes)


def _row(case: KernelCase, kind: str, peers: Peers, size: sizes.RunSize) -> dict[str, Any]:
    """Result columns of one exchange.  Nothing in it depends on the clock of one process alone."""
    import torch

    from llmviewer.calibrate.buffers import Buffers
    from llmviewer.calibrate.kernels import KERNELS

    limits = Limits(samples=size.samples, max_samples=2 * size.samples, sample_s=size.sample_s, warmup_s=0.0)
    with torch.inference_mode():
        kernel = KERNELS[case.kernel](case.columns, Buffers(kind, peers.cache_bytes))
        timing = measure(kernel, peers, limits)
    if kind == "cuda" and timing.timed != "graph":
        return {"skipped": "the exchange could not be captured in a CUDA graph"}
    return result_columns(timing, kernel.rotated_bytes)


if __name__ == "__main__":
    raise SystemExit(main())

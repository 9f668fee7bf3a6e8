"""Shares of the rates of a PCIe link, of a host's memory and of its matrix units that are reached."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.hardware.chip import Chip, Host

#: From page-locked memory: 25.1 GB/s of an A100 (of 31.5, https://github.com/NVIDIA/nvbandwidth/issues/42), 25 GB/s
#: (https://github.com/ZaidQureshi/bam/issues/54), 12 GB/s of PCIe 3.0 (of 15.75, CUDA C++ Best Practices Guide,
#: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#pinned-memory), 52.8 GB/s of an H100 (of 63,
#: https://github.com/NVIDIA/nvbandwidth/issues/24).
PINNED_SHARE = 0.8
#: From pageable memory, which the driver copies to a page-locked buffer first: 5 to 6 GB/s where page-locked memory
#: gave 11 to 12 (https://github.com/rapidsai/dask-cuda/pull/98).
PAGEABLE_SHARE = PINNED_SHARE * 5.5 / 11.5
#: Of the memory of a host: STREAM gives 378 GB/s of 460.8 with 12 channels of DDR5-4800, and 189 of 204.8 with 8 of
#: DDR4-3200 (Micron, https://www.ctimes.com.tw/DispNews-cn.asp?o=2211231820AR); a desktop reads 46 of 51.2 GB/s
#: (https://guru3d.com/review/g-skill-tridentz-royal-ddr4-3200-mhz-review/page-10).  Their mean.
MEMORY_SHARE = 0.88
#: Of the matrix units of a CPU (Intel AMX): 21.3 TFLOP/s of one Xeon Platinum 8452Y (36 cores x 1024 FLOP x 2.0 GHz) in
#: kernels made for experts on the host (https://lmsys.org/blog/2025-10-22-KTransformers, machine:
#: https://github.com/sgl-project/sglang/issues/11425).  PyTorch's reach a quarter of that.
AMX_SHARE = 21.3 / 73.7

#: Sources of the shares by field of `Host`.
SOURCES = {
    "link_share": "share of the link that copies from page-locked memory reach "
    "(https://github.com/NVIDIA/nvbandwidth/issues/42); from pageable memory half of that "
    "(https://github.com/rapidsai/dask-cuda/pull/98)",
    "memory_share": "share of the memory's rate that STREAM reaches "
    "(Micron, https://www.ctimes.com.tw/DispNews-cn.asp?o=2211231820AR)",
    "matrix_share": "share of AMX that kernels for experts reach (https://lmsys.org/blog/2025-10-22-KTransformers)",
}


def attainable(host: Host, *, pinned: bool = True) -> Host:
    """The host with the shares of its rates that are reached.  pinned: copies read page-locked memory.

    A CPU without matrix units reaches its rate in fp32, as it multiplies quantized weights in integers, at several
    times that rate: llamafile's kernels for 4 bits reach 2.7 TFLOP/s of a Ryzen 9 7950X, which has 2.3
    (https://github.com/mozilla-ai/llamafile/pull/435).
    """
    return replace(
        host,
        link_share=PINNED_SHARE if pinned else PAGEABLE_SHARE,
        memory_share=MEMORY_SHARE,
        matrix_share=AMX_SHARE if host.cpu and has_amx(host.cpu) else 1.0,
    )


def has_amx(cpu: Chip) -> bool:
    """True if a CPU multiplies by matrix units, which have no fp32."""
    return "fp32" not in cpu.matrix_flops_per_s

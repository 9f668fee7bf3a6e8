"""Shares of the rates of a PCIe link and of a host's memory that are reached."""

from __future__ import annotations

from dataclasses import replace

from llmviewer.hardware.chip import Host

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


def attainable(host: Host, *, pinned: bool = True) -> Host:
    """The host with the shares of its rates that are reached.  pinned: copies read page-locked memory."""
    return replace(host, link_share=PINNED_SHARE if pinned else PAGEABLE_SHARE, memory_share=MEMORY_SHARE)

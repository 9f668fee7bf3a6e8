"""Shares of a PCIe link's rate that copies between a device and its host reach."""

#: From page-locked memory: 25.1 GB/s of an A100 (of 31.5, https://github.com/NVIDIA/nvbandwidth/issues/42), 25 GB/s
#: (https://github.com/ZaidQureshi/bam/issues/54), 12 GB/s of PCIe 3.0 (of 15.75, CUDA C++ Best Practices Guide,
#: https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/#pinned-memory), 52.8 GB/s of an H100 (of 63,
#: https://github.com/NVIDIA/nvbandwidth/issues/24).
PINNED_SHARE = 0.8
#: From pageable memory, which the driver copies to a page-locked buffer first: 5 to 6 GB/s where page-locked memory
#: gave 11 to 12 (https://github.com/rapidsai/dask-cuda/pull/98).
PAGEABLE_SHARE = PINNED_SHARE * 5.5 / 11.5

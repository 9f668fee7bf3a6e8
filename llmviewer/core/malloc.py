"""Setting of the C library's allocator: memory that numpy frees stays in the process for reuse."""

from __future__ import annotations

from functools import cache


@cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory instead of returning it to the kernel; runs once per process.

    A sweep constantly allocates and frees arrays of about 100 KiB, a generation of about 4 KiB.  By default each causes
    new page faults, which made sweeps 4 times and generations 1.5 times as slow.  Does nothing without glibc.
    """
    import ctypes

    trim_threshold, mmap_threshold, keep = -1, -3, 32 * 2**20
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(trim_threshold, 8 * keep)
    mallopt(mmap_threshold, keep)

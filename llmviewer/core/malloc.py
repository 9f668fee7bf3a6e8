"""What numpy frees stays with the process: temporaries of many passes come and go all the time."""

from __future__ import annotations

from functools import cache


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep what numpy frees instead of handing every temporary back to the kernel; once a process.

    A sweep allocates and frees arrays of some 100 KiB all the time, a generation of some 4 KiB; by default they come
    with fresh page faults, which made sweeps four times and generations half as slow again.  Elsewhere than on glibc
    nothing happens.
    """
    import ctypes

    trim_threshold, mmap_threshold, keep = -1, -3, 32 * 2**20
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    mallopt(trim_threshold, 8 * keep)
    mallopt(mmap_threshold, keep)

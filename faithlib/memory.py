"""Keep freed memory for the next tensor."""

from __future__ import annotations

import ctypes
import sys


def keep_freed_memory() -> bool:
    """Tell glibc not to return large freed blocks to the system; True where it could be told.

    By default every tensor over 128 kB is mapped anew and its pages are zeroed again by the kernel,
    which a small model's training step on two cores feels.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    m_trim_threshold, m_mmap_threshold = -1, -3
    return bool(mallopt(m_mmap_threshold, 1 << 30)) and bool(mallopt(m_trim_threshold, (1 << 31) - 1))

"""How the C library keeps memory."""

import ctypes

# Of glibc's malloc.h.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Let the process keep the memory of freed tensors for the next ones, where the C library is glibc.

    By default glibc gives the memory of every large tensor back to the system and asks for it anew, page by
    page, at each layer of each step: on a CPU that can take as long as the layer itself.

    Returns:
        Whether the C library took the settings.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # another C library
        return False
    settings = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 64 * 2**20}
    return all(mallopt(name, value) == 1 for name, value in settings.items())

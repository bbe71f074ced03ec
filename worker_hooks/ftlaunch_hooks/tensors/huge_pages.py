"""Has the kernel back the memory of new tensors by huge pages, before anything is written there.

Memory that was just allocated has no pages yet. With pages of 4 KiB the kernel needs longer to find and to clear them
than a copy into them takes (256 MiB: 160 ms, and 45 ms with pages of 2 MiB).
"""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor

_LEAST_BYTES = 4 << 20
"""of a tensor; a smaller one may hold no huge page, or shares its pages with what else the process has allocated"""


def use_huge_pages(tensor: Tensor) -> None:
    """Ask for huge pages for a tensor of this process's memory that is about to be written for the first time.

    The kernel may refuse, and then nothing changes. Small tensors, and those on other devices, are left as they are.
    """
    if tensor.device.type != "cpu" or tensor.nbytes < _LEAST_BYTES or not tensor.is_contiguous():
        return
    begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (tensor.data_ptr() + tensor.nbytes - begin) // mmap.PAGESIZE * mmap.PAGESIZE
    _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)


_libc = ctypes.CDLL(None)

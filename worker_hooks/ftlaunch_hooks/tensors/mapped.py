"""Maps tensor files into memory, and makes tensors over the mapping without a copy."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch
from torch import Tensor

from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.checkpoint.tensor_file import Chunk, Damaged
from ftlaunch_hooks.tensors.dtypes import TORCH_DTYPES


class MappedFile:
    """A mapped tensor file. Tensors over the mapping stay valid for as long as they live."""

    def __init__(self, path: Path) -> None:
        """Map a file. Raises OSError, and Damaged if the file is not a whole safetensors file."""
        self.path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.chunks, self.offsets, size = tensor_file.read_header(fd)
            if os.fstat(fd).st_size < size:
                raise Damaged(f"{path.name} is cut short")
            # A private, writable mapping, as torch takes no read-only memory. Nothing writes to these tensors.
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
        finally:
            os.close(fd)

    def tensor(self, chunk: Chunk, offset: int) -> Tensor:
        """Return the tensor of `chunk`, whose bytes begin at `offset` in the file, in the mapped memory."""
        return tensor_over(self._map, chunk, offset)


def tensor_over(mapped: mmap.mmap, chunk: Chunk, offset: int) -> Tensor:
    """Return a tensor whose memory is the mapping's, from `offset` (bytes) on."""
    dtype = TORCH_DTYPES[chunk.dtype]
    if not chunk.nbytes:  # torch.frombuffer refuses empty memory
        return torch.empty(chunk.shape, dtype=dtype, device="cpu")
    flat = torch.frombuffer(mapped, dtype=torch.uint8, count=chunk.nbytes, offset=offset)
    return flat.view(dtype).view(chunk.shape)

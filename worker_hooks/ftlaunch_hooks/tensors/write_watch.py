"""Tells whether tensors were written to while they were copied: by a thread of the script, as no step runs then.

Every tensor counts the operations that have written to it. A write through `.data`, or by NumPy, is not counted.
"""

from __future__ import annotations

from torch import Tensor


class WriteWatch:
    """Tensors, with the number of writes that each had seen when it was added."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._tensors: list[Tensor] = []
        self._versions: list[int] = []

    def add(self, key: str, tensor: Tensor) -> None:
        """Watch a tensor from now on. key: the tensor's name in the result of `written`."""
        if not tensor.is_inference():  # inference tensors have no count
            self._keys.append(key)
            self._tensors.append(tensor)
            self._versions.append(tensor._version)

    def written(self) -> list[str]:
        """Return the keys of the tensors that have been written to since they were added."""
        now = [tensor._version for tensor in self._tensors]
        if now == self._versions:
            return []
        versions = zip(self._keys, now, self._versions, strict=True)
        return [key for key, version, before in versions if version != before]

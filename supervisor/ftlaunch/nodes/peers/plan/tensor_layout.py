"""The layout of a tensor file, as its header describes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.files import checksums

_MOST_LAYOUTS = 256  # that are remembered


@dataclass(frozen=True, eq=False)
class TensorLayout:
    """A header, and where each chunk lies in the file."""

    digest: str
    """the digest of the header"""
    header: bytes
    chunks: tuple[Chunk, ...]
    """the chunks in the order of the file"""
    begins: tuple[int, ...]
    """the byte of the file at which each chunk begins"""
    size: int
    """bytes of the whole file"""


SlotLayout = Mapping[str, TensorLayout]
"""group -> the layout of its file"""


def layout_of(header: bytes, digest: str) -> TensorLayout:
    """Return the layout that a header describes. Raises tensor_file.Damaged if the header is malformed."""
    chunks, begins, size = tensor_file.parse_header(header)
    order = sorted(range(len(chunks)), key=lambda index: (begins[index], chunks[index].nbytes))
    return TensorLayout(
        digest=digest,
        header=header,
        chunks=tuple(chunks[index] for index in order),
        begins=tuple(begins[index] for index in order),
        size=size,
    )


class Layouts:
    """Remembers layouts by the digests of their headers, because a job has the same few at every step."""

    def __init__(self) -> None:
        self._known: dict[str, TensorLayout] = {}

    def of(self, header: bytes) -> TensorLayout:
        """Return the layout of a header. Raises tensor_file.Damaged if the header is malformed."""
        digest = checksums.of_whole(header)
        known = self._known.get(digest)
        if known is None:
            known = layout_of(header, digest)
            self._known[digest] = known
            for oldest in list(self._known)[:-_MOST_LAYOUTS]:
                self._known.pop(oldest, None)
        return known

"""What a tensor file holds, as its header says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ftlaunch_contract.checkpoint import tensor_file
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.files import checksums

_MOST = 256  # layouts that are remembered


@dataclass(frozen=True, eq=False)
class TensorLayout:
    """A header, and where each chunk lies in the file; the chunks in the order of the file."""

    digest: str
    header: bytes
    chunks: tuple[Chunk, ...]
    begins: tuple[int, ...]
    size: int
    """bytes of the whole file"""


SlotLayout = Mapping[str, TensorLayout]
"""group -> the layout of its file"""


def layout_of(header: bytes, digest: str) -> TensorLayout:
    """Parse a header. Raises tensor_file.Damaged."""
    chunks, begins, size = tensor_file.parse_header(header)
    order = sorted(range(len(chunks)), key=lambda n: (begins[n], chunks[n].nbytes))
    return TensorLayout(digest, header, tuple(chunks[n] for n in order), tuple(begins[n] for n in order), size)


class Layouts:
    """Remembers layouts by the digests of their headers: a job has the same few at every step."""

    def __init__(self) -> None:
        self._known: dict[str, TensorLayout] = {}

    def of(self, header: bytes) -> TensorLayout:
        """The layout of a header. Raises tensor_file.Damaged."""
        digest = checksums.of_whole(header)
        known = self._known.get(digest)
        if known is None:
            known = layout_of(header, digest)
            self._known[digest] = known
            for oldest in list(self._known)[:-_MOST]:
                self._known.pop(oldest, None)
        return known

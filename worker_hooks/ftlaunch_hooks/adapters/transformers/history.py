"""Keep a Trainer's log_history as JSON text in a tensor that grows by doubling.

Each entry is converted only once, so that a snapshot costs the same however long the history is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_ROOM = 4096  # initial size of the tensor, in bytes


class History:
    """The text of a log_history, kept from step to step."""

    def __init__(self) -> None:
        self._room = torch.zeros(_ROOM, dtype=torch.uint8, device="cpu")
        self._used = self._count = 0
        self._last: object = None

    def state(self, entries: Sequence[Any]) -> dict[str, Any]:
        """Append the entries that are new, and return the state to save.

        Args:
            entries: the whole log_history.

        Returns:
            `text`: the bytes of all entries, one JSON document a line, in a tensor that may be longer; `bytes`: the
            number of bytes in use.

        Raises:
            TypeError: JSON cannot hold an entry.
        """
        if self._count > len(entries) or (self._count and entries[self._count - 1] is not self._last):
            self._used = self._count = 0
        for entry in entries[self._count :]:
            self._append(entry)
        self._count = len(entries)
        self._last = entries[-1] if entries else None
        return {"text": self._room, "bytes": self._used}

    def _append(self, entry: Any) -> None:
        try:
            line = json.dumps(entry).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise TypeError(f"cannot save the Trainer's log_history: {error}; an entry is {entry!r:.200}") from error
        end = self._used + len(line)
        if end > len(self._room):
            larger = torch.zeros(max(end, 2 * len(self._room)), dtype=torch.uint8, device="cpu")
            larger[: self._used] = self._room[: self._used]
            self._room = larger
        self._room[self._used : end] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
        self._used = end


def entries_of(saved: dict[str, Any]) -> list[Any]:
    """Return the entries of which `History.state` returned the state `saved`."""
    text: Tensor = saved["text"]
    return [json.loads(line) for line in text[: saved["bytes"]].numpy().tobytes().splitlines()]

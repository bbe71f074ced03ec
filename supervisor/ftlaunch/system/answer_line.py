"""Carries the answers of a helper process over its stdout, one JSON value a line, to our process that started it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from ftlaunch.common.line_splitter import LineSplitter
from ftlaunch.system.descriptors import lead_nowhere

_BLOCK = 64 << 10  # bytes that are read at once


def write_answer(answer: Mapping[str, Any] | list[Any]) -> bool:
    """Write one answer.

    If the reader is gone, stdout leads to /dev/null afterwards, because Python would otherwise report the unwritten
    rest when the helper ends.

    Returns:
        Whether there is still a reader.

    Raises:
        OSError: the line cannot be written for another reason.
    """
    try:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        lead_nowhere(sys.stdout.fileno())
        return False
    return True


class AnswerReader:
    """Reads a helper's answers from a pipe, without waiting."""

    def __init__(self, fd: int) -> None:
        """Begin at the start of a line. fd: the pipe's read end, which is made non-blocking."""
        os.set_blocking(fd, False)
        self._fd = fd
        self._splitter = LineSplitter()

    def read(self) -> list[Any] | None:
        """Return the answers that have arrived; None if the helper is gone.

        Raises:
            ValueError: a line is no JSON.
        """
        try:
            block = os.read(self._fd, _BLOCK)
        except BlockingIOError:
            return []
        return [json.loads(line) for line in self._splitter.split(block)] if block else None

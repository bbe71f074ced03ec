"""Writes the answers of a helper process on its stdout, one JSON value a line, for our process that started it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any


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
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return False
    return True

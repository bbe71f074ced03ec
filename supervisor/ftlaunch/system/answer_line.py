"""What a helper process says on its stdout, to the process of ours that has started it: one JSON object a line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any


def write_answer(answer: Mapping[str, Any] | list[Any]) -> bool:
    """Write a line; return False where nobody reads it any more: who asked has ended.

    What follows is then written to nowhere, as Python would otherwise complain of it as the helper ends. Raises OSError
    for anything else than a reader that is gone.
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

"""Give variables of a running function other values."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any

_ARE_COPIES = sys.version_info < (3, 13)  # PEP 667 made f_locals of a function write through


def write_locals(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Assign local variables of a function that is suspended in a call, or of a module's or a class's code.

    A name that the function does not have as a variable is added to the dict that `f_locals` shows, and to nothing
    else.
    """
    if not values:
        return
    variables = frame.f_locals  # before 3.13: the dict that the frame keeps, filled from the variables just now
    variables.update(values)
    if _ARE_COPIES:
        # All variables are written back. Those that are not in `values` get the value that they have, because the dict
        # was filled in this thread and no bytecode of the function has run since. The 0 keeps variables that the dict
        # does not have.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))

"""Variables of a running function: their values, and how to give them others."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

_ARE_COPIES = sys.version_info < (3, 13)  # PEP 667 made f_locals of a function write through


def values_of(frame: FrameType, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of variables of a function, a module or a class; those that have none now are left out.

    `f_locals` is a dict before Python 3.13, and then of a function something else, whose keys() is a list.
    """
    variables = frame.f_locals
    return {name: variables[name] for name in names if name in variables}


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

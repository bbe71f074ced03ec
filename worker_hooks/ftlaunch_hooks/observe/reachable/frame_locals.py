"""Reads and writes the variables of a running function."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping
from types import FrameType
from typing import Any

_ARE_COPIES = sys.version_info < (3, 13)  # PEP 667 made f_locals of a function write through


def values_of(frame: FrameType, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of variables of a function, a module or a class. Variables without a value are left out.

    `f_locals` is a dict before Python 3.13. From 3.13 on a function has a proxy, whose keys() is a list.
    """
    variables = frame.f_locals
    return {name: variables[name] for name in names if name in variables}


def write_locals(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Assign local variables of a function that is suspended in a call, or of a module's or a class's code.

    A name that is no variable of the function is added only to the dict that `f_locals` returns.
    """
    if not values:
        return
    variables = frame.f_locals  # before 3.13: the dict that the frame keeps, filled from the variables just now
    variables.update(values)
    if _ARE_COPIES:
        # All variables are written back. Variables that are not in `values` keep their values, because the dict was
        # filled in this thread and no bytecode of the function has run since. The 0 keeps variables that the dict does
        # not have.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))

"""Processes whose clocks differ from the others': the wall clock, and the clocks that count from the boot."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import pytest

_CLONE_NEWTIME = 0x80
_SHIFTED = """
import os, time
_time = time.time
time.time = lambda: _time() + float(os.environ["FT_TEST_CLOCK"])
"""


def wall_clock(home: Path, ahead: float) -> dict[str, str]:
    """Return an environment in which Python processes see a wall clock that is `ahead` seconds ahead."""
    folder = home / "clock"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_SHIFTED)
    return {"PYTHONPATH": str(folder), "FT_TEST_CLOCK": str(ahead)}


def booted_earlier(seconds: int) -> Callable[[], None]:
    """Return a `preexec_fn` for Popen that moves monotonic clocks ahead, as on a machine that was booted earlier.

    Skips the test without root, or on a kernel without time namespaces.

    Args:
        seconds: how far the clocks are ahead.
    """
    if os.geteuid() or not Path("/proc/self/timens_offsets").exists():
        pytest.skip("only root may shift clocks, on kernels with time namespaces (Linux 5.6): run as root")
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        if libc.unshare(_CLONE_NEWTIME):
            raise OSError(ctypes.get_errno(), "unshare")
        Path("/proc/self/timens_offsets").write_text(f"monotonic {seconds} 0\nboottime {seconds} 0\n")
        with Path("/proc/self/ns/time_for_children").open() as there:
            if libc.setns(there.fileno(), _CLONE_NEWTIME):
                raise OSError(ctypes.get_errno(), "setns")

    return enter

"""Stack dumps as faulthandler writes them."""

from __future__ import annotations

from pathlib import Path

from ftlaunch_contract.pages.waiting import wait_until

# the file that the frame of a waiting rank really names
WAITS_IN = "/".join(Path(wait_until.__code__.co_filename).parts[-3:])
PACKAGES = "/venv/lib/python3.11/site-packages"


def dump(*frames: str, other: tuple[str, ...] = ()) -> str:
    """A dump of a thread and of the main thread, of frames `path line function`."""

    def lines(of: tuple[str, ...]) -> str:
        return "".join(f'  File "{p}", line {n} in {f}\n' for p, n, f in (frame.split() for frame in of))

    helper = f"Thread 0x00007f63a9cfe6c0 (most recent call first):\n{lines(other)}\n" if other else ""
    return f"{helper}Current thread 0x00007f63e1663b80 (most recent call first):\n{lines(frames)}"

"""Stack dumps as faulthandler writes them."""

from __future__ import annotations

from pathlib import Path

from ftlaunch_contract.pages.waiting import wait_until

# The file that the innermost frame of a waiting rank names.
WAITS_IN = "/".join(Path(wait_until.__code__.co_filename).parts[-3:])
PACKAGES = "/venv/lib/python3.11/site-packages"


def dump(*frames: str, other: tuple[str, ...] = ()) -> str:
    """Return a dump of the main thread, and of another thread if there is one. Frames are `path line function`."""

    def lines(described: tuple[str, ...]) -> str:
        text = ""
        for frame in described:
            path, line, function = frame.split()
            text += f'  File "{path}", line {line} in {function}\n'
        return text

    helper = f"Thread 0x00007f63a9cfe6c0 (most recent call first):\n{lines(other)}\n" if other else ""
    return f"{helper}Current thread 0x00007f63e1663b80 (most recent call first):\n{lines(frames)}"

"""Holds a saver up right before it commits a checkpoint, where a test says so; Python imports this at its start.

PAUSE_COMMIT="FOLDER NUMBER": each saver waits before the NUMBER-th rename by which it commits until FOLDER/go
exists, and says so in FOLDER/at_commit. The saver's own code is untouched: the interpreter tells of each rename before
it is made.
"""

import os
import sys
import time
from pathlib import Path

_commits = 0


def _on_audit(event: str, args: tuple[object, ...]) -> None:
    global _commits  # noqa: PLW0603 - of this process
    if event != "os.rename" or not os.fspath(args[0]).endswith(".incomplete"):  # type: ignore[call-overload]
        return
    _commits += 1
    folder, number = os.environ["PAUSE_COMMIT"].split()
    if _commits == int(number) and not Path(folder, "go").exists():
        Path(folder, "at_commit").write_text(str(os.getpid()))
        while not Path(folder, "go").exists():
            time.sleep(0.02)


if "PAUSE_COMMIT" in os.environ and "ftlaunch.checkpoints.saver" in sys.orig_argv:
    sys.addaudithook(_on_audit)

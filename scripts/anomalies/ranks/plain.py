"""A rank without torch: waits until HOME/begin exists; rank 1 kills itself once."""

import os
import signal
import sys
import time
from pathlib import Path

home = Path(sys.argv[1])
deadline = time.monotonic() + 60
while not (home / "begin").exists():
    assert time.monotonic() < deadline, "nobody said that the ranks may begin"
    time.sleep(0.005)
if os.environ["RANK"] == "1" and not (home / "killed").exists():
    (home / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.3)
print("rank", os.environ["RANK"], "is done")
(home / f"done_{os.environ['RANK']}").write_text(os.environ["TORCHELASTIC_RESTART_COUNT"])

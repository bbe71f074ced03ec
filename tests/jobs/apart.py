"""A rank that talks to nobody: it counts to STEPS in its own file, and goes on from there when it is started again.

apart.py STEPS: FAULT="kind rank step [times]" strikes in the first so many lives of that rank. `child` leaves one
behind. Without torch.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

rank, out = os.environ["RANK"], Path(os.environ["OUT"])
out.mkdir(exist_ok=True)
kind, at_rank, at_step, *times = [*os.environ.get("FAULT", "none -1 -1").split(), "1"]
lives = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with (out / f"lives_{rank}").open("a") as file:
    file.write(f"{os.getpid()} {lives} {os.environ['FTLAUNCH_ATTEMPT']}\n")
place = out / f"count_{rank}"
count = int(place.read_text()) if place.exists() else 0
while count < int(sys.argv[1]):
    if (rank, count) == (at_rank, int(at_step)) and lives < int(times[0]):
        with (out / "fired").open("a") as file:
            file.write(f"{kind}\n")
        if kind == "child":
            subprocess.Popen(["sleep", "1000"])
        if kind == "hang":
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    count += 1
    temporary = place.with_suffix(".tmp")
    temporary.write_text(str(count))
    temporary.rename(place)
    print(count, flush=True)

"""A rank without torch: it beats, makes empty steps, stops where told, and breaks where FAULT says.

beats.py STEPS SECONDS: so many steps of so many seconds. FAULT="RANK STEP": that rank is killed there, in attempt 0.
LATE="SECONDS": so long it takes to restore.
LOSS="NUMBER": what the script says of every step.
HELD=1: every step's snapshot is said to be in memory (its bytes are not); HELD=withdrawn: no more at a stop, where it
would be saved.
"""

import os
import signal
import sys
import time

from ftlaunch_contract.pages.page import NONE, open_pages
from ftlaunch_contract.pages.words import INTENT
from ftlaunch_contract.protocol import EXIT_SAVED, SLOTS, Flag, Phase, Resume
from ftlaunch_hooks.process.bootstrap import own_page

steps, seconds = int(sys.argv[1]), float(sys.argv[2])
rank, attempt = int(os.environ["RANK"]), int(os.environ["FTLAUNCH_ATTEMPT"])
fault = [int(word) for word in os.environ.get("FAULT", "-1 -1").split()]
page = own_page()
while page.resume[0] == Resume.UNDECIDED:
    time.sleep(0.001)
kind, step = page.resume
time.sleep(float(os.environ.get("LATE", "0")))
page.set_resumed(kind, step)
peers = open_pages(page.path.parent, int(os.environ["WORLD_SIZE"]))
page.beat(step, time.monotonic_ns())
page.raise_flag(Flag.ATTACHED)
page.q[INTENT] = steps
page.phase = Phase.TRAIN
print("resumed at", step, flush=True)
while step < steps:
    if [rank, step] == fault and attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(seconds)
    step += 1
    if "HELD" in os.environ:
        page.set_slot(step % SLOTS, step)
    page.step_seconds = seconds
    if "LOSS" in os.environ:
        page.loss = float(os.environ["LOSS"])
    page.beat(step, time.monotonic_ns())
    while any(peer.attempt != page.attempt or peer.step < step for peer in peers):  # as collectives would have it
        time.sleep(0.001)
    if NONE != page.stop_at <= step:
        page.raise_flag(Flag.STOPPED)
        for slot in range(SLOTS) if os.environ.get("HELD") == "withdrawn" else ():
            page.set_slot(slot, NONE)
        sys.exit(EXIT_SAVED)
page.raise_flag(Flag.LOOP_LEFT)

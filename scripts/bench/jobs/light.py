"""A rank without torch that only beats, once a second, until it is told to stop."""

import os
import sys
import time

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import EXIT_SAVED, Flag, Phase, Resume
from ftlaunch_hooks.process.bootstrap import own_page

page = own_page()
assert page is not None
while page.resume[0] == Resume.UNDECIDED:
    time.sleep(0.001)
kind, resumed_step = page.resume
page.set_resumed(kind, resumed_step)
page.raise_flag(Flag.ATTACHED)
page.phase = Phase.TRAIN
step = max(page.resume[1], 0)
while True:
    step += 1
    page.step_seconds = 1.0
    page.beat(step, time.monotonic_ns())
    if page.leave or NONE != page.stop_at <= step:
        page.raise_flag(Flag.STOPPED)
        sys.stdout.flush()
        os._exit(EXIT_SAVED)
    time.sleep(1.0)

"""A rank that leaves its devices in order runs no more of the script."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from tests.support.waiting import DEADLINE

HELD = """
import os, signal, sys, threading

import torch

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.job.parking import park
from tests.support.waiting import DEADLINE
from ftlaunch_hooks.process.signal_watcher import Watcher

read, write = os.pipe()
main_thread = threading.main_thread()

def names():
    frame, found = sys._current_frames()[main_thread.ident], set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found

def leave(signum):
    device_port.find_accelerator = lambda: torch.device("cpu")
    device_port.devices_with_memory = list
    park()
    os.write(write, b"1")  # the collective that was aborted ends
    while not went_on and "_wait_if_held" not in names():
        pass
    os._exit(1 if went_on else 0)

went_on = False
watcher = Watcher(leave, lambda: None)
if sys.argv[1] == "own handler":
    signal.signal(signal.SIGTERM, lambda *_: None)
print("ready", flush=True)
os.read(read, 1)
went_on = True
threading.Event().wait()
"""


@pytest.mark.long
@pytest.mark.parametrize("handler", ["no handler", "own handler"])
def test_a_script_whose_collective_was_aborted_does_not_go_on(handler: str) -> None:
    """Taken out (`hold_main_thread`): the script goes on with what the collective has left in memory."""
    process = subprocess.Popen([sys.executable, "-c", HELD, handler], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 0

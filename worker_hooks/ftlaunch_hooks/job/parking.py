"""Leaves devices in order before a rank ends itself, because another rank has failed.

A process that ends while it exchanges data with other GPUs can take these GPUs, or the machine, down with it: public
reports tell of GPUs that were lost when ranks were killed in the middle of NCCL's transfers. So a rank that is well
first gives its process groups up, and waits until its devices have done what is queued.
"""

from __future__ import annotations

import threading

import torch
from torch import distributed

from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.process.signal_watcher import hold_main_thread

PARK_SECONDS = 3.0
"""how long a rank waits at most; the supervisor kills a rank that does not leave some time after that"""


def park(seconds: float = PARK_SECONDS) -> None:
    """Abort all process groups, and wait until the devices have done what is queued. The process ends after this.

    Nothing is done where no accelerator is in use. May be called in any thread. The main thread, if it is another one,
    runs no more Python code: a collective that is aborted ends like one that is done, and the script would log a loss,
    or a boundary save a state, that was computed from whatever the collective has left in memory.

    Args:
        seconds: how long to wait. A device that is broken, or waits for another one that is, may never end its work.
    """
    if device_port.find_accelerator() is None:
        return
    if threading.current_thread() is not threading.main_thread():
        hold_main_thread()
    thread = threading.Thread(target=_leave_devices, name="ftlaunch-park", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        say(f"devices have not done what was queued within {seconds:g} s: this rank ends with work under way")


def _leave_devices() -> None:
    try:
        if distributed.is_available() and distributed.is_initialized():
            # For all groups at once: with NCCL the aborts of one group after another can wait for each other.
            distributed.distributed_c10d._abort_process_group()
        for device in device_port.devices_with_memory():
            torch.accelerator.synchronize(device)
    except RuntimeError as error:  # a device that is broken
        say(f"this rank ends with work under way on its devices: {str(error).splitlines()[0]}")

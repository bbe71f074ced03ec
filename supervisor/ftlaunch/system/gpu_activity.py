"""Finds out which processes have a GPU at work, from NVIDIA's NVML if it is installed.

A driver whose GPU has fallen off the bus may not answer for minutes. A daemon thread therefore asks the driver, and the
event loop reads the last answer.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

_DRIVER = Path("/dev/nvidiactl")
_BUSY = 5  # percent of the time in which some kernel ran on a GPU, from which on the GPU is at work


class Gpus:
    """Asks NVML on demand. Without a driver, or without nvidia-ml-py, no process ever has a GPU at work."""

    def __init__(self, driver: Path = _DRIVER) -> None:
        """Start without an answer, and without a thread.

        Args:
            driver: a file that exists if there is a driver.
        """
        self.busy: frozenset[int] = frozenset()
        """pids of the processes that have a GPU at work, by the last answer"""
        self._wanted = threading.Event()
        self._driver = driver
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have the thread update `busy`. Never waits."""
        if self._thread is None and self._driver.exists():
            thread = threading.Thread(target=self._answer, name="ftlaunch-nvml", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be started now; the next call tries again
                thread.start()
                self._thread = thread
        self._wanted.set()

    def _answer(self) -> None:
        """Update `busy` at each request, until NVML fails. Runs in the thread."""
        try:
            import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - large, and useful with GPUs only
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            devices = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
            while self._wanted.wait():
                self._wanted.clear()
                at_work = [device for device in devices if pynvml.nvmlDeviceGetUtilizationRates(device).gpu >= _BUSY]
                found = [pynvml.nvmlDeviceGetComputeRunningProcesses(device) for device in at_work]
                self.busy = frozenset(process.pid for processes in found for process in processes)
        except pynvml.NVMLError:
            self.busy = frozenset()  # nothing is known from now on

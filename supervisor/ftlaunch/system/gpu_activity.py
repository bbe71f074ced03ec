"""Which processes have a GPU that is at work, by NVIDIA's NVML where it is there.

A driver whose GPU has fallen off the bus may not answer for minutes: it is asked by a thread of its own, and the loop
reads the last answer.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

_DRIVER = Path("/dev/nvidiactl")
_BUSY = 5  # percent of the time during which some kernel ran on the GPU


class Gpus:
    """Asks NVML when it is told to; without a driver, or without nvidia-ml-py, no process ever has a GPU at work."""

    def __init__(self, driver: Path = _DRIVER) -> None:
        """driver: exists where there is one."""
        self.busy: frozenset[int] = frozenset()  # pids, as the last answer had them
        self._wanted = threading.Event()
        self._driver = driver
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Have `busy` renewed by the thread; never waits."""
        if self._thread is None and self._driver.exists():
            thread = threading.Thread(target=self._answer, name="ftlaunch-nvml", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread may be started now; the next call tries again
                thread.start()
                self._thread = thread
        self._wanted.set()

    def _answer(self) -> None:
        try:
            import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - large, for GPUs only
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
            self.busy = frozenset()  # nothing is known from here on

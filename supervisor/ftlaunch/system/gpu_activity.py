"""Finds out which processes have a GPU at work and which hold GPU memory, from NVIDIA's NVML if it is installed.

A driver whose GPU has fallen off the bus may not answer for minutes. A daemon thread therefore asks the driver, and the
event loop reads the last answer.
"""

from __future__ import annotations

import contextlib
import pwd
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_DRIVER = Path("/dev/nvidiactl")
_BUSY = 5  # percent of the time in which some kernel ran on a GPU, from which on the GPU is at work


@dataclass(frozen=True)
class GpuProcess:
    """A process that NVML lists as a compute process of a GPU, also after its end if its memory is not freed yet."""

    pid: int
    gpu: int
    """index of the GPU, in NVML's order"""
    memory_bytes: int | None
    """GPU memory that the process holds; None if the driver does not say"""
    command: str
    """name of the command, at most 15 characters; empty if the process is gone"""
    user: str
    """name of the user that the process runs as; empty if unknown"""


@dataclass(frozen=True)
class GpuAnswer:
    """What NVML has said."""

    number: int = 0
    """number of the newest request that the answer is for; 0: no request was answered yet"""
    busy: frozenset[int] = frozenset()
    """pids of the processes that have a GPU at work"""
    processes: tuple[GpuProcess, ...] = ()
    """the processes of all GPUs"""


class Gpus:
    """Asks NVML on demand. Without a driver, or without nvidia-ml-py, no process ever has a GPU."""

    def __init__(self, driver: Path = _DRIVER) -> None:
        """Start without an answer, and without a thread.

        Args:
            driver: a file that exists if there is a driver.
        """
        self.answer = GpuAnswer()
        """the last answer"""
        self._asked = 0  # number of the newest request
        self._wanted = threading.Event()
        self._driver = driver
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> frozenset[int]:
        """pids of the processes that have a GPU at work, by the last answer."""
        return self.answer.busy

    @property
    def can_answer(self) -> bool:
        """Whether an answer to a request may still come: NVML has worked so far."""
        return self._thread is not None and self._thread.is_alive()

    def ask(self) -> int | None:
        """Have the thread update `answer`. Never waits.

        Returns:
            The number of the request, which `answer` reaches once it is current; None if no answer will come.
        """
        if self._thread is None and self._driver.exists():
            thread = threading.Thread(target=self._serve, name="ftlaunch-nvml", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be started now; the next call tries again
                thread.start()
                self._thread = thread
        if not self.can_answer:
            return None
        self._asked += 1
        self._wanted.set()
        return self._asked

    def _serve(self) -> None:
        """Update `answer` at each request, until NVML fails as a whole. Runs in the thread."""
        try:
            import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - large, and useful with GPUs only
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            devices = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            return
        while self._wanted.wait():
            self._wanted.clear()
            number = self._asked
            at_work: set[int] = set()
            processes: list[GpuProcess] = []
            for gpu, device in enumerate(devices):
                found = _list_processes(pynvml, gpu, device)
                processes += found
                if found and _is_at_work(pynvml, device):
                    at_work.update(process.pid for process in found)
            self.answer = GpuAnswer(number, frozenset(at_work), tuple(processes))


def _is_at_work(pynvml: Any, device: Any) -> bool:
    """Return whether a GPU is at work; False if the driver does not say, as of a GPU that is split (MIG) or lost."""
    try:
        return bool(pynvml.nvmlDeviceGetUtilizationRates(device).gpu >= _BUSY)
    except pynvml.NVMLError:
        return False


def _list_processes(pynvml: Any, gpu: int, device: Any) -> list[GpuProcess]:
    """Return the compute processes of a GPU; none if the driver does not say, as of a GPU that is lost."""
    try:
        listed = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    except pynvml.NVMLError:
        return []
    return [
        GpuProcess(
            pid=process.pid,
            gpu=gpu,
            memory_bytes=process.usedGpuMemory,
            command=_command_of(process.pid),
            user=_user_of(process.pid),
        )
        for process in listed
    ]


def _command_of(pid: int) -> str:
    """Return the name of a process's command; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _user_of(pid: int) -> str:
    """Return the name of the user that a process runs as, or the user's number; empty if the process is gone."""
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)

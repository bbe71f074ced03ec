"""The wait for GPU memory without GPUs, its message between nodes, and what is said of its end."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path

import pytest

from ftlaunch.history.events import sound
from ftlaunch.ranks.gpu_memory import EARLIER_RUN, GpuMemoryWait, Holder, MemoryWaitEnd
from ftlaunch.reporting.events.gpu_memory import of_memory_wait
from ftlaunch.system.gpu_activity import GpuProcess, Gpus
from ftlaunch.system.loop import Loop

FOREIGN = GpuProcess(pid=12, gpu=3, memory_bytes=None, command="python3", user="anna")
HELD = MemoryWaitEnd(
    attempt=2,
    seconds=10.0,
    holders=(Holder(GpuProcess(11, 0, 300 << 20, "", ""), rank=5), Holder(FOREIGN, rank=None)),
    is_silent=False,
)


class Timers(Loop):
    """A loop with timers, which a test lets pass by hand."""

    def __init__(self) -> None:
        self.due: dict[Hashable, Callable[[], None]] = {}

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        self.due[name] = handler

    def let_pass(self) -> None:
        for name in list(self.due):
            self.due.pop(name)()


def test_without_a_driver_there_is_no_wait(tmp_path: Path) -> None:
    ends: list[MemoryWaitEnd] = []
    loop = Timers()
    wait = GpuMemoryWait(Gpus(tmp_path / "none"), loop, time.monotonic, ends.append)
    wait.begin(0, {11: 0}, {11})
    assert (wait.is_over, loop.due, ends) == (True, {}, [])


def test_an_nvml_that_does_not_work_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out (`can_answer`): each restart waits for ten seconds where the library is missing."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    ends: list[MemoryWaitEnd] = []
    loop = Timers()
    wait = GpuMemoryWait(Gpus(tmp_path), loop, time.monotonic, ends.append)
    wait.begin(0, {11: 0}, {11})
    for thread in threading.enumerate():
        if thread.name == "ftlaunch-nvml":
            thread.join(60)
    loop.let_pass()
    assert wait.is_over
    assert [of_memory_wait(end) for end in ends] == [None] * len(ends)


def test_an_end_crosses_the_channel_between_nodes() -> None:
    assert MemoryWaitEnd.from_fields(json.loads(json.dumps(HELD.to_fields()))) == HELD


def test_what_is_held_is_said_with_its_holders() -> None:
    event = of_memory_wait(HELD, "node 1 (b, 10.0.0.2)")
    assert event is not None
    assert event.sentence() == (
        "the GPU memory of attempt 2 on node 1 (b, 10.0.0.2) is not free 10 s after its last process (GPU 0: 300 MiB,"
        " pid 11, rank 5, which has ended; GPU 3: unknown size, pid 12, python3, user anna): the next attempt begins"
        " nonetheless, and may run out of memory"
    )
    assert [holder["user"] for holder in event.fields()["holders"]] == [None, "anna"]


def test_memory_that_took_long_to_be_free_is_said_and_an_ordinary_wait_is_not() -> None:
    slow = of_memory_wait(MemoryWaitEnd(attempt=0, seconds=4.2, holders=(), is_silent=False))
    assert slow is not None
    assert slow.sentence() == "the GPU memory of attempt 0 was free 4.2 s after its last process"
    assert slow.fields() == {"seconds": 4.2, "node": None, "alone": None}
    assert of_memory_wait(MemoryWaitEnd(attempt=0, seconds=0.4, holders=(), is_silent=False)) is None


def test_what_is_said_of_ranks_that_start_alone_names_them() -> None:
    alone = replace(HELD, holders=HELD.holders[:1], alone=(5,))
    held = of_memory_wait(alone)
    assert held is not None
    assert held.sentence() == (
        "the GPU memory of rank 5 is not free 10 s after its last process (GPU 0: 300 MiB, pid 11, rank 5, which has"
        " ended): it starts nonetheless, and may run out of memory"
    )
    assert held.fields()["alone"] == [5]
    slow = of_memory_wait(replace(alone, holders=(), alone=(1, 5)))
    assert slow is not None
    assert slow.sentence() == "the GPU memory of ranks 1, 5 was free 10 s after its last process"


def test_what_is_said_of_a_run_that_was_killed() -> None:
    silent = of_memory_wait(MemoryWaitEnd(attempt=EARLIER_RUN, seconds=10.0, holders=(), is_silent=True))
    assert silent is not None
    assert silent.sentence() == (
        "whether the GPU memory of the run that was killed is free is unknown, because NVIDIA's driver has not answered"
        " for 10 s: the first attempt begins nonetheless, and may run out of memory"
    )
    slow = of_memory_wait(MemoryWaitEnd(attempt=EARLIER_RUN, seconds=4.2, holders=(), is_silent=False))
    assert slow is not None
    assert slow.sentence() == "the GPU memory of the run that was killed was free 4.2 s after this start"


def test_events_keep_the_name_of_their_node() -> None:
    event = of_memory_wait(HELD, "node 1 (b, 10.0.0.2)")
    assert event is not None
    dropped: Counter[str] = Counter()
    assert sound({"event": event.name, **event.fields()}, dropped)["node"] == "node 1 (b, 10.0.0.2)"
    assert not dropped

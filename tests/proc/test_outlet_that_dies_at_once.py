"""The process that tells metrics dies before the supervisor goes on: that is told, and nothing is raised."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.engine import outlet_watch
from ftlaunch.engine.outlet_watch import Outlets
from ftlaunch.reporting.events.job import OutletEnded
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcess, HelperProcesses


class Late(HelperProcesses):
    """A supervisor on a busy machine: it goes on only when its helper has ended."""

    def start(self, *args: Any, **kwargs: Any) -> HelperProcess:
        helper = super().start(*args, **kwargs)
        helper.wait(60)
        return helper


class Loop:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[], None]] = {}
        self.later: list[Callable[[], None]] = []

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        self.handlers[fd] = handler

    def unregister(self, fd: int) -> None:
        del self.handlers[fd]

    def call_at(self, due: float, name: str, call: Callable[[], None]) -> None:
        self.later.append(call)


def test_it_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out: the first message to it is a broken pipe, and the job cannot start, or ends at a later try."""
    monkeypatch.setattr(outlet_watch, "METRICS_EXPORTER", "ftlaunch.there_is_no_such_module")
    (tmp_path / "train.py").touch()
    job = tmp_path / "job.yaml"
    job.write_text(f"script: {tmp_path}/train.py\nmetrics:\n  port: 0\n")
    told: list[Any] = []
    loop = Loop()
    outlets = Outlets(Late(), resolve(str(job), (), {}, os.environ), loop, told.append, time.monotonic)
    for again in (1.0, 2.0):
        [hear] = loop.handlers.values()
        hear()
        assert told.pop() == OutletEnded("metrics", "exit status 1", again)
        loop.later.pop()()
    [hear] = loop.handlers.values()
    hear()
    assert not loop.handlers
    outlets.close()

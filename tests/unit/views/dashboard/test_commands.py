"""What a browser may ask of a job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.history.runs import Run
from ftlaunch.views.dashboard.commands import CannotCommand, Commands, Newest


def newest() -> Run:
    return Run(Path("run"), [])


class Job:
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def ask(self, newest: Newest, request: dict[str, Any]) -> Mapping[str, Any]:
        self.asked.append(request)
        nodes = [{"place": 0, "host": "a", "address": "10.0.0.1"}, {"place": None, "host": "b", "address": "10.0.0.2"}]
        return {"ok": True, "done": "the node leaves", "nodes": nodes}


@pytest.mark.parametrize(
    ("asked", "request_"),
    [
        ({"do": "stop"}, {"do": "stop"}),
        ({"do": "save", "why": "forged"}, {"do": "save"}),
        ({"do": "drain", "node": "0", "more": 1}, {"do": "drain", "node": "0"}),
    ],
)
def test_the_job_is_told_who_asks(asked: object, request_: dict[str, Any]) -> None:
    job = Job()
    assert Commands(job.ask, "alice").do(newest, asked, "10.0.0.9")
    assert job.asked == [request_ | {"why": "dashboard of alice, asked from 10.0.0.9"}]


@pytest.mark.parametrize(
    "asked",
    [None, [], "stop", {}, {"do": "status"}, {"do": "forgive", "node": "a"}, {"do": ["stop"]}, {"do": "drain"},
     {"do": "drain", "node": 0}, {"do": "drain", "node": ""}, {"do": "drain", "node": "a" * 300}],
)  # fmt: skip
def test_anything_else_is_refused(asked: object) -> None:
    job = Job()
    with pytest.raises(CannotCommand, match="known are `stop`, `save`, and `drain` with a node"):
        Commands(job.ask, "alice").do(newest, asked, "10.0.0.9")
    assert not job.asked


def test_of_the_nodes_place_and_host_are_told() -> None:
    found = Commands(Job().ask, "alice").nodes(newest)
    assert found == [{"place": 0, "host": "a"}, {"place": None, "host": "b"}]

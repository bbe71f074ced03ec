"""`ftctl dashboard` in a browser, on a job of several nodes: one is chosen and leaves."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.browser.conftest import Window
from tests.support.agents import NodesJob
from tests.support.dashboards import Dashboard
from tests.support.waiting import DEADLINE

Serve = Callable[..., Dashboard]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[NodesJob]:
    """A job of one node or two, of which one may leave."""
    job = NodesJob(tmp_path)
    job.range, job.words = "1:2", ("--steps", "200", "--step-time", "0.2")
    yield job
    job.dispose()


@pytest.mark.long
def test_a_node_that_is_chosen_leaves(nodes: NodesJob, serve: Serve, window: Window) -> None:
    nodes.begin()
    nodes.wait_step(2)
    window.open(serve(nodes.run_dir))
    page = window.page
    page.get_by_role("button", name="Drain a node").click()
    dialog = page.get_by_role("dialog", name="Let a node leave?")
    chosen = dialog.get_by_label("Node")
    host = socket.gethostname()
    assert chosen.locator("option").all_inner_texts() == [f"0: {host}", f"1: {host}"]
    assert window.violations() == []
    chosen.select_option(label=f"1: {host}")
    dialog.get_by_role("button", name="Drain this node").click()
    page.get_by_role("status").filter(has_text="then node 1 leaves").wait_for()
    assert nodes.supervisors[1].wait(DEADLINE) == 75, nodes.transcript
    (asked,) = nodes.events("drain_requested")
    assert (asked["node"], asked["by"]) == ("1", f"dashboard of {getpass.getuser()}, asked from 127.0.0.1")
    page.locator("#history", has_text="asked to let a node leave, node 1").wait_for()
    nodes.wait_event("attempt_started", 2)
    page.get_by_role("button", name="Stop the job").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop the job").click()
    assert nodes.codes() == [75, 75], nodes.transcript

"""The ranks of a node: what their agent tells a head that it meets while they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# A process of its own: an agent kills and reaps all children that it does not know, once its ranks have ended.
AGENT = """\
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from ftlaunch.nodes.agent.node import node_ranks
from ftlaunch.nodes.agent.node.own_files import OwnFiles
from ftlaunch.nodes.agent.node.node_ranks import AgentRanks, AgentSurroundings
from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.spec.nodes.placement import on_one_node
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.protocol import Resume

class Looking:
    # runs the loop until the ranks have gone
    def handle(self, event):
        pass

    def poll(self):
        ranks.poll()

    def next_poll_at(self):
        return time.monotonic() + 0.01

    def fail(self, error):
        raise error

    @property
    def over(self):
        return ranks.cleared

home, told, loop = Path.cwd(), [], EventLoop(time.monotonic)
flags = {"nproc_per_node": "2", "warm": "no", "run_dir": str(home)}
order_to_all = os.environ.get("ORDER", "")
held_at = 0.0  # where the clock is moved by hand; 0: it is the real one
clock = lambda: held_at or time.monotonic()
if order_to_all:
    flags |= {"nnodes": "2048", "rdzv_endpoint": "127.0.0.1:1", "node_timeout": "2s"}
spec, helpers = resolve("sleeps.py", (), flags, {}), HelperProcesses()
files = FileThread(home)
warm = Warm(helpers, spec, {}, home / "warm.log", files, lambda *_, **__: None)
around = spec, home, warm, dict(os.environ), home / "control", "NO=MARK", loop, clock, helpers
failed = []
bulkheads = Bulkheads(lambda call: failed.append(f"{call.what}: {call.error}"))
tell = lambda name, **more: told.append([name, more])
ranks = AgentRanks(AgentSurroundings(*around, tell, None, bulkheads, files, OwnFiles(spec, files, tell, print), print))
place = asdict(on_one_node(2, "127.0.0.1", 1))
resume = [int(Resume.FRESH), -1, 10, 0, -1]
order = {"attempt": 0, "place": place, "resume": resume, "lineage": "run:0/1", "seed": "1"}
failing = os.environ.get("FAILING", "")
def refuse(*_):
    raise OSError(24, "Too many open files")
if failing == "deaths":
    node_ranks.ExitWatch = refuse
if failing == "pages":
    map_pages, node_ranks.Pages = node_ranks.Pages, refuse
    ranks.spawn(order)
    ranks.poll()
    node_ranks.Pages = map_pages
    order["attempt"] = 1
ranks.spawn(order)
found = {"runs": ranks.describe_running()}
def count_beats(seconds):
    global held_at
    beats = 0
    for _ in range(round(100 * seconds)):
        held_at = clock() + 0.01
        beats += ranks.poll() is not None
    return beats
if order_to_all:
    count_beats(1.5)
    ranks.perform(order_to_all, {"leave": [], "stop": [9, 10**9]}[order_to_all])
    found["beats"] = count_beats(0.9)
    held_at = 0.0
ranks.kill()
found["ends"] = ranks.describe_running()
ask_for_port = ranks.find_free_port
def refuse_once():
    ranks.find_free_port = ask_for_port
    refuse()
if failing == "port":
    ranks.find_free_port = refuse_once
loop.run(Looking())
print(json.dumps(found | {"left": ranks.describe_running(), "told": told, "failed": failed}))
"""


def run_agent(home: Path, **more: str) -> dict[str, Any]:
    """Start two ranks, kill them, and wait until they have gone; what was found and told."""
    (home / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    command, environ = [sys.executable, "-c", AGENT], {**os.environ, **more}
    done = subprocess.run(command, cwd=home, capture_output=True, text=True, check=False, timeout=90, env=environ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_ranks_that_were_killed_here_are_not_offered_to_a_head_while_they_end(tmp_path: Path) -> None:
    """Taken out: a head takes them up, and what their agent did is told as a kill from outside."""
    found = run_agent(tmp_path)
    assert not found["failed"]
    assert found["runs"]["killed"] is False
    assert found["ends"] == {**found["runs"], "killed": True}, "nobody has looked at their ends yet"
    assert not found["left"]
    ended = [rank for name, more in found["told"] if name == "exits" for rank in more["codes"]]
    assert sorted(ended) == ["0", "1"]
    assert found["told"][-1][0] == "gone"


def test_that_the_ranks_have_gone_is_told_also_where_a_call_has_failed_meanwhile(tmp_path: Path) -> None:
    """Taken out: the head waits for ever for the word of a node that has ended its ranks."""
    found = run_agent(tmp_path, FAILING="port")
    assert found["failed"] == ["tell the head that the ranks have gone: [Errno 24] Too many open files"]
    assert [name for name, _ in found["told"]].count("gone") == 1


def test_of_ranks_that_cannot_be_started_it_is_told_that_none_is_left(tmp_path: Path) -> None:
    """Taken out: the head waits for ever for that word, and the next attempt never begins."""
    found = run_agent(tmp_path, FAILING="pages")
    told = [name for name, _ in found["told"] if name != "beat"]
    assert told[:3] == ["cannot_start", "gone", "started"]
    assert told[-1] == "gone"


def test_ranks_run_also_where_their_deaths_cannot_be_heard_at_once(tmp_path: Path) -> None:
    """Taken out: an attempt that cannot be started for the want of one descriptor that only gives a hint."""
    found = run_agent(tmp_path, FAILING="deaths")
    assert found["failed"] == ["hear at once of ranks that die: [Errno 24] Too many open files"]
    assert sorted(rank for name, more in found["told"] if name == "exits" for rank in more["codes"]) == ["0", "1"]


@pytest.mark.parametrize(("order", "least", "most"), [("leave", 0, 2), ("stop", 8, 11)])
def test_ranks_that_leave_cause_no_more_beats_and_ranks_that_stop_do(
    order: str, least: int, most: int, tmp_path: Path
) -> None:
    """Two thousand nodes leave at once in a restart, and their ends are told anyway."""
    found = run_agent(tmp_path, ORDER=order)
    assert least <= found["beats"] <= most
    assert found["told"][-1][0] == "gone"

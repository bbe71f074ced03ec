"""The ranks of a node: what their agent tells a head that it meets while they end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# A process of its own: an agent kills and reaps all children that it does not know, once its ranks have ended.
AGENT = """\
import json, os, sys, time
from dataclasses import asdict
from pathlib import Path
from ftlaunch.agent.node.node_ranks import AgentRanks, AgentSurroundings
from ftlaunch.common.bulkheads import Bulkheads
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.spec.nodes.placement import on_one_node
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.protocol import Resume

class Looking:
    # runs the loop until the ranks have gone
    def take(self, event):
        pass

    def look(self):
        ranks.look()

    def next_look(self):
        return time.monotonic() + 0.01

    def fail(self, error):
        raise error

    @property
    def over(self):
        return ranks.cleared

home, told, loop = Path.cwd(), [], EventLoop(time.monotonic)
flags = {"nproc_per_node": "2", "warm": "no", "run_dir": str(home)}
spec, helpers = resolve("sleeps.py", (), flags, {}), HelperProcesses()
warm = Warm(helpers, spec, {}, home / "warm.log", lambda *_, **__: None)
around = spec, home, warm, dict(os.environ), home / "control", "NO=MARK", loop, time.monotonic, helpers
bulkheads = Bulkheads(lambda failed: sys.exit(str(failed)))
ranks = AgentRanks(AgentSurroundings(*around, lambda name, **more: told.append([name, more]), None, bulkheads))
place = asdict(on_one_node(2, "127.0.0.1", 1))
resume = [int(Resume.FRESH), -1, 10, 0, -1]
ranks.spawn({"attempt": 0, "place": place, "resume": resume, "lineage": "run:0/1", "seed": "1"})
found = {"runs": ranks.running()}
ranks.kill()
found["ends"] = ranks.running()
loop.run(Looking())
print(json.dumps(found | {"left": ranks.running(), "told": told}))
"""


def test_ranks_that_were_killed_here_are_not_offered_to_a_head_while_they_end(tmp_path: Path) -> None:
    """Taken out: a head takes them up, and what their agent did is told as a kill from outside."""
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    command = [sys.executable, "-c", AGENT]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["runs"]["killed"] is False
    assert found["ends"] == {**found["runs"], "killed": True}, "nobody has looked at their ends yet"
    assert not found["left"]
    ended = [rank for name, more in found["told"] if name == "exits" for rank in more["codes"]]
    assert sorted(ended) == ["0", "1"]
    assert found["told"][-1][0] == "gone"

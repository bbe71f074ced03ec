"""The real head of a job of 64 nodes, whose agents are pretended: what a restart costs in messages, and that it ends.

`make bench-size` measures the same with 2,048 nodes. Here nothing is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench_size"
NODES, STANDBYS, MOST_MESSAGES = 64, 2, 10
# A process of its own: benchmarks have modules of the same names, and its agents are children that nobody else knows.
STORY = """\
import json, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from trial import Trial

home, nodes = Path(sys.argv[2]), int(sys.argv[3])
trial = Trial(home, nodes, standbys=int(sys.argv[4]), processes=1, steps=0.2, timeout=20.0)

def trains(attempt):
    # the ranks of an attempt have resumed, and its nodes are known to have begun
    trial.wait(lambda: len(trial.events("resumed")) > attempt, f"resume of attempt {attempt}")

try:
    trial.start_head()
    trial.start_agents()
    trains(0)
    agents = trial.agents[0]
    agents.ask("watch")
    agents.ask("lose rank", agent=3)
    trial.wait_starts(2, nodes)
    trains(1)
    told = agents.ask("traffic")
    trial.lose_agent("die", 5)
    trial.wait_starts(3, nodes - 1)
    trains(2)
    trial.succeed_head()
    trial.wait(lambda: trial.events("attempt_adopted"), "attempt that goes on")
    trial.finish()
    names = ("incident", "resumed", "attempt_adopted", "job_finished")
    print(json.dumps({**told, "events": {name: trial.events(name) for name in names}}))
finally:
    trial.close()
"""


@pytest.mark.long
def test_a_restart_of_64_nodes_costs_few_messages(tmp_path: Path) -> None:
    words = [str(BENCH), str(tmp_path), str(NODES), str(STANDBYS)]
    done = subprocess.run(
        [sys.executable, "-c", STORY, *words], capture_output=True, text=True, check=False, timeout=150
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert len(told["counts"]) == NODES, "the nodes that had part in the restart"
    assert told["counts"][-1] <= MOST_MESSAGES, told["names"]
    assert told["names"]["<spawn"] == told["names"]["<leave"] == told["names"][">gone"] == NODES
    assert told["names"][">exits"] <= 2 * NODES + 1, "of eight ranks each, and of the rank that was killed"
    events = told["events"]
    assert [event["kind"] for event in events["incident"]] == ["killed", "node-lost"], "the faults have fired"
    assert events["resumed"][1]["steps_lost"] == 0, "all nodes hold the step"
    assert len(events["attempt_adopted"]) == 1, "the next head has taken up all ranks"
    assert len(events["job_finished"]) == 1

"""The process that starts heads: it outlives signals that are meant for its agent, and its end hurts nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.leftovers import alive, assert_ended
from tests.support.waiting import wait_for

AGENT = """\
import os, select, sys
from types import SimpleNamespace
from pathlib import Path
from ftlaunch.nodes.agent.head.starter import READ_SIGN, HeadStarter
def be_head(write, order, term):
    os._exit(0)
one = SimpleNamespace(store=None, several=False)
starter = HeadStarter(SimpleNamespace(run_dir=Path(sys.argv[1]), nodes=one), be_head)
starter.start()
assert not starter.has_started
print("ready", flush=True)
for line in sys.stdin:
    starter.send_order(READ_SIGN)
    select.select([starter.fd], [], [])
    print(starter.read_answers(), starter.gone, flush=True)
"""

READS_ON = """\
import errno, os, resource, select, sys
from types import SimpleNamespace
from pathlib import Path
from ftlaunch.nodes.agent.head.starter import READ_SIGN, HeadStarter
spec = SimpleNamespace(run_dir=Path(sys.argv[1]), nodes=SimpleNamespace(store=None, several=False))
starter = HeadStarter(spec, lambda *_: os._exit(0))
starter.start()
print("ready", flush=True)
sys.stdin.readline()
select.select([starter.fd], [], [])
assert starter.read_answers() == []
assert starter.gone
resource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for room in range(4):
    try:
        starter.replace_by_thread()
    except OSError as error:
        assert error.errno == errno.EMFILE
    else:
        sys.exit(f"there was room for {room} descriptors only")
    assert starter.gone
    os.close(taken.pop())
starter.replace_by_thread()
assert not starter.gone
starter.send_order(READ_SIGN)
select.select([starter.fd], [], [])
print(starter.read_answers(), flush=True)
"""


LATER = """\
import os, select, sys, time
from types import SimpleNamespace
from pathlib import Path
from ftlaunch.nodes.agent.head.starter import TAKE_OVER, HeadStarter
home = Path(sys.argv[1])
def be_head(write, order, term):
    if order == TAKE_OVER:
        os.write(write, b"%d\\n" % os.getpid())
        os.close(write)
        while not (home / "over").exists():
            time.sleep(0.1)
        (home / "last words").touch()
    os._exit(0)
starter = HeadStarter(SimpleNamespace(run_dir=home, nodes=SimpleNamespace(store=None, several=False)), be_head)
starter.start()
starter.send_order(TAKE_OVER)
select.select([starter.fd], [], [])
[answer] = starter.read_answers()
assert starter.has_started
(home / "over").touch()
if sys.argv[2] == "dismissed":
    while Path(f"/proc/{answer['head']}").exists():
        time.sleep(0.01)
    starter.dismiss_head()
else:
    starter.wait_for_head()
print((home / "last words").exists())
"""


@pytest.fixture
def agent(tmp_path: Path):  # type: ignore[no-untyped-def]
    command = [sys.executable, "-c", AGENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def told(agent: subprocess.Popen[str], line: str = "") -> str:
    assert agent.stdin is not None
    assert agent.stdout is not None
    if line:
        agent.stdin.write(line + "\n")
        agent.stdin.flush()
    return agent.stdout.readline().strip()


def starter_of(agent: subprocess.Popen[str]) -> int:
    """Its process leads a session of its own, and is nobody's child: it is found by its command."""
    found = subprocess.run(["pgrep", "-f", agent.args[-1]], capture_output=True, text=True, check=True).stdout  # type: ignore[index]
    (pid,) = {int(one) for one in found.split()} - {agent.pid}
    return pid


def test_it_outlives_the_signals_of_a_scheduler_and_ends_with_its_agent(agent: subprocess.Popen[str]) -> None:
    """Taken out: systemd and others signal every process of a unit, and the agent ended with a bug's exit code."""
    assert told(agent) == "ready"
    pid = starter_of(agent)
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(pid, signum)
    assert told(agent, "look") == "[{'sign': {}}] False"
    assert agent.stdin is not None
    agent.stdin.close()
    assert agent.wait(60) == 0
    assert_ended([pid])


def test_its_end_is_seen_once_and_answers_nothing(agent: subprocess.Popen[str]) -> None:
    assert told(agent) == "ready"
    os.kill(starter_of(agent), signal.SIGKILL)
    assert told(agent, "look") == "[] True"


def test_signs_are_read_on_as_soon_as_there_are_descriptors(tmp_path: Path) -> None:
    """Each try that fails leaves as many descriptors as there were. Taken out (`made`): the fifth fails, too."""
    command = [sys.executable, "-c", READS_ON, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert told(agent) == "ready"
        os.kill(starter_of(agent), signal.SIGKILL)
        assert told(agent, "read on") == "[{'sign': {}}]"
    assert agent.returncode == 0


def test_a_head_that_waits_for_a_resolver_ends_with_its_agent(tmp_path: Path) -> None:
    """Taken out: it becomes the head later, of a job that has no agent."""
    program = AGENT.replace("    os._exit(0)", "    import time; time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as agent:
        found = wait_for(lambda: of_job(tmp_path) if len(of_job(tmp_path)) == 3 else None, "agent, starter and head")
        agent.kill()
    try:
        assert_ended(found)
    finally:
        for pid in filter(alive, found):
            os.kill(pid, signal.SIGKILL)


def test_an_agent_waits_for_the_last_words_of_a_head_that_it_has_started_later(tmp_path: Path) -> None:
    """Taken out: the head tells the agents of the end first, and a scheduler kills it before it has written it down."""
    assert_last_words(tmp_path, "waited for")


def test_an_agent_that_cannot_take_part_dismisses_a_head_that_has_ended_meanwhile(tmp_path: Path) -> None:
    """Taken out: the agent ends with a traceback."""
    assert_last_words(tmp_path, "dismissed")


def assert_last_words(home: Path, how: str) -> None:
    command = [sys.executable, "-c", LATER, str(home), how]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout == "True\n"


def of_job(home: Path) -> list[int]:
    """Pids of the processes that have this path as a word of their command."""
    told = subprocess.run(["pgrep", "-f", str(home)], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in told.split()]

"""An agent that is a container's first process goes on in a child: who must outlive it is not to become its child."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from tests.support.waiting import DEADLINE, wait_for

SCRIPT = """\
import os, signal, sys, time
from ftlaunch.nodes.agent.init_process import step_behind_init
if sys.argv[1] == "early":  # the first process gets no further before it is told so
    os.register_at_fork(after_in_parent=lambda: os.getpid() == 1 and sys.stdin.readline())
if sys.argv[1] == "late":
    waitpid = os.waitpid
    def reap_and_be_told_to_stop(pid, options):
        found = waitpid(pid, options)
        if os.getpid() == 1 and os.waitstatus_to_exitcode(found[1]) == 7:
            os.write(1, b"late\\n")
            os.kill(1, signal.SIGTERM)
        return found
    os.waitpid = reap_and_be_told_to_stop
step_behind_init()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
over, held = os.pipe()  # at its end once the orphan is over
if not os.fork():
    parent = os.getpid()
    if not os.fork():
        os.setsid()
        while os.getppid() == parent:
            time.sleep(0.01)
        os.write(1, f"orphan of {os.getppid()}\\n".encode())  # one call each: no line is torn by the other
    os._exit(0)
os.close(held)
os.wait()
os.write(1, f"agent {os.getpid()}\\n".encode())
how = sys.argv[1]
if how in ("ends", "late"):
    os.read(over, 1)
    sys.exit(7)
if how == "dies":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""
UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def first_process(how: str) -> subprocess.Popen[str]:
    command = [*UNSHARE, sys.executable, "-c", SCRIPT, how]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not may_unshare(), reason="unshare(1) may make no PID namespace here: run as root (Debian: util-linux)"
)


def test_orphans_become_children_of_the_first_process_and_the_agents_code_is_its_own() -> None:
    with first_process("ends") as process:
        assert process.stdout is not None
        told = process.stdout.read()
    assert "orphan of 1\n" in told
    assert "agent 1\n" not in told
    assert process.returncode == 7


@pytest.mark.parametrize("how", ["waits", "early"])
def test_a_signal_to_the_first_process_reaches_the_agent(how: str) -> None:
    """Taken out: without signals blocked around the fork one is lost that comes before the handlers are there."""
    with first_process(how) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("agent ") for line in lines), "behind the orphan's line, or before it"
        (first,) = wait_for(psutil.Process(process.pid).children, "the first process")
        first.send_signal(signal.SIGTERM)
        process.communicate("go on\n")
    assert process.returncode == 75


def test_an_agent_that_is_killed_ends_the_first_process_as_a_shell_says_it() -> None:
    with first_process("dies") as process:
        process.communicate()
    assert process.returncode == 128 + signal.SIGKILL


def test_a_signal_that_comes_after_the_agent_has_ended_changes_nothing() -> None:
    """Taken out (the signals are blocked): a traceback and exit code 1, as the signal can be passed on to nobody."""
    process = first_process("late")
    said, _ = process.communicate(timeout=DEADLINE)
    assert said.splitlines()[-1] == "late", "it was sent"
    assert process.returncode == 7

"""Helper processes are registered by being started: a sweep spares each of them, and kills what nobody registered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.leftovers import alive
from tests.support.waiting import wait_for

from ftlaunch.system.helper_process import PIPE, HelperProcess, HelperProcesses
from ftlaunch.system.own_modules import module

SLEEP = ["sleep", "1000"]

# A process of its own, for a sweep kills all that is below it.
SWEEP = """
import json, os, signal, subprocess, threading, time
from pathlib import Path
from ftlaunch.autopsy.client import Autopsy, collect_here
from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.notify.client import NotifierLink
from ftlaunch.ranks.fork_client import Warm
from ftlaunch.spec.resolve import resolve
from ftlaunch.system import processes
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.tools.preflight import disk

class Helpers(HelperProcesses):
    stop = False  # a helper stops before it begins: it is still there when the sweep comes
    stopped = ()

    def start(self, argv, **how):
        if not self.stop:
            return super().start(argv, **how)
        helper = super().start(["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *argv], **how)
        self.stopped += (helper.pid,)
        return helper

def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

home = Path.cwd()
processes.become_subreaper()
helpers = Helpers()
stranger = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
(home / "job.yaml").write_text("script: train.py\\nwarm: true\\nnotify: [{command: [cat], on: [incident]}]\\n")
(home / "train.py").touch()
spec = resolve(str(home / "job.yaml"), (), {"run_dir": str(home)}, os.environ)
files = FileThread(home)
saver = SaverLink(helpers, "NOBODY=1", [])
notifier = NotifierLink(helpers, spec, dict(os.environ))
warm = Warm(helpers, spec, dict(os.environ), home / "warm.log", files, lambda *_, **__: None)
helpers.stop = True
autopsy = Autopsy(collect_here(helpers, home), home, files, "attempt_0", [])
told = []
asking = threading.Thread(target=lambda: told.append(disk.ask(helpers, home, 60.0)))
asking.start()
until = time.monotonic() + 60
while not (len(helpers.stopped) == 2 and all(map(is_stopped, helpers.stopped))) and time.monotonic() < until:
    time.sleep(0.001)
five = processes.children(os.getpid())[1:]  # the first is the stranger
until = time.monotonic() + 60
while not processes.kill_descendants(helpers.pids, []) and time.monotonic() < until:
    time.sleep(0.001)
# by /proc: the sweep takes the exit status of what it kills
spared = [pid for pid in five if Path(f"/proc/{pid}").exists()]
for pid in spared:
    os.kill(pid, signal.SIGCONT)
asking.join()
while not autopsy.over():
    time.sleep(0.01)
found = {
    "stranger": Path(f"/proc/{stranger.pid}").exists(),
    "spared": [five.index(pid) for pid in spared],
    "disk": told[0]["error"],
    "running": [five.index(pid) for pid in helpers.pids],
    "saver": saver.close(10.0),
    "lost": [outcome.error for outcome in notifier.close()],
}
warm.close()
print(json.dumps(found | {"left": helpers.pids}))
"""


@pytest.fixture
def helpers() -> Iterator[HelperProcesses]:
    registry = HelperProcesses()
    yield registry
    for pid in registry.pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not registry.pids, "the end of the helpers")


@pytest.mark.parametrize("version", [(3, 10), (3, 11)])
def test_a_module_of_ours_takes_nothing_from_the_current_directory(tmp_path: Path, version: tuple[int, int]) -> None:
    """Taken out: with `python -m` a user's json.py ends the saver as often as it is started."""
    if sys.version_info < version:
        pytest.skip("this Python has no option -P, as those from 3.11 on have")
    for name in ("json", "random", "logging", "runpy", "argparse"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the file of the user')\n")
    (tmp_path / "given").write_text('{"a": 1}\n')
    command = module("json.tool", "--compact", "given", version=version)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, '{"a":1}\n'), done.stderr


def test_a_sweep_spares_all_five_helpers_and_nothing_else(tmp_path: Path) -> None:
    """Taken out by hand, for each of the five: one that start() does not register is killed, and not in `spared`."""
    command = [sys.executable, "-c", SWEEP]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    every = {"spared": [0, 1, 2, 3, 4], "running": [0, 1, 2], "left": []}
    assert json.loads(done.stdout) == {"stranger": False, "disk": "", "saver": 0, "lost": [], **every}


def test_a_helper_leaves_the_list_when_it_ends(helpers: HelperProcesses) -> None:
    first, second = helpers.start(SLEEP), helpers.start(SLEEP)
    assert helpers.pids == [first.pid, second.pid]
    assert first.end() == -signal.SIGKILL
    assert helpers.pids == [second.pid]
    second.kill()
    wait_for(lambda: not helpers.pids, "the second's end")
    assert second.returncode == -signal.SIGKILL, "its exit status is taken, and can be asked for still"


def test_one_that_cannot_be_started_is_not_listed(helpers: HelperProcesses, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        helpers.start([str(tmp_path / "none")])
    assert helpers.pids == []


def test_one_that_ends_in_time_is_not_killed(helpers: HelperProcesses) -> None:
    helper = helpers.start(["sh", "-c", "read line; exit 3"], stdin=PIPE)
    assert helper.stdin is not None
    helper.stdin.close()
    assert helper.end(patience=60.0) == 3


def test_it_leads_a_session_and_inherits_only_what_it_is_given(helpers: HelperProcesses) -> None:
    given, kept = os.memfd_create("given"), os.memfd_create("kept")
    try:
        os.set_inheritable(kept, True)
        helper = helpers.start(SLEEP, env={"ONLY": "this"}, pass_fds=(given,))
        descriptors = Path(f"/proc/{helper.pid}/fd")  # a program that starts reads its libraries by one more
        wait_for(lambda: {int(one.name) for one in descriptors.iterdir()} == {0, 1, 2, given}, "what it was given")
        assert os.getsid(helper.pid) == helper.pid
        assert Path(f"/proc/{helper.pid}/environ").read_bytes() == b"ONLY=this\0"
    finally:
        os.close(given)
        os.close(kept)


@pytest.mark.parametrize("outlives_us", [False, True])
def test_what_becomes_of_it_when_its_supervisor_is_killed(outlives_us: bool) -> None:
    code = (
        "import signal\nfrom ftlaunch.system.helper_process import HelperProcesses\n"
        f"print(HelperProcesses().start({SLEEP}, outlives_us={outlives_us}).pid, flush=True)\nsignal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        helper = int(supervisor.stdout.readline())
        supervisor.kill()
    try:
        if outlives_us:
            assert alive(helper)
        else:
            wait_for(lambda: not alive(helper), "the helper's end")
    finally:
        if alive(helper):
            os.kill(helper, signal.SIGKILL)


def test_a_module_is_run_by_our_own_python(helpers: HelperProcesses) -> None:
    helper: HelperProcess = helpers.start(module("ftlaunch.notify.webhook"), stdout=PIPE)
    said, _ = helper.communicate(timeout=60)
    assert (helper.returncode, said) == (1, b""), "it is given nothing to post"

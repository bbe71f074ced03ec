"""`ftctl check` and `ftlaunch --check`: real processes, a real disk, and ranks that are slow, dead or silent."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.disks import tmpfs
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.tools.preflight import disk as check_disk

NAMES = [
    "python",
    "torch",
    "devices",
    "matmul",
    "all_reduce",
    "memory",
    "/dev/shm",
    "limits",
    "disk",
    "locks",
    "port",
    "clock",
    "kernel",
    "pidfd",
    "memfd",
    "futex_waitv",
    "kmsg",
    "cgroup",
]


class Place:
    """A directory with a script, and what of the checks is left alive or lying about."""

    def __init__(self, home: Path) -> None:
        self.home, self.tag = home, f"FT_TEST={uuid.uuid4().hex}"
        (home / "tmp").mkdir()
        (home / "train.py").write_text("print('it ran')\n")

    def run(self, module: str, *words: str, **popen: Any) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TMPDIR": str(self.home / "tmp"), "FT_TEST": self.tag.partition("=")[2]}
        done = subprocess.run([sys.executable, "-m", module, *words], cwd=self.home, env=env, capture_output=True,
                              text=True, check=False, timeout=150, **popen)  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def check(self, *words: str, **popen: Any) -> tuple[int, dict[str, dict[str, str]]]:
        """Exit code of `ftctl check --json`, and its findings by name."""
        done = self.run("ftlaunch.cli.ctl", "check", "--json", *words, **popen)
        told = json.loads(done.stdout)
        assert told["could_run"] == (done.returncode == 0)
        return done.returncode, {finding["name"]: finding for finding in told["checks"]}

    def spec(self, **more: Any) -> str:
        """A job spec with a checkpoint directory that is not there yet."""
        spec = {"script": "train.py", "job_id": "j", "checkpoint_dir": str(self.home / "deep/er"), **more}
        (self.home / "job.yaml").write_text(json.dumps(spec))
        return "job.yaml"

    def python(self, text: str) -> str:
        """A Python of the job's own: sh that ends in the real one."""
        wrapper = self.home / "python"
        wrapper.write_text(f'#!/bin/sh\n{text}\nexec {sys.executable} "$@"\n')
        wrapper.chmod(0o755)
        return str(wrapper)

    def assert_clean(self) -> None:
        wait_for(lambda: not carriers(self.tag), "the end of all processes of the check", 10.0)
        assert list((self.home / "tmp").iterdir()) == []
        assert {path.name for path in self.home.iterdir()} <= {"tmp", "train.py", "job.yaml", "python", "slow"}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for pid in carriers(place.tag):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_a_machine_that_is_fine(place: Place) -> None:
    code, found = place.check(place.spec(nproc_per_node=2))
    assert code == 0, found
    assert list(found) == NAMES
    assert {name for name in found if found[name]["status"] == "bad"} == set()
    assert "on 2 ranks" in found["all_reduce"]["found"]
    assert str(place.home) in found["disk"]["found"], "measured where the directory would be made"
    place.assert_clean()


@pytest.mark.slow
def test_the_report_without_a_job_is_a_line_a_check(place: Place) -> None:
    done = place.run("ftlaunch.cli.ctl", "check")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == NAMES
    assert lines[-1].startswith("the job could run")
    place.assert_clean()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("no.yaml",), "ftctl: cannot read no.yaml: no such file or directory\n"),
        (("no.py",), "ftctl: cannot run no.py: no such file or directory; it was looked for in "),
        (("--timeout", "x"), "ftctl: cannot read the command line: "),
    ],
)
def test_bad_usage_is_one_sentence(place: Place, words: tuple[str, ...], says: str) -> None:
    done = place.run("ftlaunch.cli.ctl", "check", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(says)


# --- faults: the ranks ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_slow_rank_is_named_and_does_not_fail(place: Place) -> None:
    slow = place.home / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import builtins, time\n"
        "real = builtins.__import__\n"
        "def slowly(name, *args, **more):\n"
        "    module = real(name, *args, **more)\n"
        "    if name == 'torch' and args[0]['__name__'] == '__main__':\n"
        "        builtins.__import__ = real\n"
        "        mm = module.mm\n"
        "        module.mm = lambda *a: (time.sleep(0.5), mm(*a))[1]\n"
        "    return module\n"
        "builtins.__import__ = slowly\n"
    )
    python = place.python(f'[ "$RANK" = 1 ] && export PYTHONPATH="{slow}:$PYTHONPATH"')
    code, found = place.check(place.spec(nproc_per_node=2, python=python))
    assert (code, found["matmul"]["status"]) == (0, "warn"), found
    assert "; rank 1 (cpu) takes " in found["matmul"]["found"]
    place.assert_clean()


def test_a_rank_that_dies_is_named(place: Place) -> None:
    python = place.python('[ "$RANK" = 1 ] && { echo "no device for you" >&2; exit 7; }')
    code, found = place.check(place.spec(nproc_per_node=2, python=python))
    assert code == 1
    assert found["ranks"]["found"] == "0 of 2 answered: rank 1 ended with exit code 7 (no device for you)"
    place.assert_clean()


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_and_swept_with_its_children(place: Place) -> None:
    """Taken out by hand: without kill_descendants in _sweep the sleeping child in its own session is left."""
    python = place.python('[ "$RANK" = 1 ] && { setsid sleep 1000 & exec sleep 1000; }')
    code, found = place.check(place.spec(nproc_per_node=2, python=python), "--timeout", "15s")
    assert code == 1
    assert "rank 0 gave no answer within 15 s (waits for the other ranks)" in found["ranks"]["found"]
    assert "rank 1 gave no answer within 15 s (it said nothing)" in found["ranks"]["found"]
    place.assert_clean()


def test_an_interpreter_without_torch(place: Place) -> None:
    blind = place.home / "slow"
    blind.mkdir()
    (blind / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    code, found = place.check(place.spec(python=place.python(f'export PYTHONPATH="{blind}"')))
    assert (code, found["torch"]["status"], found["ranks"]["status"]) == (1, "bad", "skip")
    assert "libcudart.so.13: cannot open shared object file" in found["torch"]["found"]


# --- faults: the machine ----------------------------------------------------------------------------------


def test_a_port_that_is_taken_a_full_disk_and_few_open_files(place: Place) -> None:
    """All in one check: each is found, whatever the others are."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    with tmpfs(place.home / "tmp" / "disk", "16m") as disk, socket.create_server(("127.0.0.1", 0)) as taken:
        spec = place.spec(checkpoint_dir=str(disk / "checkpoints"), master_port=taken.getsockname()[1])
        code, found = place.check(spec, preexec_fn=few)
        assert list(disk.iterdir()) == []
    assert code == 1
    assert {name for name in found if found[name]["status"] == "bad"} == {"port", "disk", "limits"}
    assert "Address already in use" in found["port"]["found"]
    assert "no space left on device" in found["disk"]["found"]
    assert found["limits"]["advice"] == "ulimit -n 65536"
    (place.home / "tmp" / "disk").rmdir()
    place.assert_clean()


def test_an_address_of_another_machine_and_an_interpreter_that_is_none(place: Place) -> None:
    code, found = place.check(place.spec(master_addr="192.0.2.1", python="./no-such-python"))
    assert (code, found["port"]["status"], found["python"]["status"]) == (1, "bad", "bad")
    assert "./no-such-python cannot be started: No such file or directory" in found["python"]["found"]
    assert "matmul" not in found
    place.assert_clean()


def test_a_disk_that_does_not_answer_is_left_at_the_time_limit(tmp_path: Path) -> None:
    """A Python does not even start within this limit."""
    assert check_disk.ask(HelperProcesses(), tmp_path, 0.001) == {"error": "no answer within 1 ms"}
    assert list(tmp_path.iterdir()) == []


# --- before a launch --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_checked_and_launched(place: Place) -> None:
    done = place.run("ftlaunch", "--check", "--run-dir", "tmp/run", "train.py")
    assert done.returncode == 0, done.stderr
    assert "it ran" in done.stdout
    assert "the job could run" in done.stderr
    assert "the job could run" not in done.stdout
    shutil.rmtree(place.home / "tmp/run")
    place.assert_clean()


def test_checked_and_not_launched(place: Place) -> None:
    python = place.python("exit 3")
    done = place.run("ftlaunch", "--check", place.spec(python=python))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"ftlaunch: cannot start: python: {python} ended with exit code 3")
    assert not (place.home / "runs").exists()
    assert place.run("ftlaunch", "--check", "no.py").returncode == 2
    place.assert_clean()


@pytest.mark.long
def test_ctrl_c_leaves_nothing(place: Place) -> None:
    reached = place.home / "slow"
    python = place.python(f'[ -n "$RANK" ] && [ "$2" = rank ] && {{ touch {reached}; exec sleep 1000; }}')
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "check", place.spec(nproc_per_node=2, python=python)]
    env = {**os.environ, "TMPDIR": str(place.home / "tmp"), "FT_TEST": place.tag.partition("=")[2]}
    with subprocess.Popen(command, cwd=place.home, env=env, stderr=subprocess.PIPE, text=True) as check:
        wait_for(reached.exists, "the ranks")
        check.send_signal(signal.SIGINT)
        _, err = check.communicate(timeout=60)
    assert (check.returncode, err.strip()) == (130, "ftctl: interrupted")
    place.assert_clean()

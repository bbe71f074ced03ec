"""The witness answers while the main thread is stuck, and is otherwise not noticed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import wait_for

from ftlaunch.autopsy import worker_server
from ftlaunch_contract.protocol import witness_path

pytestmark = pytest.mark.long

CALL = (
    "import pathlib, sys, torch\nfrom ftlaunch_hooks.process import worker_server\n"
    "worker_server.start(pathlib.Path(sys.argv[1]), 0)\n"
)


def run(code: str, memory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CALL + code, str(memory)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_nothing_is_said_and_a_forked_child_ends(tmp_path: Path) -> None:
    """Destroyed in the child, the witness would join a thread that is not there, for ever."""
    code = "import os\nif os.fork() == 0:\n    sys.exit(3)\nprint(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    done = run(code, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


FORKS = """
import json, os, pathlib, sys, torch, torch.distributed
from ftlaunch_hooks.process import worker_server
for name, code in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        for fd, path in ((1, f"{name}.out"), (2, f"{name}.err")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), fd)
        exec(code)
        print("on it goes", flush=True)
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.wait()[1]), flush=True)  # or the next child prints it too
"""


def test_one_of_the_attempt_before_is_replaced_and_where_it_cannot_be_it_is_not(tmp_path: Path) -> None:
    """Each in a process forked from one that has imported torch."""
    start = "worker_server.start(pathlib.Path({!r}), 0)"
    long, memory = tmp_path / ("x" * 120), tmp_path / "m"
    long.mkdir()
    memory.mkdir()
    cases = {
        "first": start.format(str(memory)),
        "second": start.format(str(memory)),
        "path-too-long": start.format(str(long)),
        "no-standard-error": f"os.close(2); {start.format(str(memory))}",
        "no-such-class": f"del torch._C._distributed_c10d._WorkerServer; {start.format(str(memory))}",
    }
    command = [sys.executable, "-c", FORKS, json.dumps(cases)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.splitlines(), done.stderr) == ([f"{name} 0" for name in cases], "")
    assert {(tmp_path / f"{name}.out").read_text() for name in cases} == {"on it goes\n"}
    assert {(tmp_path / f"{name}.err").read_text() for name in cases} == {""}
    assert witness_path(memory, 0).is_socket()


def test_it_tells_whether_the_lock_is_held(tmp_path: Path) -> None:
    """pthread_mutex_lock on a locked mutex, called so that the interpreter's lock is kept."""
    code = (
        "import ctypes\n"
        "mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)\n"
        "library.pthread_mutex_lock(mutex)\n"
        "print('free', flush=True)\n"
        "sys.stdin.readline()\n"
        "print('held', flush=True)\n"
        "library.pthread_mutex_lock(mutex)\n"
    )
    command = [sys.executable, "-c", CALL + code, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == "free\n"
            assert not worker_server.lock_held(witness_path(tmp_path, 0), 30.0)
            assert worker_server.flight_recorder(witness_path(tmp_path, 0), 30.0).get("entries", []) == []
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "held\n"
            wait_for(lambda: worker_server.lock_held(witness_path(tmp_path, 0), 1.0), "the lock to be held")
            assert worker_server.flight_recorder(witness_path(tmp_path, 0), 30.0).get("entries", []) == []
        finally:
            process.kill()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(worker_server.NoAnswer, match="no witness: No such file or directory"):
        worker_server.lock_held(witness_path(tmp_path, 0), 1.0)

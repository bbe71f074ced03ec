"""Causes told from what real processes leave behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ftlaunch.diagnosis import (
    SIGNALS,
    Evidence,
    classify,
    first_cause,
    hang,
    last_traceback,
    main_thread,
    spawn_failure,
    waits_for_peers,
)

VICTIM = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 12, in <module>
Traceback (most recent call last):
  File "/home/me/train.py", line 12, in <module>
    dist.all_reduce(x)
  File "/usr/lib/python3/torch/distributed/distributed_c10d.py", line 3021, in all_reduce
    work.wait()
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:37214
"""
CULPRIT = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 9, in <module>
    batch = next(batches)
ValueError: bad batch 17
"""


def evidence(rank: int = 0, returncode: int = 1, log: str = "", **more: Any) -> Evidence:
    known: dict[str, Any] = {
        "step": 5, "attached": True, "loop_left": False, "error_file": None, "order": 0, **more,
    }  # fmt: skip
    return Evidence(rank=rank, returncode=returncode, log_tail=log, **known)


def left_by(source: str, tmp_path: Path) -> Evidence:
    """What a real process that runs `source` leaves behind."""
    script = tmp_path / "train.py"
    script.write_text(source)
    done = subprocess.run(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return evidence(returncode=done.returncode, log=done.stdout)


@pytest.mark.parametrize(
    ("source", "kind", "sentence", "trace_has"),
    [
        ("print('step 5')\ndef f():\n    raise ValueError('bad batch 17')\nf()\n", "exception",
         "rank 0 failed with ValueError: bad batch 17 after step 5", "in f"),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('x')\n", "exception",
         "failed with KeyError: 'x'", "KeyError"),
        ("raise RuntimeError('CUDA error: out of memory\\n  Compile with X to see more.')\n", "exception",
         "failed with RuntimeError: CUDA error: out of memory", "Compile with X"),
        ("import no_such_module_here\n", "exception", "failed with ModuleNotFoundError: No module named", "import"),
        ("def f(:\n", "exception", "failed with SyntaxError: invalid syntax", "def f(:"),
        ("if 1:\npass\n", "exception", "failed with IndentationError: expected an indented block", "pass"),
        ("import sys; sys.exit(3)\n", "exit", "rank 0 exited with code 3 after step 5", ""),
        ("import sys; sys.exit('no data')\n", "exit", "rank 0 exited with code 1", ""),
        ("print('done')\n", "left-early", "left with exit code 0 before its training loop was over", ""),
        ("import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)\n", "signal",
         "rank 0 crashed with SIGSEGV", "Fatal Python error: Segmentation fault"),
        ("import ctypes; ctypes.string_at(0)\n", "signal", "rank 0 crashed with SIGSEGV", ""),
        ("import os; os.abort()\n", "signal", "SIGABRT", ""),
        ("import os; os.kill(os.getpid(), 9)\n", "signal", "killed by SIGKILL", ""),
        ("import os; os.kill(os.getpid(), 15)\n", "signal", "rank 0 was ended by SIGTERM", ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGRTMIN)\n", "signal", "ended by signal 34", ""),
        ("import socket as s\na, b = s.socket(), s.socket()\na.bind(('127.0.0.1', 0)); a.listen()\n"
         "b.bind(a.getsockname())\n", "port", "OSError: [Errno 98] Address already in use", "b.bind"),
    ],
)  # fmt: skip
def test_ends_of_real_processes(source: str, kind: str, sentence: str, trace_has: str, tmp_path: Path) -> None:
    cause = classify(left_by(source, tmp_path))
    assert cause.kind == kind
    assert sentence in cause.sentence
    assert trace_has in cause.trace
    assert bool(trace_has) == bool(cause.trace)


def test_the_sentence_says_where_a_rank_was() -> None:
    assert classify(evidence(step=-1)).sentence == "rank 0 exited with code 1 before its first step"
    assert classify(evidence(rank=3, step=12)).sentence == "rank 3 exited with code 1 after step 12"


def test_the_error_file_wins_over_the_log() -> None:
    file = {"message": {"message": "ValueError: bad", "extraInfo": {"py_callstack": CULPRIT}}}
    cause = classify(evidence(error_file=file, log=VICTIM))
    assert (cause.kind, cause.signature) == ("exception", "exception:ValueError: bad batch #")
    for broken in ({}, {"message": "text"}, {"message": {"extraInfo": None}}, {"message": {"extraInfo": {}}}):
        assert classify(evidence(error_file=broken, log=VICTIM)).kind == "comm"


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("RuntimeError: CUDA error: device-side assert triggered\nKernel errors may come late.\nTry X=1.\n",
         "RuntimeError: CUDA error: device-side assert triggered"),
        ("ValueError: one\n\nDuring handling of the above exception, another exception occurred:\n\n"
         'Traceback (most recent call last):\n  File "b.py", line 2, in g\nKeyError: 2\n', "KeyError: 2"),
        ("ValueError: a note follows\nthe note\n", "ValueError: a note follows"),
        ("AssertionError\n", "AssertionError"),
    ],
)  # fmt: skip
def test_the_error_is_what_follows_the_last_frame(end: str, error: str) -> None:
    stack = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    work()\n    ^^^^^^\n{end}'
    file = {"message": {"extraInfo": {"py_callstack": stack}}}
    for left in (evidence(error_file=file), evidence(log=stack)):
        assert classify(left).sentence == f"rank 0 failed with {error} after step 5"


def test_signatures_are_equal_for_the_same_error_at_another_place() -> None:
    def signature(text: str) -> str:
        return classify(evidence(log=f"Traceback (most recent call last):\n  File\n{text}\n")).signature

    assert signature("ValueError: batch 17 at 0x7f00aa") == signature("ValueError: batch 4 at 0x51")
    assert signature("ValueError: batch 17") != signature("ValueError: sample 17")


@pytest.mark.parametrize("order", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("culprit", [0, 1])
def test_the_victim_is_never_the_culprit(culprit: int, order: tuple[int, int]) -> None:
    logs = [VICTIM, VICTIM]
    logs[culprit] = CULPRIT
    both = [evidence(rank, 1, log, order=order[rank]) for rank, log in enumerate(logs)]
    assert first_cause(both).rank == culprit
    assert first_cause(both).sentence == f"rank {culprit} failed with ValueError: bad batch 17 after step 5"


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [/pytorch/gloo/pair.cc:538] Connection closed by peer [10.0.0.2]:41",
        "RuntimeError: [pair.cc:1] Read error [10.0.0.2]:41: Connection reset by peer",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error",
        "torch.distributed.DistBackendError: [1] is setting up NCCL communicator: ncclRemoteError",
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    ],
)
def test_words_of_victims(line: str) -> None:
    log = f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n{line}\n'
    assert classify(evidence(log=log)).kind == "comm"


def test_a_victim_that_was_seen_first_yields_to_a_killed_peer() -> None:
    victim, killed = evidence(0, 1, VICTIM, order=1), evidence(1, -9, order=2)
    assert first_cause([victim, killed]).kind == "signal"
    assert first_cause([victim]).kind == "comm"


def test_of_two_culprits_the_first_counts() -> None:
    assert first_cause([evidence(0, 1, CULPRIT, order=2), evidence(1, -11, order=1)]).rank == 1
    assert first_cause([evidence(0, 1, CULPRIT), evidence(1, -11)]).rank == 0


def test_only_the_last_traceback_counts_and_it_is_short() -> None:
    handled = CULPRIT.replace("17", "1")
    deep = CULPRIT.replace("    batch", "    frame()\n" * 100 + "    batch")
    trace = last_traceback(f"{handled}went on\n{deep}bye\n")
    assert trace.endswith("ValueError: bad batch 17")
    assert len(trace.splitlines()) <= 25
    assert "lines left out" in trace
    assert last_traceback("all is well\n") == ""
    assert last_traceback("Traceback (most recent call last):") == "Traceback (most recent call last):"


def test_signal_names_are_the_systems() -> None:
    import signal

    assert all(getattr(signal, name) == number for number, name in SIGNALS.items())


def test_other_causes() -> None:
    assert spawn_failure(2, "train: No such file").sentence == "rank 2 could not be started: train: No such file"
    assert hang(1, 7, "rank 1 is hung", "File x").signature == "hang"


# --- stacks -----------------------------------------------------------------------------------------------

DUMP = """\
import faulthandler, sys, threading
sys.path.insert(0, {root!r})
{waiting}
entered, over = threading.Event(), threading.Event()
def helper():
    entered.set()
    over.wait()
other = threading.Thread(target=helper)
other.start()
entered.wait()
def train():
    {body}
train()
over.set()
"""
DUMP_NOW = "faulthandler.dump_traceback(all_threads=True)"


def dump(tmp_path: Path, body: str, waiting: str = "") -> str:
    source = DUMP.format(root=str(tmp_path), body=body, waiting=waiting)
    return "some output\n" + left_by(source, tmp_path).log_tail


def test_main_thread_of_a_real_dump(tmp_path: Path) -> None:
    frames = main_thread(dump(tmp_path, DUMP_NOW))
    assert re.fullmatch(r'File ".*train\.py", line \d+ in train', frames[0])
    assert len(frames) == 2
    assert not any("helper" in frame for frame in frames)


def test_a_rank_inside_a_collective_waits_for_peers(tmp_path: Path) -> None:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    for directory in (package.parent, package):
        (directory / "__init__.py").touch()
    (package / "collective.py").write_text(f"import faulthandler\ndef all_reduce():\n    {DUMP_NOW}\n")
    stack = dump(tmp_path, "all_reduce()", "from torch.distributed.collective import all_reduce")
    assert waits_for_peers(stack) is True
    assert waits_for_peers(dump(tmp_path, DUMP_NOW)) is False
    assert waits_for_peers("") is None
    assert waits_for_peers("no dump here\n") is None


def test_abort_at_exit_behind_a_traceback_is_the_exception() -> None:
    log = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: odd\n'
        "terminate called without an active exception\nFatal Python error: Aborted\n\n"
        "Thread 0x00007fc094bf2b80 (most recent call first):\n  <no Python frame>\n"
    )
    cause = classify(Evidence(1, -6, 4, True, False, None, log, 0))
    assert (cause.kind, cause.sentence) == ("exception", "rank 1 failed with ValueError: odd after step 4")

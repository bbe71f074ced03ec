"""Causes told from what a process leaves behind: its exit status, its log, its error file."""

from __future__ import annotations

from typing import Any

import pytest

from ftlaunch.common.signal_names import SIGNALS, signal_name
from ftlaunch.policy import failure_diagnosis
from ftlaunch.policy.failure_diagnosis import LONG_LIFE_SECONDS, Cause, Evidence
from ftlaunch.policy.tracebacks import last_traceback
from ftlaunch.spec.parsing.rule_parser import builtin, parse_rules

RULES = builtin()

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
    known: dict[str, Any] = {"step": 5, "seen": 0, "error_file": None, "order": 0, **more}
    return Evidence(rank=rank, returncode=returncode, log_tail=log, **known)


def classify(left: Evidence) -> Cause:
    return failure_diagnosis.classify(left, RULES)


def first_cause(all_left: list[Evidence]) -> Cause:
    return failure_diagnosis.first_cause(all_left, RULES)


def test_the_sentence_says_where_a_rank_was() -> None:
    assert classify(evidence(step=-1)).sentence == "rank 0 exited with code 1 before its first step"
    assert classify(evidence(rank=3, step=12)).sentence == "rank 3 exited with code 1 after step 12"


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/me/train.py", line 9, in <module>
  |     raise ExceptionGroup("many", errors)
  | ExceptionGroup: many (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/me/train.py", line 5, in load
    | ValueError: bad batch 17
    +---------------- 2 ----------------
    | torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
    +------------------------------------
"""


def test_a_group_of_exceptions_is_named_and_its_members_are_looked_at() -> None:
    """Taken out: the sentence names the line that Python draws below the group."""
    cause = classify(evidence(error_file={"message": {"extraInfo": {"py_callstack": GROUP}}}))
    assert cause.sentence.startswith("rank 0 failed with ExceptionGroup: many (2 sub-exceptions) after step 5")
    assert cause.kind == "gpu-memory"


def test_a_message_of_megabytes_is_cut_short() -> None:
    """Taken out: the journal holds the whole message."""
    cause = classify(evidence(log=CULPRIT.rstrip() + "x" * 20_000_000))
    assert len(cause.sentence) < 300
    assert len(cause.trace) < 3000
    assert cause.trace.endswith("characters left out")


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
    assert first_cause([victim, killed]).kind == "killed"
    assert first_cause([victim]).kind == "comm"


def test_of_two_culprits_the_first_counts() -> None:
    assert first_cause([evidence(0, 1, CULPRIT, order=2), evidence(1, -11, order=1)]).rank == 1
    assert first_cause([evidence(0, 1, CULPRIT), evidence(1, -11)]).rank == 0


def test_only_the_last_traceback_counts_and_it_is_short() -> None:
    handled = CULPRIT.replace("17", "1")
    deep = CULPRIT.replace("    batch", "    frame()\n" * 100 + "    batch")
    trace = last_traceback(f"{handled}went on\n{deep}bye\n")
    assert trace.endswith("ValueError: bad batch 17")
    shown = classify(evidence(log=f"{handled}went on\n{deep}bye\n")).trace
    assert len(shown.splitlines()) <= 25
    assert "lines left out" in shown
    assert last_traceback("all is well\n") == ""
    assert last_traceback("Traceback (most recent call last):") == "Traceback (most recent call last):"


@pytest.mark.parametrize(
    ("returncode", "says"),
    [(-2, "was ended by SIGINT"), (1, "was ended by SIGINT"), (3, "failed with KeyboardInterrupt")],
)
def test_an_interrupt_is_one_also_where_python_has_forgotten_it(returncode: int, says: str) -> None:
    """Python exits with 1 after a KeyboardInterrupt if eval() is called on the way out; no other code is its own."""
    log = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nKeyboardInterrupt\n'
    assert classify(evidence(returncode=returncode, log=log)).sentence == f"rank 0 {says} after step 5"


def test_a_class_of_the_script_is_told_without_a_module() -> None:
    """Python 3.10 shows `__main__.Failed`, newer ones `Failed`."""
    log = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n__main__.Failed: odd 7\n'
    old, new = (classify(evidence(log=text)) for text in (log, log.replace("__main__.", "")))
    assert old.sentence == "rank 0 failed with Failed: odd 7 after step 5"
    assert old.signature == new.signature


def test_signal_names_are_the_systems() -> None:
    import signal

    assert all(getattr(signal, name) == number for number, name in SIGNALS.items())
    assert (signal_name(9), signal_name(34)) == ("SIGKILL", "signal 34")


def test_other_causes() -> None:
    spawn = failure_diagnosis.spawn_failure(2, "train: No such file", RULES)
    assert (spawn.sentence, spawn.action) == ("rank 2 could not be started: train: No such file", "give-up")
    hang = failure_diagnosis.hang(1, 7, "rank 1 is hung", "File x", RULES)
    assert (hang.kind, hang.signature, hang.action) == ("hang", "hang", "restart")


def test_what_a_job_says_of_hangs_holds() -> None:
    rules = parse_rules([{"how": "hang", "class": "hang", "action": "give-up", "meaning": "never seen here"}])
    hang = failure_diagnosis.hang(1, 7, "rank 1 is hung", "", (*rules, *RULES))
    assert (hang.action, hang.sentence) == ("give-up", "rank 1 is hung (never seen here)")


@pytest.mark.parametrize(
    ("step", "seen", "lived", "kind", "where"),
    [
        (0, 0, 1.0, "exception-at-start", "in its first step"),
        (0, 0, LONG_LIFE_SECONDS, "exception-at-start", "in its first step"),
        (1, 0, 1.0, "exception", "after step 1"),
        (-1, 0, LONG_LIFE_SECONDS - 1, "exception-at-start", "before its first step"),
        (-1, 0, LONG_LIFE_SECONDS, "exception", f"{LONG_LIFE_SECONDS / 60:.0f} min 0 s after its start"),
        (-1, 3, 1.0, "exception", "after 3 optimizer steps"),
    ],
)
def test_errors_of_the_script_before_the_first_step(step, seen, lived, kind, where) -> None:
    """Where nothing is known of steps, a script that lived long has made some."""
    cause = classify(evidence(log=CULPRIT, step=step, seen=seen, lived=lived))
    assert (cause.kind, cause.sentence) == (kind, f"rank 0 failed with ValueError: bad batch 17 {where}")


OOM = "Out of memory: Killed process {} (python) total-vm:1kB, anon-rss:1kB"
WORKER = "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. Details are lost."


@pytest.mark.parametrize(
    ("returncode", "log", "kernel", "kind"),
    [
        (-9, "", "oom_kill of cgroup /x went from 0 to 1", "host-memory"),
        (-9, "", "Memory cgroup out of memory: Killed process 42 (python)", "host-memory"),
        (-9, "", OOM.format(42), "host-memory"),
        (-9, "", OOM.format(43), "killed"),
        (-9, "", "eth0: link up", "killed"),
        (-9, "", "", "killed"),
        (-11, "", OOM.format(42), "signal"),
        (1, WORKER, OOM.format(77), "host-memory"),
        (1, WORKER, OOM.format(78), "killed"),
        (1, WORKER, "", "killed"),
    ],
)
def test_out_of_memory_is_told_from_other_kills(returncode: int, log: str, kernel: str, kind: str) -> None:
    trace = f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n{log}\n' if log else ""
    cause = classify(evidence(returncode=returncode, log=trace, kernel=kernel, pid=42))
    assert cause.kind == kind
    assert ("lack of host memory" in cause.sentence) == (kind == "host-memory")


def test_a_traceback_that_was_dealt_with_does_not_explain_a_kill() -> None:
    log = CULPRIT.replace("ValueError: bad batch 17", "OSError: [Errno 28] No space left on device") + "went on\n"
    assert classify(evidence(returncode=-9, log=log)).kind == "killed"


def test_source_lines_are_no_errors() -> None:
    log = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    if nan or "EADDRINUSE":\nKeyError: 1\n'
    assert classify(evidence(log=log)).kind == "exception"


def test_the_errors_an_error_came_from_count() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "s.py", line 1, in save\nOSError: [Errno 28] No space left\n'
        "\nThe above exception was the direct cause of the following exception:\n\n"
        + "Traceback (most recent call last):\n" + '  File "t.py", line 2, in f\n    f()\n' * 40
        + "RuntimeError: cannot save\n"
    )  # fmt: skip
    cause = classify(evidence(error_file={"message": {"extraInfo": {"py_callstack": trace}}}))
    assert cause.kind == "disk"
    assert cause.sentence.startswith("rank 0 failed with RuntimeError: cannot save after step 5 (no space left")
    assert len(cause.trace.splitlines()) <= 25


def test_nothing_fits_is_a_class_too() -> None:
    assert failure_diagnosis.classify(evidence(returncode=3), ()).kind == "unknown"


def test_abort_at_exit_behind_a_traceback_is_the_exception() -> None:
    log = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: odd\n'
        "terminate called without an active exception\nFatal Python error: Aborted\n\n"
        "Thread 0x00007fc094bf2b80 (most recent call first):\n  <no Python frame>\n"
    )
    cause = classify(Evidence(1, -6, 4, True, None, log, 0))
    assert (cause.kind, cause.sentence) == ("exception", "rank 1 failed with ValueError: odd after step 4")


def test_a_rank_that_trains_without_an_optimizer_is_never_before_its_first_step() -> None:
    cause = classify(evidence(step=-1, steps_unknown=True, lived=3.0))
    assert cause.kind != "exception-at-start"
    assert cause.sentence.endswith(
        "3.0 s after its start (its steps are not known: no optimizer of torch.optim makes them)"
    )
    assert classify(evidence(step=0, steps_unknown=True)).sentence.endswith("in its first step"), "it has attached"

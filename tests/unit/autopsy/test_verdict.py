"""Sentences from recorded stacks, /proc texts and flight recorders."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.dumps import PACKAGES, dump

from ftlaunch.autopsy import flight_recorder, rank_dump
from ftlaunch.autopsy.rank_dump import RankDump
from ftlaunch.autopsy.verdict import sentence, with_dumps
from ftlaunch.health.hang_detection import laggard
from ftlaunch.ranks.view import RankView

TRAIN = "/home/me/train.py"
ALL_REDUCE = (
    f"{PACKAGES}/torch/distributed/distributed_c10d.py 3252 all_reduce",
    f"{PACKAGES}/torch/distributed/c10d_logger.py 83 wrapper",
    f"{TRAIN} 95 <module>",
)


def entry(number: int, name: str = "all_reduce", group: str = "0", over: bool = False, sizes: str = "[[4]]") -> Any:
    return {"collective_seq_id": number, "profiling_name": f"gloo:{name}", "process_group": [group, "desc"],
            "retired": over, "state": "scheduled", "is_p2p": False, "input_sizes": sizes}  # fmt: skip


def recorder(*entries: Any, **groups: str) -> dict[str, Any]:
    config = {name: {"ranks": ranks} for name, ranks in groups.items()}
    return {"entries": list(entries), "pg_config": config, "version": "2.10"}


def rank(
    number: int, *frames: str, other: tuple[str, ...] = (), recorded: dict[str, Any] | None = None,
    lock: bool | None = False, children: tuple[Any, ...] = (), source: str = "", **main: Any,
) -> RankDump:  # fmt: skip
    facts = {
        "pid": 7, "threads": [{"tid": 7, "state": "S", "syscall": "futex"} | main], "lock_held": lock,
        "children": list(children), "sources": {f"{TRAIN}:88": source},
    }  # fmt: skip
    return rank_dump.read(number, dump(*frames, other=other) if frames else "", facts, recorded)


WAITS = rank(0, *ALL_REDUCE, recorded=recorder(entry(1236, over=True), entry(1237)))
BEHIND = recorder(entry(1235, over=True), entry(1236, over=True))
LOADER = (f"{PACKAGES}/torch/utils/data/dataloader.py 733 __next__", f"{TRAIN} 88 <module>")
WORKER = {"pid": 9, "state": "S", "stack": dump("/home/me/data.py 3 __getitem__")}
HERE = f"{TRAIN} 88 fetch"


@pytest.mark.parametrize(
    ("culprit", "says"),
    [
        (rank(1, HERE, recorded=BEHIND, syscall="clock_nanosleep"), "sleeps at train.py:88 (in fetch)"),
        (rank(1, HERE, recorded=BEHIND, syscall="", wchan="hrtimer_nanosleep"), "sleeps at train.py:88 (in fetch)"),
        (rank(1, HERE, recorded=BEHIND, state="R", syscall="running", busy=0.97),
         "runs at train.py:88 (in fetch) (97% of a processor)"),
        (rank(1, HERE, recorded=BEHIND, state="T"), "was stopped at train.py:88 (in fetch)"),
        (rank(1, HERE, recorded=BEHIND, lock=True),
         "is in C code that keeps the interpreter's lock (GIL), called at train.py:88 (in fetch) (sleeping in futex)"),
        (rank(1, HERE, recorded=BEHIND, lock=True, state="R", syscall="", busy=1.0),
         "is in C code that keeps the interpreter's lock (GIL), called at train.py:88 (in fetch) (running)"),
        (rank(1, HERE, recorded=BEHIND, state="D", syscall="read", file="/nfs/data.bin"),
         "is in an uninterruptible system call at train.py:88 (in fetch) (in disk sleep in read of /nfs/data.bin)"),
        (rank(1, HERE, recorded=BEHIND, syscall="read", file="/nfs/data.bin"),
         "is in read of /nfs/data.bin at train.py:88 (in fetch)"),
        (rank(1, HERE, recorded=BEHIND, syscall="ppoll"), "is at train.py:88 (in fetch) (sleeping in ppoll)"),
        (rank(1, HERE, recorded=BEHIND, source="with lock:"), "waits for a lock or for another thread at train.py:88"),
        (rank(1, HERE, other=ALL_REDUCE, recorded=recorder(entry(1236, over=True), entry(1237, "barrier")),
              source="self.lock.acquire()"),
         "another thread at train.py:88 (in fetch), which may be held by the rank's thread that is in barrier #1237"
         " at train.py:95"),
        (rank(1, *LOADER, recorded=BEHIND, children=(WORKER,)),
         "waits for its data loader at train.py:88, whose worker with pid 9 is at data.py:3 (in __getitem__)"),
        (rank(1, *LOADER, recorded=BEHIND, children=({"pid": 9, "state": "D"},)),
         "waits for its data loader at train.py:88, whose workers are 9 (D)"),
        (rank(1, state="D", syscall="fsync", file="/x"), "shows no Python stack (in disk sleep in fsync of /x)"),
        (rank(1), "shows no Python stack (sleeping in futex)"),
    ],
)  # fmt: skip
def test_where_the_culprit_is_and_who_waits(culprit: RankDump, says: str) -> None:
    found = {0: WAITS, 1: culprit, 2: rank(2, *ALL_REDUCE, recorded=recorder(entry(1237)))}
    said = sentence(1, found)
    assert says in said
    assert said.endswith("; ranks 0 and 2 wait for it in all_reduce #1237 at train.py:95")


def test_without_a_flight_recorder_the_stacks_decide() -> None:
    found = {0: rank(0, *ALL_REDUCE), 1: rank(1, HERE, syscall="clock_nanosleep")}
    assert sentence(1, found) == "it sleeps at train.py:88 (in fetch); rank 0 waits for it in all_reduce at train.py:95"
    assert culprit(found) == 1


def test_the_interpreter_is_ending() -> None:
    ending = rank_dump.read(1, "Current thread 0x00007f (most recent call first):\n  <no Python frame>\n", {}, None)
    assert sentence(1, {0: WAITS, 1: ending}).startswith("it runs no Python code: its interpreter is ending")
    assert culprit({0: WAITS, 1: ending}) == 1


def test_who_waits_by_a_handle() -> None:
    """`work.wait()`, or the device: the innermost frame is the job's own; the recorder tells."""
    handle = rank(0, f"{TRAIN} 60 <module>", recorded=recorder(entry(5)))
    late = rank(1, f"{TRAIN} 61 <module>", recorded=recorder(entry(4, over=True)))
    assert culprit({0: handle, 1: late}) == 1
    assert sentence(1, {0: handle, 1: late}).endswith("; rank 0 waits for it in all_reduce #5 at train.py:60")


def test_different_collectives_under_the_same_number() -> None:
    other = rank(1, *ALL_REDUCE, recorded=recorder(entry(1237, "broadcast")))
    assert sentence(0, {0: WAITS, 1: other}) == (
        "it waits in all_reduce #1237 at train.py:95, but rank 1 is in broadcast #1237 at train.py:95:"
        " they disagree on their collectives"
    )


def test_different_sizes_of_the_same_collective() -> None:
    other = rank(1, *ALL_REDUCE, recorded=recorder(entry(1237, sizes="[[5]]", over=True)))
    assert "but rank 1 was in all_reduce #1237 of [[5]]: they disagree" in sentence(0, {0: WAITS, 1: other})


def test_groups_in_different_orders() -> None:
    config = {"a": "[0, 1]", "b": "[0, 1]"}
    one = rank(0, *ALL_REDUCE, recorded=recorder(entry(3, group="a"), **config))
    other = rank(1, *ALL_REDUCE, recorded=recorder(entry(2, group="b"), **config))
    bystander = rank(2, HERE, recorded=recorder())
    assert "but rank 1 is in all_reduce #2 of group b at train.py:95: they take their groups in different orders" in (
        sentence(0, {0: one, 1: other, 2: bystander})
    )
    assert flight_recorder.behind({n: r.flight for n, r in ((0, one), (2, bystander)) if r.flight}) == set(), (
        "not of the group"
    )


def test_all_in_the_same_collective() -> None:
    found = {number: rank(number, *ALL_REDUCE, recorded=recorder(entry(1237))) for number in range(3)}
    assert sentence(0, found) == (
        "it waits in all_reduce #1237 at train.py:95, and so do ranks 1 and 2: all have entered it,"
        " none gets out (the network?)"
    )


def culprit(found: dict[int, RankDump]) -> int:
    views = [RankView(n, 0.0, True, True, "train", 3, 10.0, True, 0.1, False) for n in found]
    return laggard(with_dumps(views, found)).rank


def test_the_one_that_has_not_entered_is_the_laggard() -> None:
    """Though its stack says that it waits for others: in the backward pass, say."""
    late = rank(1, *ALL_REDUCE, recorded=BEHIND)
    assert culprit({0: WAITS, 1: late}) == 1


@pytest.mark.parametrize("dump", [{}, {"entries": None}, {"entries": [{}]}, {"entries": [{"collective_seq_id": "x"}],
                                  "pg_config": {"": {"ranks": "[]"}, "x": 3}}])  # fmt: skip
def test_a_recorder_that_speaks_another_dialect(dump: dict[str, Any]) -> None:
    assert flight_recorder.read(flight_recorder.kept(dump)).pending is None


def test_what_is_long_ago_is_not_kept() -> None:
    old = [entry(n, over=n != 3) for n in range(1, 200)]
    kept = [e["collective_seq_id"] for e in flight_recorder.kept(recorder(*old))["entries"]]
    assert kept == [3, *range(200 - flight_recorder.KEPT, 200)]

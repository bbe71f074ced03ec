"""Who can only be blocked after a rank's death, from stacks as they are, and who is given the grace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftlaunch.autopsy import blocked_ranks
from ftlaunch.autopsy.flight_recorder import Collective, FlightRecord
from ftlaunch.autopsy.rank_dump import Child, RankDump

PACKAGES = "/venv/lib/python3.11/site-packages"
PYTHON = "/usr/lib/python3.11"
C10D = f"{PACKAGES}/torch/distributed/distributed_c10d.py"
LOGGER = f"{PACKAGES}/torch/distributed/c10d_logger.py 83 wrapper"
TRAIN = "/home/me/train.py 95 train"
MODULE = "/home/me/train.py 120 <module>"
ALL_REDUCE = (f"{C10D} 3252 all_reduce", LOGGER, TRAIN, MODULE)
BACKWARD = (f"{PACKAGES}/torch/autograd/graph.py 979 _engine_run_backward",
            f"{PACKAGES}/torch/autograd/__init__.py 395 backward", f"{PACKAGES}/torch/_tensor.py 623 backward", TRAIN,
            MODULE)  # fmt: skip
PENDING = FlightRecord((Collective("0", 5, "all_reduce", "[[1]]", False),))
WAITING = (f"{PYTHON}/threading.py 331 wait", f"{PYTHON}/threading.py 629 wait")
RUN = (f"{PYTHON}/threading.py 982 run", f"{PYTHON}/threading.py 1045 _bootstrap_inner")


def lines(frames: tuple[str, ...]) -> str:
    parts = (frame.split(maxsplit=2) for frame in frames)
    return "".join(f'  File "{path}", line {line} in {function}\n' for path, line, function in parts)


def rank(number: int, *frames: str, threads: tuple[tuple[str, ...], ...] = (), **facts: Any) -> RankDump:
    others = "".join(f"Thread 0x00007f63a9cfe6c0 (most recent call first):\n{lines(of)}\n" for of in threads)
    stack = f"{others}Current thread 0x00007f63e1663b80 (most recent call first):\n{lines(frames)}"
    return RankDump(number, stack, **({"state": "S", "system_call": "futex"} | facts))


def is_stranded(one: RankDump) -> bool:
    return set(blocked_ranks.waits({one.rank: one})) == {one.rank}


@pytest.mark.parametrize(
    "inside",
    [
        (f"{C10D} 3252 all_reduce", LOGGER),
        (f"{C10D} 5357 barrier", LOGGER),
        (f"{C10D} 2803 recv", LOGGER),
        (f"{C10D} 4422 _all_gather_base",),
        (f"{C10D} 1070 _store_based_barrier", f"{C10D} 1900 init_process_group", LOGGER),
        (f"{C10D} 2100 _new_process_group_helper", f"{C10D} 6020 _new_group_with_tag", f"{C10D} 5850 new_group"),
        (f"{C10D} 2930 _coalescing_manager", f"{PYTHON}/contextlib.py 144 __exit__", f"{C10D} 3040 batch_isend_irecv"),
        (f"{PACKAGES}/torch/distributed/rendezvous.py 199 _create_c10d_store",
         f"{PACKAGES}/torch/distributed/rendezvous.py 280 _env_rendezvous_handler", f"{C10D} 1892 init_process_group"),
        (f"{PACKAGES}/torch/_ops.py 1269 __call__",
         f"{PACKAGES}/torch/distributed/_functional_collectives.py 140 wait_tensor"),
        # a checkpoint of all ranks: it will not be whole any more
        (f"{C10D} 3500 gather_object", f"{PACKAGES}/torch/distributed/checkpoint/utils.py 90 gather_object"),
    ],
)  # fmt: skip
def test_in_a_call_that_waits_for_others(inside: tuple[str, ...]) -> None:
    assert is_stranded(rank(0, *inside, TRAIN, MODULE))


@pytest.mark.parametrize(
    "frames",
    [
        (TRAIN, MODULE),
        (f"{PACKAGES}/torch/optim/adam.py 400 _single_tensor_adam", TRAIN, MODULE),
        (f"{PACKAGES}/torch/nn/modules/linear.py 125 forward", TRAIN, MODULE),
        BACKWARD,
        (f"{C10D} 3410 _object_to_tensor", f"{C10D} 3500 all_gather_object", LOGGER, TRAIN, MODULE),
        (f"{C10D} 2400 destroy_process_group", TRAIN, MODULE),
        (f"{PACKAGES}/torch/distributed/checkpoint/filesystem.py 300 _write_item", TRAIN, MODULE),
        (f"{PYTHON}/threading.py 629 wait", TRAIN, MODULE),
        (),
    ],
)
def test_at_work(frames: tuple[str, ...]) -> None:
    assert not is_stranded(rank(0, *frames))


SAVING = (f"{PACKAGES}/torch/serialization.py 944 save", "/home/me/train.py 20 leave")


@pytest.mark.parametrize(
    "handler",
    [
        (*SAVING, *ALL_REDUCE),  # it came in the middle of a call
        ("/home/me/train.py 20 <lambda>", *ALL_REDUCE),
        (f"{C10D} 5357 barrier", "/home/me/train.py 20 leave", *ALL_REDUCE),  # it waits for others itself
        (f"{C10D} 5357 barrier", "/home/me/train.py 20 on_sigterm", TRAIN, MODULE),
        (f"{C10D} 5357 barrier", f"{PACKAGES}/lightning/signals.py 9 sigterm_handler_fn", TRAIN, MODULE),
    ],
)
def test_in_a_signal_handler(handler: tuple[str, ...]) -> None:
    assert not is_stranded(rank(0, *handler))


def test_in_the_backward_pass_only_where_a_collective_holds_it_up() -> None:
    assert is_stranded(rank(0, *BACKWARD, flight=PENDING, busy=0.01))
    assert not is_stranded(rank(0, *BACKWARD, flight=PENDING, busy=0.9))
    assert not is_stranded(rank(0, *BACKWARD, flight=FlightRecord()))


@pytest.mark.parametrize(
    ("thread", "stranded_all_the_same"),
    [
        ((*WAITING, f"{PACKAGES}/tqdm/_monitor.py 60 run", *RUN), True),
        ((f"{PYTHON}/selectors.py 415 select", f"{PYTHON}/asyncio/base_events.py 1922 _run_once", *RUN), True),
        ((f"{PACKAGES}/torch/utils/data/_utils/pin_memory.py 30 do_one_step", *RUN), False),
        ((f"{PYTHON}/multiprocessing/queues.py 113 get",
          f"{PACKAGES}/torch/utils/data/_utils/pin_memory.py 30 do_one_step", *RUN), True),
        ((), True),
        (SAVING, False),
        ((f"{PYTHON}/ssl.py 1200 send", "/home/me/upload.py 3 put", *RUN), False),
        ((*WAITING, "/home/me/train.py 30 save_in_background", *RUN), False),  # for a thread of its own, say
        ((f"{PACKAGES}/torch/distributed/checkpoint/filesystem.py 300 _write_item", *RUN), False),
        (("/home/me/train.py 40 work", *RUN), False),
    ],
)  # fmt: skip
def test_its_other_threads(thread: tuple[str, ...], stranded_all_the_same: bool) -> None:
    assert is_stranded(rank(0, *ALL_REDUCE, threads=(thread,))) is stranded_all_the_same


SAVER = f"Current thread 0x00007f63e1663b80 (most recent call first):\n{lines(SAVING)}"


@pytest.mark.parametrize(
    ("child", "stranded_all_the_same"),
    [(Child(7, "pt_data_worker", "S"), True), (Child(7, "python", "D"), False), (Child(7, "cp", "R"), False),
     (Child(7, "python", "S", SAVER), False)],
)  # fmt: skip
def test_its_children(child: Child, stranded_all_the_same: bool) -> None:
    assert is_stranded(rank(0, *ALL_REDUCE, children=(child,))) is stranded_all_the_same


def test_one_that_cannot_be_seen_has_the_grace() -> None:
    assert not is_stranded(RankDump(0, state="S"))
    assert not is_stranded(RankDump(0, "some output", state="S"))
    for facts in ({"lock_held": True}, {"stopped": True}, {"state": "D"}):
        assert not is_stranded(rank(0, *ALL_REDUCE, **facts))


def test_all_that_are_left_or_none() -> None:
    """While one works it may bring what the others wait for."""
    blocked, at_work = rank(0, *ALL_REDUCE), rank(1, TRAIN, MODULE)
    assert blocked_ranks.waits({0: blocked, 1: at_work}) == {}
    assert set(blocked_ranks.waits({0: blocked, 1: replace(blocked, rank=1)})) == {0, 1}


def test_twice_in_the_same_place() -> None:
    waits = blocked_ranks.waits({0: rank(0, *ALL_REDUCE, flight=PENDING), 1: rank(1, *ALL_REDUCE)})
    assert not blocked_ranks.lost({}, waits)
    assert not blocked_ranks.lost({}, {})
    assert blocked_ranks.lost(waits, waits)
    assert blocked_ranks.lost(waits, {0: waits[0]}), "the other has gone"
    next_one = FlightRecord((replace(PENDING.entries[0], number=6),))
    assert not blocked_ranks.lost(waits, blocked_ranks.waits({0: rank(0, *ALL_REDUCE, flight=next_one)})), "it goes on"
    elsewhere = blocked_ranks.waits({0: rank(0, f"{C10D} 5357 barrier", TRAIN, MODULE, flight=PENDING)})
    assert not blocked_ranks.lost(waits, elsewhere)


def test_the_sentence() -> None:
    waits = blocked_ranks.waits({0: rank(0, *ALL_REDUCE, flight=PENDING), 1: rank(1, *ALL_REDUCE)})
    assert blocked_ranks.sentence(2, waits) == (
        "without rank 2 all that are left can only be blocked: rank 0 in all_reduce #5 at train.py:95 (in train),"
        " rank 1 in all_reduce at train.py:95 (in train); killing them without grace"
    )


SLEEPS = ("/home/me/train.py 40 fetch", TRAIN, MODULE)


def test_one_that_hangs_and_that_a_signal_has_not_moved() -> None:
    """It sleeps where it slept when the hang was seen; the other rank waits for it."""
    hung, other = rank(1, *SLEEPS, system_call="clock_nanosleep"), rank(0, *ALL_REDUCE, flight=PENDING)
    dumps = {0: other, 1: hung}
    assert blocked_ranks.waits(dumps) == {}
    before = blocked_ranks.waits(dumps, hung)
    assert blocked_ranks.lost(before, blocked_ranks.waits(dumps, hung))
    assert blocked_ranks.sentence(1, before) == (
        "SIGTERM has moved nothing in rank 1, which hangs, and others wait: rank 0 in all_reduce #5 at train.py:95"
        " (in train), rank 1 sleeps at train.py:40 (in fetch); killing them without grace"
    )


@pytest.mark.parametrize(
    "now",
    [
        rank(1, "/home/me/train.py 41 fetch", TRAIN, MODULE),
        rank(1, "/home/me/train.py 7 save", *SLEEPS),
        rank(1, *SLEEPS, state="R"),
        rank(1, *SLEEPS, busy=0.9),
        rank(1, *SLEEPS, threads=(("/home/me/train.py 60 save_it", *RUN),)),
        rank(1, *SLEEPS, children=(Child(7, "python", "R"),)),
    ],
)
def test_one_that_hangs_and_may_have_something_to_finish(now: RankDump) -> None:
    """It has moved, it works, or a thread or a child of it does."""
    assert blocked_ranks.waits({0: rank(0, *ALL_REDUCE), 1: now}, rank(1, *SLEEPS)) == {}

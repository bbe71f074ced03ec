"""Dumps as faulthandler writes them."""

from __future__ import annotations

import pytest
from tests.support.dumps import PACKAGES, WAITS_IN, dump

from ftlaunch.autopsy.stacks import Frame, main_lines, main_thread


@pytest.mark.parametrize(
    "text", ["", "no dump here\n", "Thread 0x00007f (most recent call first):\n  <no Python frame>\n"]
)
def test_no_frame(text: str) -> None:
    assert main_thread(text) is None
    assert main_lines(text) == []


@pytest.mark.parametrize(
    ("inside", "wait", "call"),
    [
        (("torch/distributed/distributed_c10d.py 3252 all_reduce", "torch/distributed/c10d_logger.py 83 wrapper"),
         "collective", "all_reduce"),
        (("torch/autograd/graph.py 824 _engine_run_backward", "torch/_tensor.py 581 backward"),
         "collective", "backward"),
        (("torch/distributed/rendezvous.py 278 _env_rendezvous_handler",
          "torch/distributed/distributed_c10d.py 1710 init_process_group"), "init", "init_process_group"),
        (("torch/utils/data/dataloader.py 1288 _try_get_data", "torch/utils/data/dataloader.py 733 __next__"),
         "loader", "__next__"),
        ((f"{WAITS_IN} 300 wait_until", "ftlaunch_hooks/job/job.py 90 steps"), "boundary", "steps"),
        (("numpy/core.py 1 dot",), "", "dot"),
        ((), "", ""),
    ],
)  # fmt: skip
def test_what_it_waits_for(inside: tuple[str, ...], wait: str, call: str) -> None:
    frames = [f"{PACKAGES}/{frame}" for frame in inside]
    main = main_thread(dump(*frames, "/home/me/train.py 88 fetch", "/home/me/train.py 120 <module>"))
    assert main is not None
    assert (main.wait, main.call) == (wait, call)
    assert main.own == Frame("/home/me/train.py", 88, "fetch")


@pytest.mark.parametrize(
    ("inside", "wait"),
    [("threading.py 629 wait", "lock"), ("queue.py 171 get", "lock"), ("subprocess.py 1264 wait", "child"),
     ("socket.py 706 readinto", "network"), ("json/decoder.py 1 decode", "")],
)  # fmt: skip
def test_waits_in_the_standard_library(inside: str, wait: str) -> None:
    main = main_thread(dump(f"/usr/lib/python3.12/{inside}", "/home/me/train.py 88 <module>"))
    assert main is not None
    assert main.wait == wait


def test_a_script_that_is_installed_itself() -> None:
    """The outermost frame that is not Python's own."""
    main = main_thread(
        dump(f"{PACKAGES}/lib/io.py 1 read", f"{PACKAGES}/tool/train.py 9 main", "<frozen.runpy> 88 _run")
    )
    assert main is not None
    assert str(main.own) == "train.py:9 (in main)"

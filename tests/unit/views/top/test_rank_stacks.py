"""Stacks as they are shown."""

from __future__ import annotations

from ftlaunch.views.top.rank_stacks import stack_lines

DUMP = """Current thread 0x00007f (most recent call first):
  <no Python frame>
Thread 0x00007e (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 468 in select
Thread 0x00007d (most recent call first):
  File "/job/train.py", line 88 in fetch
  File "/job/train.py", line 9 in <module>
"""


def test_the_main_thread_comes_first_and_threads_without_python_are_left_out() -> None:
    assert list(stack_lines(DUMP)) == [
        "main thread, at train.py:88 (in fetch):",
        "  fetch:88  /job/train.py",
        "  <module>:9  /job/train.py",
        "",
        "thread 1:",
        "  select:468  /usr/lib/python3.11/selectors.py",
    ]


def test_what_is_no_dump_shows_nothing() -> None:
    assert list(stack_lines("")) == ["main thread:", "  runs no Python"]

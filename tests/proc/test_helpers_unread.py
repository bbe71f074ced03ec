"""A helper whose answer nobody reads, as who asked was killed meanwhile, ends without a traceback, its duty done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for

from ftlaunch.system.own_modules import module


@contextmanager
def unread(name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A helper whose stdout was closed by its reader."""
    reading, writing = os.pipe()
    helper = subprocess.Popen(module(name, *words), stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    try:
        yield helper
    finally:
        helper.kill()
        helper.communicate()


def as_line(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def test_a_saver_whose_supervisor_was_killed_ends_the_ranks_all_the_same(tmp_path: Path) -> None:
    """The supervisor dies while a checkpoint is written: the answer is lost, the ranks must not be left."""
    marker = f"FTLAUNCH_MEMORY_DIR={tmp_path}"
    name, _, value = marker.partition("=")
    rank = subprocess.Popen([sys.executable, "-c", "input()"], env={**os.environ, name: value}, stdin=subprocess.PIPE)
    environment = Path(f"/proc/{rank.pid}/environ")
    wait_for(lambda: marker.encode() in environment.read_bytes(), "the rank")
    try:
        with unread("ftlaunch.checkpoints.saver", marker) as saver:
            assert saver.stdin is not None
            saver.stdin.write(as_line({"do": "find", "checkpoint_dir": str(tmp_path), "step": 0}))
            saver.stdin.flush()  # it stays open: the lost answer alone must tell
            assert saver.wait(60) == 0
            assert saver.stderr is not None
            assert saver.stderr.read() == b""
        assert rank.wait(60) == -9
    finally:
        rank.kill()
        rank.communicate()


def test_a_copier_whose_agent_was_killed_says_nothing(tmp_path: Path) -> None:
    begin = {"do": "begin", "token": "00", "memory_dir": str(tmp_path), "bandwidth": None, "address": "nowhere"}
    with unread("ftlaunch.nodes.peers.copier") as copier:
        _, complaint = copier.communicate(as_line(begin), timeout=60)
    assert (copier.returncode, complaint) == (0, b"")


def test_a_notice_whose_notifier_was_killed_says_nothing() -> None:
    notice = {"url": "http://127.0.0.1:1/", "body": "{}", "timeout": 5.0}
    with unread("ftlaunch.notify.webhook") as webhook:
        _, complaint = webhook.communicate(as_line(notice), timeout=60)
    assert (webhook.returncode, complaint) == (1, b"")

"""The ranks' agreement on replicas, where one of them is a process that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torch
from tests.support.snapshots import make_pages

from ftlaunch_contract.pages.page import open_pages
from ftlaunch_contract.protocol import own_start_time, process_start_time
from ftlaunch_hooks.tensors.replica_agreement import Replica, ReplicaAgreement


def test_a_rank_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    """Without a supervisor nobody tells the others, and a frozen launcher does not end them."""
    make_pages(tmp_path, 2)
    pages = open_pages(tmp_path, 2)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        pages[0].begin(0, os.getpid(), own_start_time())
        pages[1].begin(0, other.pid, process_start_time(other.pid))
        threading.Timer(0.3, other.kill).start()
        held = {"model.a": Replica("model", 0, "F32", (2,))}
        agreement = ReplicaAgreement(0, pages, ["model"])
        assert not agreement.meet(0, held, {"model.a": torch.zeros(2)}, patience_seconds=60.0)
        assert other.wait(60) == -signal.SIGKILL

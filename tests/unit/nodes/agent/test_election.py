"""Whether a process that was started to be the head becomes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftlaunch.nodes.agent.head import election
from ftlaunch.nodes.agent.head.election import Order
from ftlaunch.nodes.agent.head.starter import START, SUCCEED, TAKE_OVER
from ftlaunch.nodes.channel.claims import Claims, Sign, this_machine
from ftlaunch.spec.resolve import resolve

GONE = Sign(1, "127.0.0.1", 29500, this_machine(), 2**22 + 1, 1, 7)  # above all pids


def stand(home: Path, what: bytes, gone: int = 1) -> Any:
    """A try; what it listens at is taken down."""
    flags = {"nnodes": "2", "rdzv_endpoint": "127.0.0.1:29500", "run_dir": str(home), "job_id": "j", "module": "true"}
    spec = resolve("json", [], flags, {})
    return election.stand(
        spec.nodes, Claims(home), lambda _, port: SimpleNamespace(port=port, close=lambda: None), Order(what, gone)  # type: ignore[arg-type]
    )  # fmt: skip


def shown(home: Path, sign: Sign) -> None:
    assert Claims(home).claim(sign)


@pytest.mark.parametrize("order", [SUCCEED, TAKE_OVER])
def test_only_a_node_that_comes_new_begins_a_job_after_one_that_is_over(tmp_path: Path, order: bytes) -> None:
    """Taken out: a third head waited for nodes of a job that had ended well."""
    shown(tmp_path, replace(GONE, over=0))
    assert stand(tmp_path, order) is None
    assert stand(tmp_path, START).sign.term == 2


@pytest.mark.parametrize("order", [START, SUCCEED, TAKE_OVER])
def test_a_head_that_is_gone_is_followed(tmp_path: Path, order: bytes) -> None:
    shown(tmp_path, GONE)
    elected = stand(tmp_path, order)
    assert (elected.sign.term, elected.before) == (2, GONE)


def test_only_the_head_that_was_seen_to_be_gone_is_taken_over(tmp_path: Path) -> None:
    """Taken out: of two nodes that see the end of a head at one time the second deposes the first."""
    shown(tmp_path, GONE)
    shown(tmp_path, replace(GONE, term=2))
    assert stand(tmp_path, TAKE_OVER, gone=1) is None
    assert stand(tmp_path, TAKE_OVER, gone=2).sign.term == 3

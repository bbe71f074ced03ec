"""Whether the agent of a lost node has ended is asked for again where it could not be asked."""

from __future__ import annotations

import errno
import select
import socket
from typing import Any

import pytest
from tests.support.waiting import wait_for

from ftlaunch.nodes.cluster.membership.fences import PortProbe


@pytest.mark.parametrize("missing", ["poll", "socket"])
def test_without_memory_for_the_question_nothing_is_known(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Taken out: the head ends with 70 at the next look after a node was lost."""
    tried = list[str]()

    def refuse(*_: Any) -> Any:
        tried.append(missing)
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with socket.create_server(("127.0.0.1", 0), backlog=0) as agent, socket.create_connection(agent.getsockname()):
        probe = PortProbe(*agent.getsockname())  # its connection waits: the backlog is full
        if missing == "poll":
            assert not probe.is_dead()
        with monkeypatch.context() as patched:
            patched.setattr(*((select, "poll") if missing == "poll" else (socket, "socket")), refuse)
            assert not probe.is_dead()
    assert tried == [missing]
    probe.close()
    wait_for(probe.is_dead, "that nobody listens there")

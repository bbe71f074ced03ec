"""The voter: a process of each node that keeps who the head is, where the nodes of a job share nothing.

The agent starts it on the head's order, and reads its answers. It ends with the agent. Its requests come one JSON
object a line on stdin:

    {"do": "begin", "run_dir", "token": hexadecimal, "address": the numeric address to listen at, "term" and
     "head": term and process of the head that has ordered it}; may be repeated for another head
        -> {"did": "begin", "name", "port"} or {"did": "begin", "error"}

Other processes ask it over the network (voter_links.py), with the token's handshake:

    {"do": "ask", "number", "to": the name of the voter that is meant, "offered": a record, or an empty mapping}
        -> {"number", "taken": whether the voter keeps `offered` now, "kept": a record or an empty mapping,
            "age": seconds since it took that, or -1 if it was started since}
        or {"number", "error"}: this is another voter, or its disk has failed

A vote, or who the voters are, is on the disk before the answer is sent. A voter waits for its disk then, and is silent
as long as the disk is. Further signs of the same head are kept in memory only.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.channel.listener import Listener
from ftlaunch.nodes.channel.votes.records import (
    Record,
    VoterFile,
    dump,
    is_of_another_job,
    must_be_written,
    parse,
    take,
)
from ftlaunch.nodes.channel.votes.voter_file import VoterFiles, this_boot
from ftlaunch.reporting.messages import PREFIX
from ftlaunch.system.answer_line import AnswerReader, write_answer
from ftlaunch_contract.files import untrusted_json

VERSION = "votes 1"
"""the version of the messages; both ends must have the same"""
_IDLE_SECONDS = 3600.0  # between two turns of the loop in which nothing happens


class VoterProcess:
    """One voter, from its first request to the end of its agent. Drives its event loop."""

    def __init__(self, loop: EventLoop[Any]) -> None:
        """Wait for requests on stdin."""
        self._loop = loop
        self._requests = AnswerReader(sys.stdin.fileno())
        self._files: VoterFiles | None = None
        self._content = VoterFile(name="", boot="", port=0)
        self._taken_at = -math.inf  # when the record was taken, in monotonic seconds
        self._listener: Listener | None = None
        self._peers: set[Connection] = set()
        self.over = False
        loop.register(sys.stdin.fileno(), self._on_requests)

    def handle(self, event: object) -> None:
        """Ignore `event`: nothing posts one."""

    def poll(self) -> None:
        """Do nothing: whatever happens is announced by a descriptor."""

    def next_poll_at(self) -> float:
        """Return when the loop must turn at the latest, in monotonic seconds."""
        return time.monotonic() + _IDLE_SECONDS

    def fail(self, error: Exception) -> None:
        """End with `error`: the agent starts another voter. Raises the error."""
        raise error

    # --- the agent --------------------------------------------------------------------------------------------

    def _on_requests(self) -> None:
        requests = self._requests.read()
        if requests is None:
            self.over = True
            return
        for request in requests:
            try:
                self._begin(request)
            except OSError as error:
                self._answer({"did": "begin", "error": f"{error.filename or 'its port'}: {error.strerror}"})
            else:
                self._answer({"did": "begin", "name": self._content.name, "port": self._content.port})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        if not write_answer(answer):
            self.over = True

    def _begin(self, request: Mapping[str, Any]) -> None:
        """Listen, and take up what this machine's voter has kept, as far as it counts under this head.

        The voters that another job's record names elect another head, and this node has left them. Its voter gets
        another name, and so never votes among them again.

        Raises:
            OSError: the file cannot be read or written, or another voter of this run dir is running, or there is no
                port.
        """
        if self._files is None:
            files = VoterFiles(Path(request["run_dir"]))
            if not files.lock():
                raise BlockingIOError(None, "another voter is running", request["run_dir"])
            try:
                kept = files.read()
            except OSError:
                files.unlock()  # what cannot be read is left alone: it may name the voters
                raise
            self._files = files
            if kept is not None:
                # What a disk has promised to have written may be lost when its machine goes down.
                self._content = kept if kept.boot == this_boot() else kept.leave("")
        if self._listener is None:
            self._listener = self._listen(request["address"], bytes.fromhex(request["token"]))
        content = replace(self._content, boot=this_boot(), port=self._listener.port)
        record = content.record
        if record is not None and is_of_another_job(record, request["head"], request["term"]):
            content = content.leave("")
        if not content.name:
            content = replace(content, name=secrets.token_hex(8))
        if content != self._content:
            self._files.write(content)
            self._content = content

    def _listen(self, address: str, token: bytes) -> Listener:
        """Listen at the port of the voter before, so that others find this one, or else at a free one.

        Raises:
            OSError: there is no port.
        """

        def listen(port: int) -> Listener:
            return Listener(
                loop=self._loop,
                clock=time.monotonic,
                address=address,
                port=port,
                token=token,
                accepted=self._accept,
                say=_ignore,  # a node that does not know the token hears so from the head
                version=VERSION,
            )

        with contextlib.suppress(OSError):
            return listen(self._content.port)
        return listen(0)

    # --- those that ask ---------------------------------------------------------------------------------------

    def _accept(self, peer: Connection) -> None:
        self._peers.add(peer)
        peer.on_message = lambda message: self._on_message(peer, message)
        peer.on_end = lambda why: self._peers.discard(peer)

    def _on_message(self, peer: Connection, message: Mapping[str, Any]) -> None:
        try:
            number = untrusted_json.whole(message["number"], "the number")
            name = untrusted_json.text(message["to"], "the voter")
            offered = parse(untrusted_json.mapping(message["offered"], "the record"))
        except (KeyError, ValueError) as error:
            _say(f"{peer.peer} has sent a request that cannot be read: {error}")
            self._peers.discard(peer)
            peer.close()
            return
        if name != self._content.name:
            peer.send({"number": number, "error": "this is another voter"})
            return
        try:
            peer.send({"number": number, **self._take(offered)})
        except OSError as error:
            _say(f"cannot write {error.filename or 'the record of the head'}: {error.strerror}; no vote is given")
            peer.send({"number": number, "error": "its disk has failed"})

    def _take(self, offered: Record | None) -> dict[str, Any]:
        """Answer an offer, and keep what was taken. Raises OSError: what is promised is not on the disk."""
        answer = take(self._content.record, offered, time.monotonic() - self._taken_at)
        if answer.taken:
            assert self._files is not None
            content = replace(self._content, record=answer.kept, former=None)
            if must_be_written(self._content.record, answer.kept):
                self._files.write(content)
            self._content = content
            self._taken_at = time.monotonic()
        age = answer.age_seconds
        return {"taken": answer.taken, "kept": dump(answer.kept), "age": age if math.isfinite(age) else -1}


def _ignore(sentence: str) -> None:
    """Ignore a sentence about refused connections."""


def _say(sentence: str) -> None:
    sys.stderr.write(f"{PREFIX}{sentence}\n")
    sys.stderr.flush()


def main() -> None:
    """Serve until the agent is gone."""
    # A signal to the agent's group is not meant for the voter, which ends when its agent has.
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
    loop = EventLoop[Any](time.monotonic)
    loop.run(VoterProcess(loop))


if __name__ == "__main__":
    main()

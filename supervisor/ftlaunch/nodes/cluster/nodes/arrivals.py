"""Peers that know the token and have not said hello, or were turned away: after a few seconds they are ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.cluster import messages
from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.membership import greeting
from ftlaunch.nodes.cluster.membership.greeting import Greeting

HELLO_SECONDS = 5.0
"""how long a peer may say nothing, and how long one that was turned away may take to read why"""
_MOST_WARNINGS = 20  # of nodes that come, said by one head
_LONGEST_LINE = 1000  # characters of what a peer has sent that are said of it


class Arrivals:
    """At the head."""

    def __init__(self, around: Around, welcome: Callable[[Connection, dict[str, Any], Greeting], None]) -> None:
        """welcome: takes a node that may take part, with its hello."""
        self._around = around
        self._welcome = welcome
        self._warned = 0
        self._waiting: dict[Connection, tuple[float, bool]] = {}  # until when, and whether it was turned away

    def accepted(self, connection: Connection) -> None:
        """A peer that knows the token has connected: it must say hello."""
        self._await(connection, turned_away=False)
        connection.on_message = lambda message: self._on_hello(connection, message)

    def look(self) -> None:
        """End the connections of those that have had their time."""
        now = self._around.clock()
        for connection, (until, turned_away) in list(self._waiting.items()):
            if now < until:
                continue
            del self._waiting[connection]
            connection.close()
            if not turned_away:
                self._around.say(f"a node at {connection.peer} is turned away: no hello for {HELLO_SECONDS:g} s")

    def _await(self, connection: Connection, *, turned_away: bool) -> None:
        self._waiting[connection] = self._around.clock() + HELLO_SECONDS, turned_away
        connection.on_end = lambda _: self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def _on_hello(self, connection: Connection, message: dict[str, Any]) -> None:
        around = self._around
        try:
            if messages.check(message, messages.UP) != "hello":
                raise ValueError(f"a message `{message['do']}` before any hello")
            found = greeting.read(message, around.ranks_each, around.most)
        except (ValueError, TypeError, OverflowError) as error:
            self._forget(connection)
            around.say(f"a node at {connection.peer} is turned away: it has sent {str(error)[:_LONGEST_LINE]}")
            connection.close()
            return
        if why := greeting.refusal(message["job"], around.job, found.facts, around.facts):
            self._turn_away(connection, why)
            return
        for sentence in greeting.warnings(found, around.facts, time.time()):
            self._warn(sentence)
        self._forget(connection)
        self._welcome(connection, message, found)

    def _warn(self, sentence: str) -> None:
        """Say it, unless many nodes have been warned of: a thousand are not to bury what else is said."""
        self._warned += 1
        if self._warned <= _MOST_WARNINGS:
            self._around.say(sentence)
        elif self._warned == _MOST_WARNINGS + 1:
            self._around.say("further warnings of nodes are not said here: `ftctl nodes --json` has them")

    def _turn_away(self, connection: Connection, why: str) -> None:
        connection.send({"do": "refused", "why": why})
        connection.on_message = lambda _: None  # until it has read that, and ends
        self._await(connection, turned_away=True)
        self._around.say(f"a node at {connection.peer} is turned away: {why}")

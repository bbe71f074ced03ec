"""Peers before they are nodes: takes their hello, and turns away those that cannot take part.

A peer that says no hello, or was turned away, loses its connection after a few seconds. Runs in the head's event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ftlaunch.nodes.channel.connection import Connection
from ftlaunch.nodes.cluster import messages
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.membership import greeting
from ftlaunch.nodes.cluster.membership.greeting import Greeting

HELLO_SECONDS = 5.0
"""seconds in which a peer must say hello, and in which a peer that was turned away can read why"""
_MOST_WARNINGS = 20  # about new nodes that one head writes to the terminal
_LONGEST_LINE = 1000  # characters of a malformed message that the terminal is shown


class Arrivals:
    """The peers that are not nodes yet."""

    def __init__(
        self, context: ClusterContext, welcome: Callable[[Connection, dict[str, Any], Greeting], None]
    ) -> None:
        """Begin without peers.

        Args:
            context: what the classes about nodes share.
            welcome: takes in a node: its connection, its hello, and the checked content.
        """
        self._context = context
        self._welcome = welcome
        self._warned = 0
        self._waiting: dict[
            Connection, tuple[float, bool]
        ] = {}  # until when each may stay, and whether it was turned away

    def accepted(self, connection: Connection) -> None:
        """Wait for the hello of a peer that knows the token."""
        self._await(connection, turned_away=False)
        connection.on_message = lambda message: self._on_hello(connection, message)

    def poll(self) -> None:
        """End the connections of peers whose time is over."""
        now = self._context.clock()
        for connection, (until, turned_away) in list(self._waiting.items()):
            if now < until:
                continue
            del self._waiting[connection]
            connection.close()
            if not turned_away:
                self._context.say(f"a node at {connection.peer} is turned away: no hello for {HELLO_SECONDS:g} s")

    def _await(self, connection: Connection, *, turned_away: bool) -> None:
        self._waiting[connection] = self._context.clock() + HELLO_SECONDS, turned_away
        connection.on_end = lambda _: self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)

    def _on_hello(self, connection: Connection, message: dict[str, Any]) -> None:
        context = self._context
        try:
            name = messages.check(message, messages.UP)
            if name == "elsewhere":
                self._forget(connection)
                connection.close()
                context.give_way(message["address"], message["port"], message["term"])
                return
            if name != "hello":
                raise ValueError(f"a message `{message['do']}` before any hello")
            found = greeting.read(message, context.ranks_each, context.most)
        except (ValueError, TypeError, OverflowError) as error:
            self._forget(connection)
            context.say(f"a node at {connection.peer} is turned away: it has sent {str(error)[:_LONGEST_LINE]}")
            connection.close()
            return
        why = greeting.refusal(job=message["job"], ours=context.job, node=found.facts, head=context.facts)
        if why:
            self._turn_away(connection, why)
            return
        for sentence in greeting.warnings(found, context.facts, time.time()):
            self._warn(sentence)
        self._forget(connection)
        self._welcome(connection, message, found)

    def _warn(self, sentence: str) -> None:
        """Write a warning to the terminal, unless there were many: a thousand would bury everything else."""
        self._warned += 1
        if self._warned <= _MOST_WARNINGS:
            self._context.say(sentence)
        elif self._warned == _MOST_WARNINGS + 1:
            self._context.say("further warnings of nodes are not said here: `ftctl nodes --json` has them")

    def _turn_away(self, connection: Connection, why: str) -> None:
        connection.send({"do": "refused", "why": why})
        connection.on_message = lambda _: None  # the peer reads the message, and ends
        self._await(connection, turned_away=True)
        self._context.say(f"a node at {connection.peer} is turned away: {why}")

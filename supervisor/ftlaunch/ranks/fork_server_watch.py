"""Listens to the fork server for the event loop, and decides when the first attempt may begin."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.ranks.fork_client import Warm
from ftlaunch.ranks.local_ranks import Exits


class ForkServerWatch:
    """Of one job; it goes on listening to each server that takes a dead one's place."""

    def __init__(self, server: Warm, loop: Exits, say: Callable[[str], None]) -> None:
        """say: a sentence for the terminal."""
        self._server, self._loop, self._say = server, loop, say
        self._listen()

    def _listen(self) -> None:
        if self._server.link is not None:
            self._loop.register(self._server.link.fd, self._on_message)

    def _on_message(self) -> None:
        assert self._server.link is not None
        self._loop.unregister(self._server.link.fd)
        known = len(self._server.left_out)
        self._server.hear()
        self._listen()
        for module, why in list(self._server.left_out.items())[known:]:
            self._say(f"not preloading {module}: {why}")

    def is_settled(self, now: float) -> bool:
        """Whether the first attempt may begin: ranks can be forked, or it is known (and told) that they cannot."""
        server = self._server
        if server.late(now):
            assert server.link is not None
            self._loop.unregister(server.link.fd)
            server.give_up()
        if server.news:
            self._say(f"starting plain processes: {server.news}")
            server.news = ""
        return not server.starting

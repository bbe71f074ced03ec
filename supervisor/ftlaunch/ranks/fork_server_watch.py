"""Listens to the fork server for the event loop, and decides when the first attempt may begin."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.ranks.fork_client import Warm
from ftlaunch.system.loop import Loop


class ForkServerWatch:
    """Listens to the fork server of one job, and to each server that takes a dead one's place."""

    def __init__(self, server: Warm, loop: Loop, say: Callable[[str], None]) -> None:
        """Register the server with the event loop.

        Args:
            server: the fork server of the job.
            loop: the event loop.
            say: prints a sentence on the terminal.
        """
        self._server = server
        self._loop = loop
        self._say = say
        self._listen()

    def _listen(self) -> None:
        """Register the present fork server, if there is one."""
        if self._server.link is not None:
            self._loop.register(self._server.link.fd, self._on_message)

    def _on_message(self) -> None:
        """Handle a message or the death of the fork server, and tell the user which modules are not preloaded."""
        assert self._server.link is not None
        self._loop.unregister(self._server.link.fd)
        known = len(self._server.left_out)
        self._server.handle_message()
        self._listen()
        for module, why in list(self._server.left_out.items())[known:]:
            self._say(f"not preloading {module}: {why}")

    def is_settled(self, now: float) -> bool:
        """Return whether the first attempt may begin, and tell the user why if ranks cannot be forked.

        The first attempt may begin as soon as ranks can be forked, or as soon as it is certain that they cannot.

        Args:
            now: monotonic seconds.
        """
        server = self._server
        if server.late(now):
            assert server.link is not None
            self._loop.unregister(server.link.fd)
            server.give_up()
        if server.news:
            self._say(f"starting plain processes: {server.news}")
            server.news = ""
        return not server.starting

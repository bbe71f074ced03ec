"""Listens, and serves until it is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

_LAST_WORDS = 1  # seconds for answers under way once it is told to end; news have no end of their own


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens there; port 0: one that is free. Raises OSError."""
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((address, port), family=family, backlog=256)


def serve(app: ASGIApp, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM. ready: called once answers are given."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
        timeout_graceful_shutdown=_LAST_WORDS,
    )  # fmt: skip
    Server(config).run(sockets=[listening])

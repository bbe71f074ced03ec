"""Servers on this machine that answer badly: too little, too late, or not at all."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

_HERE = "127.0.0.1"

Handler = Callable[[socket.socket], None]
"""serves one connection; an OSError that it raises ends the connection"""


@contextlib.contextmanager
def served(handler: Handler) -> Iterator[int]:
    """Yield a port whose connections `handler` serves, each in a thread."""
    with socket.create_server((_HERE, 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

        def serve(peer: socket.socket) -> None:
            with peer, contextlib.suppress(OSError):
                handler(peer)

        threading.Thread(target=accept, daemon=True).start()
        yield int(listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def request(peer: socket.socket) -> bytes:
    """Return the next HTTP request, whole; empty if the client has closed the connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        if not (block := peer.recv(1 << 16)):
            return b""
        received += block
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while len(body) < int(lengths[0]):
        body += peer.recv(1 << 16)
    return head + b"\r\n\r\n" + body


def says(content: bytes, status: str = "200 OK") -> Handler:
    """Return a handler that answers every request with the same content."""

    def handle(peer: socket.socket) -> None:
        while request(peer):
            peer.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(content), content))

    return handle


def says_slowly(peer: socket.socket) -> None:
    """Send one byte of an answer ten times a second: never silent, and never done."""
    request(peer)
    for byte in b"HTTP/1.1 200 OK\r\nX-Very-Long: " + b"x" * 1000:
        peer.sendall(bytes([byte]))
        time.sleep(0.1)


def says_nothing(peer: socket.socket) -> None:
    """Read everything, and never answer."""
    while peer.recv(1 << 16):
        pass


class LosesAnswers:
    """Passes requests on to a server, and loses the next answer while `lose_next` is True."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose_next = False
        self.lost = 0

    def __call__(self, peer: socket.socket) -> None:
        """Relay the requests of one connection to the server, and the answers back."""
        with socket.create_connection((_HERE, self._port)) as server:
            while asked := request(peer):
                server.sendall(asked)
                answer = server.recv(1 << 16)
                if self.lose_next:
                    self.lose_next = False
                    self.lost += 1
                    return
                peer.sendall(answer)

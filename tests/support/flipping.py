"""A way between two sockets that alters one byte."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class FlippingWay:
    """Passes connections on to a port, and flips one bit of what goes one way, once so many bytes have gone there."""

    def __init__(self, port: int, after: int, *, back: bool = False) -> None:
        """back: of what the listener sends."""
        self._target, self._after, self._back = port, after, back
        self.flipped = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for one, other, flips in ((near, far, not self._back), (far, near, self._back)):
                    threading.Thread(target=self._pass, args=(one, other, flips), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, flips: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(one.recv(1 << 16)):
                if flips and not self.flipped and passed + len(data) > self._after:
                    data[self._after - passed] ^= 4
                    self.flipped += 1
                passed += len(data)
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self._sockets:
            one.close()

"""A relay between two sockets that alters one byte."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class FlippingWay:
    """Relays connections to a port, and flips one bit of one direction after a number of bytes."""

    def __init__(self, port: int, after: int, *, back: bool = False) -> None:
        """Listen at `port`.

        Args:
            port: the port to which connections are relayed.
            after: the number of bytes before the byte that is altered.
            back: whether the bytes that the target sends are altered, instead of those sent to the target.
        """
        self._target = port
        self._after = after
        self._back = back
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
                for source, sink, flips in ((near, far, not self._back), (far, near, self._back)):
                    threading.Thread(target=self._pass, args=(source, sink, flips), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, flips: bool) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(source.recv(1 << 16)):
                if flips and not self.flipped and passed + len(data) > self._after:
                    data[self._after - passed] ^= 4
                    self.flipped += 1
                passed += len(data)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._sockets:
            each.close()

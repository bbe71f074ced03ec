"""Listens for other copiers, with a thread for each connection, and a limit on connections of strangers."""

from __future__ import annotations

import socket
import threading
import time

from ftlaunch.nodes.channel.framing import FrameError
from ftlaunch.nodes.channel.handshake import Role
from ftlaunch.nodes.channel.stream import resolve, watch_peer
from ftlaunch.nodes.peers.copier_node import CopierNode
from ftlaunch.nodes.peers.receiver import CopyReceiver
from ftlaunch.nodes.peers.supplier import Supplier
from ftlaunch.nodes.peers.wire.peer_connection import PeerConnection, PeerError, greet, peer_name, why

_MOST_CONNECTIONS = 64
_PAUSE_SECONDS = 0.05  # after a connection that could not be accepted


class CopierServer:
    """The listening socket of a copier. Its threads end with the process."""

    def __init__(self, node: CopierNode, address: str) -> None:
        """Listen at any free port of a numeric address.

        Args:
            node: the state of this copier.
            address: the address.

        Raises:
            OSError: the address cannot be used.
            ValueError: the address is a name.
            RuntimeError: no thread can be started.
        """
        self._node = node
        family, target = resolve(address, 0)
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.bind(target)
            self._listener.listen(_MOST_CONNECTIONS)
        except OSError:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._unproven: dict[socket.socket, None] = {}  # connections in the handshake, the oldest first
        self._count = 0  # of all connections
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # the connection has ended already, or there is no descriptor
                self._node.refused.add(why(error))
                time.sleep(_PAUSE_SECONDS)
                continue
            self._make_room()
            try:
                threading.Thread(target=self._serve, args=(connection,), name="peer", daemon=True).start()
            except RuntimeError as error:  # no thread can be started now; later connections may have one
                with self._lock:
                    self._count -= 1
                connection.close()
                self._node.refused.add(str(error))
                time.sleep(_PAUSE_SECONDS)

    def _make_room(self) -> None:
        """Count a connection. If there are too many, end the oldest one in its handshake."""
        with self._lock:
            self._count += 1
            oldest = next(iter(self._unproven), None) if self._count > _MOST_CONNECTIONS else None
        if oldest is not None:
            try:
                oldest.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # that connection has ended already

    def _serve(self, connection: socket.socket) -> None:
        """Serve one connection to its end, in its thread."""
        name = peer_name(connection)
        with self._lock:
            self._unproven[connection] = None
        try:
            watch_peer(connection)
            peer = greet(connection, Role.LISTENER, self._node.token)
            with self._lock:
                del self._unproven[connection]
                if self._count > _MOST_CONNECTIONS:
                    raise PeerError(f"there are {_MOST_CONNECTIONS} connections already")
            _converse(self._node, peer)
        except (FrameError, ValueError, PeerError) as error:
            self._node.refused.add(f"{name}: {error}")
        except OSError as error:
            if connection in self._unproven:
                self._node.refused.add(f"{name}: {why(error)}")
        finally:
            with self._lock:
                self._unproven.pop(connection, None)
                self._count -= 1
            connection.close()


def _converse(node: CopierNode, peer: PeerConnection) -> None:
    """Carry out the requests of a copier until it ends the connection. Raises OSError at the end."""
    receiver = CopyReceiver(node, peer)
    supplier = Supplier(node, peer)
    handlers = {"copy": receiver.receive_copy, "about": supplier.describe, "read": supplier.send_ranges}
    try:
        while True:
            message = peer.receive(None)
            if (handler := handlers.get(str(message.get("do")))) is None:
                raise ValueError("there is no such request")
            handler(message)
    finally:
        supplier.close()

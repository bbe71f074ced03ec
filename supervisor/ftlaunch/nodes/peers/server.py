"""Listens for other copiers: a thread for each connection, and few of strangers."""

from __future__ import annotations

import socket
import threading
import time

from ftlaunch.nodes.channel.framing import FrameError
from ftlaunch.nodes.channel.handshake import Role
from ftlaunch.nodes.channel.stream import resolved, watch_peer
from ftlaunch.nodes.peers.copier_node import CopierNode
from ftlaunch.nodes.peers.receiver import CopyReceiver
from ftlaunch.nodes.peers.supplier import Supplier
from ftlaunch.nodes.peers.wire.peer_connection import PeerConnection, PeerError, greet, peer_name, why

_MOST = 64  # connections
_PAUSE = 0.05  # seconds after a connection that could not be accepted


class CopierServer:
    """The listening socket. Its threads end with the process."""

    def __init__(self, node: CopierNode, address: str) -> None:
        """address: a numeric one of this machine. Raises OSError, ValueError."""
        self._node = node
        family, target = resolved(address, 0)
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.bind(target)
            self._listener.listen(_MOST)
        except OSError:
            self._listener.close()
            raise
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._unproven: dict[socket.socket, None] = {}
        self._count = 0
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:  # it has ended already, or there are no descriptors
                self._node.refused.add(why(error))
                time.sleep(_PAUSE)
                continue
            self._make_room()
            try:
                threading.Thread(target=self._serve, args=(connection,), name="peer", daemon=True).start()
            except RuntimeError as error:  # no thread may be started: others come later, and may have one
                with self._lock:
                    self._count -= 1
                connection.close()
                self._node.refused.add(str(error))
                time.sleep(_PAUSE)

    def _make_room(self) -> None:
        """Count a connection; where there are many, the oldest that has not proven itself ends."""
        with self._lock:
            self._count += 1
            oldest = next(iter(self._unproven), None) if self._count > _MOST else None
        if oldest is not None:
            try:
                oldest.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended already

    def _serve(self, connection: socket.socket) -> None:
        name = peer_name(connection)
        with self._lock:
            self._unproven[connection] = None
        try:
            watch_peer(connection)
            peer = greet(connection, Role.LISTENER, self._node.token)
            with self._lock:
                del self._unproven[connection]
                if self._count > _MOST:
                    raise PeerError(f"there are {_MOST} connections already")
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
    """Do what the other side asks, until it ends the connection."""
    receiver = CopyReceiver(node, peer)
    supplier = Supplier(node, peer)
    doers = {"copy": receiver.take, "about": supplier.about, "read": supplier.read}
    try:
        while True:
            message = peer.receive(None)
            if (doer := doers.get(str(message.get("do")))) is None:
                raise ValueError("there is no such request")
            doer(message)
    finally:
        supplier.close()

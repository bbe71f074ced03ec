"""Challenge and answer: both sides prove that they know the token before either says anything else.

Each side sends a fresh nonce. The client answers first, so a stranger who connects to the listener gets a nonce and
nothing else, and a token cannot be tried offline against a proof of the listener's. The proofs and the keys of the two
directions are derived from the token and both nonces, each under a label of its own: nothing that one side has sent can
be sent back to it, and nothing of one session is of use in another. No clock, no socket, no randomness.
"""

from __future__ import annotations

import hmac
from enum import Enum

from ftlaunch.nodes.channel.framing import FrameError, Opener, Sealer
from ftlaunch_contract.files import untrusted_json

PROTOCOL = "1"
"""the version of the messages; the handshake itself has no version and never changes"""
NONCE = 32
"""bytes of a nonce"""
_LONGEST_VERSION = 64


class Role(Enum):
    """Which end of the connection a side is. The value labels the proofs and keys that are derived for that end."""

    CLIENT = b"client"
    LISTENER = b"listener"

    @property
    def other(self) -> Role:
        """The role of the other side."""
        return Role.LISTENER if self is Role.CLIENT else Role.CLIENT


class Handshake:
    """One side of the handshake."""

    def __init__(self, role: Role, token: bytes, nonce: bytes) -> None:
        """Begin a handshake.

        Args:
            role: this side's end of the connection.
            token: the secret that both sides must know; an empty one is known to everybody.
            nonce: NONCE random bytes that are used once.
        """
        self.role = role
        self._token = token
        self._session = b""
        self.challenge = nonce
        """the content of the first frame that this side sends"""
        self.proven = False
        """whether the other side has proven that it knows the token"""

    def receive(self, content: bytes) -> bytes | None:
        """Process the content of a received frame.

        Returns:
            The content of the frame to send in answer, or None for no answer.

        Raises:
            FrameError: the other side does not know the token, or does not speak this protocol.
        """
        if self.proven:
            raise FrameError("it goes on with a handshake that is over")
        if not self._session:
            return self._answer_challenge(content)
        if not hmac.compare_digest(self._derive(b"proof", self.role.other), content):
            raise FrameError("it does not know the token")
        self.proven = True
        return self._derive(b"proof", self.role) if self.role is Role.LISTENER else None

    def _answer_challenge(self, nonce: bytes) -> bytes | None:
        if len(nonce) != NONCE:
            raise FrameError("it does not begin as ftlaunch does")
        if nonce == self.challenge:  # an echo server, or a socket connected to itself
            raise FrameError("it sends back what it was sent")
        nonces = self.challenge + nonce if self.role is Role.CLIENT else nonce + self.challenge
        self._session = hmac.digest(self._token, b"ftlaunch channel" + nonces, "sha256")
        return self._derive(b"proof", self.role) if self.role is Role.CLIENT else None

    def _derive(self, what: bytes, role: Role) -> bytes:
        return hmac.digest(self._session, what + b" of " + role.value, "sha256")

    def derive_keys(self) -> tuple[Sealer, Opener]:
        """Return the sealer of this side's frames and the opener of the other's.

        Call this only once the other side has proven that it knows the token.
        """
        assert self.proven
        return Sealer(self._derive(b"key", self.role)), Opener(self._derive(b"key", self.role.other))


def read_other_version(message: dict[str, object], ours: str) -> str:
    """Return the other side's protocol version, or an empty text if it is `ours`.

    Raises:
        ValueError: the message holds no version.
    """
    theirs = untrusted_json.text(message.get("protocol"), "its protocol version")
    if not 0 < len(theirs) <= _LONGEST_VERSION or not theirs.isprintable():
        raise ValueError("its protocol version is no version")
    return "" if theirs == ours else theirs

"""Challenge and answer, and sides that only pretend."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.nodes.channel.framing import FrameError
from ftlaunch.nodes.channel.handshake import NONCE, Handshake, Role, read_other_version

TOKEN = b"the token of this job"
CLIENT_NONCE, LISTENER_NONCE, THIRD_NONCE = b"c" * NONCE, b"l" * NONCE, b"t" * NONCE


def client(token: bytes = TOKEN, nonce: bytes = CLIENT_NONCE) -> Handshake:
    return Handshake(Role.CLIENT, token, nonce)


def listener(token: bytes = TOKEN, nonce: bytes = LISTENER_NONCE) -> Handshake:
    return Handshake(Role.LISTENER, token, nonce)


def shake(near: Handshake, far: Handshake) -> None:
    """The whole exchange between a client and a listener."""
    assert far.receive(near.challenge) is None
    proof = near.receive(far.challenge)
    assert proof is not None
    answer = far.receive(proof)
    assert answer is not None
    assert near.receive(answer) is None


def test_both_prove_themselves_and_share_a_key_for_each_direction() -> None:
    near, far = client(), listener()
    shake(near, far)
    assert near.proven and far.proven
    (near_seals, near_opens), (far_seals, far_opens) = near.derive_keys(), far.derive_keys()
    up, down = near_seals.seal(b"hello"), far_seals.seal(b"hello")
    assert up != down
    assert far_opens.open(up[4:]) == near_opens.open(down[4:]) == b"hello"


def test_what_one_side_has_sent_cannot_be_sent_back_to_it() -> None:
    near, far = client(), listener()
    shake(near, far)
    seals, opens = near.derive_keys()
    with pytest.raises(FrameError, match="wrong HMAC"):
        opens.open(seals.seal(b"beat")[4:])


def test_a_session_is_of_no_use_in_another() -> None:
    near, far = client(), listener()
    shake(near, far)
    again_near, again_far = client(), listener(nonce=THIRD_NONCE)
    shake(again_near, again_far)
    with pytest.raises(FrameError, match="wrong HMAC"):
        again_far.derive_keys()[1].open(near.derive_keys()[0].seal(b"hello")[4:])


def test_another_token_is_refused_and_answered_nothing() -> None:
    near, far = client(token=b"another"), listener()
    far.receive(near.challenge)
    proof = near.receive(far.challenge)
    assert proof is not None
    with pytest.raises(FrameError, match="it does not know the token"):
        far.receive(proof)
    assert not far.proven


def test_a_listener_with_another_token_is_refused() -> None:
    near = client()
    near.receive(LISTENER_NONCE)
    with pytest.raises(FrameError, match="it does not know the token"):
        near.receive(bytes(32))
    assert not near.proven


def test_a_clients_own_proof_is_no_answer_to_it() -> None:
    near = client()
    proof = near.receive(LISTENER_NONCE)
    assert proof is not None
    with pytest.raises(FrameError, match="it does not know the token"):
        near.receive(proof)


def test_a_proof_of_an_earlier_session_is_refused() -> None:
    near, far = client(), listener()
    far.receive(near.challenge)
    proof = near.receive(far.challenge)
    assert proof is not None
    later = listener(nonce=THIRD_NONCE)
    later.receive(CLIENT_NONCE)
    with pytest.raises(FrameError, match="it does not know the token"):
        later.receive(proof)


def test_an_echo_is_refused() -> None:
    with pytest.raises(FrameError, match="it sends back what it was sent"):
        client().receive(CLIENT_NONCE)


@given(st.binary(max_size=100).filter(lambda content: len(content) != NONCE))
def test_what_does_not_begin_with_a_nonce_is_refused(content: bytes) -> None:
    with pytest.raises(FrameError, match="it does not begin as ftlaunch does"):
        listener().receive(content)


@given(st.binary(max_size=64))
def test_no_guess_is_a_proof(content: bytes) -> None:
    far = listener()
    far.receive(CLIENT_NONCE)
    with pytest.raises(FrameError, match="it does not know the token"):
        far.receive(content)


def test_a_handshake_that_is_over_is_not_gone_on_with() -> None:
    near, far = client(), listener()
    shake(near, far)
    with pytest.raises(FrameError, match="that is over"):
        far.receive(THIRD_NONCE)


def test_versions() -> None:
    assert read_other_version({"protocol": "1"}, "1") == ""
    assert read_other_version({"protocol": "2", "new": []}, "1") == "2"


@pytest.mark.parametrize("theirs", [None, 1, "", "x" * 65, "1\n2"])
def test_what_is_no_version_is_refused(theirs: object) -> None:
    with pytest.raises(ValueError, match="protocol version"):
        read_other_version({"protocol": theirs}, "1")

"""Sends and receives descriptions of snapshots: headers, common.json, samples, and which chunks there are.

Headers, common.json and samples follow the message as bytes, and each is verified by a digest in the message. A header
that the other side knows from an earlier description is not sent again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from ftlaunch.nodes.peers.plan import checked
from ftlaunch.nodes.peers.plan.chunk_places import Runs, as_lists, checked_runs
from ftlaunch.nodes.peers.plan.described_slot import SAMPLE_BYTES, DescribedSlot, split_samples
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts, SlotLayout, TensorLayout
from ftlaunch.nodes.peers.wire.peer_connection import PeerConnection
from ftlaunch_contract.checkpoint import layout, tensor_file
from ftlaunch_contract.files import checksums, untrusted_json

MOST_SLOTS = 4096
"""snapshots in one message: the ranks of one node"""
_LONGEST_COMMON = 256 << 20  # bytes
_LONGEST_SAMPLES = 64 << 20  # bytes


Known = dict[str, TensorLayout]
"""digest -> the layout of a header that was sent on this connection"""


class WrongDigestError(Exception):
    """Received bytes differ from those that were sent. The connection can go on, because all of them were received."""


def as_message(slots: Sequence[DescribedSlot], known: Collection[str]) -> tuple[list[dict[str, Any]], bytes]:
    """Describe snapshots for a message.

    Args:
        slots: the snapshots.
        known: digests of headers that the other side has.

    Returns:
        The value of the message's field `slots`, and the bytes that follow the message.
    """
    descriptions = []
    content = []
    sent = set(known)
    for slot in slots:
        headers = {}
        for group, found in slot.layouts.items():
            header = b"" if found.digest in sent else found.header
            sent.add(found.digest)
            headers[group] = [found.digest, len(header)]
            content.append(header)
        content.append(slot.common)
        samples = b"".join(sample for group in layout.GROUPS for sample in slot.samples[group])
        content.append(samples)
        descriptions.append(
            {
                "rank": slot.rank,
                "headers": headers,
                "common": [checksums.of_whole(slot.common), len(slot.common)],
                "samples": [checksums.of_whole(samples), len(samples)],
                "own": _lists(slot.own),
                "present": None if slot.present is None else _lists(slot.present),
            }
        )
    return descriptions, b"".join(content)


def _lists(runs: Mapping[str, Runs]) -> dict[str, list[list[int]]]:
    return {group: as_lists(found) for group, found in runs.items()}


@dataclass(frozen=True)
class _Announced:
    """The checked description of one snapshot in a message."""

    rank: int
    headers: dict[str, tuple[str, int]]
    """group -> digest and size in bytes of the header that follows; a size of 0 for a known header"""
    common: tuple[str, int]
    """digest and size of common.json"""
    samples: tuple[str, int]
    """digest and size of the joined samples"""
    own: dict[str, Any]
    """group -> runs, not checked yet"""
    present: dict[str, Any] | None
    """group -> runs, not checked yet; None for all chunks"""


class _Content(NamedTuple):
    """The bytes of one snapshot that follow a message."""

    headers: list[bytes]
    common: bytes
    samples: bytes


def receive_slots(connection: PeerConnection, value: object, layouts: Layouts, known: Known) -> list[DescribedSlot]:
    """Receive the snapshots that a message describes.

    Args:
        connection: the connection, on which the bytes follow.
        value: the message's field `slots`.
        layouts: remembers the layouts.
        known: the layouts that were sent on this connection; those that come are added.

    Raises:
        ValueError: the description is malformed.
        WrongDigestError: bytes were altered on their way.
        OSError: the connection has failed.
    """
    announced = [_checked(item) for item in checked.items_of(value, MOST_SLOTS, "`slots`")]
    if len({slot.rank for slot in announced}) < len(announced):
        raise ValueError("`slots` names a rank twice")
    content = [
        _Content(
            headers=[connection.receive_content(size) for _, size in slot.headers.values()],
            common=connection.receive_content(slot.common[1]),
            samples=connection.receive_content(slot.samples[1]),
        )
        for slot in announced
    ]
    return [
        _slot(announced=slot, received=received, layouts=layouts, known=known)
        for slot, received in zip(announced, content, strict=True)
    ]


def _checked(value: object) -> _Announced:
    """Return one item of the field `slots`. Raises ValueError if it is malformed."""
    fields = untrusted_json.mapping(value, "a slot")
    headers = untrusted_json.mapping(fields.get("headers"), "`headers`")
    if set(headers) != set(layout.GROUPS):
        raise ValueError("`headers` names other groups than there are")
    present = fields.get("present")
    longest = tensor_file.LONGEST_HEADER + 8
    return _Announced(
        rank=checked.rank_of(fields.get("rank")),
        headers={group: _digest_and_size(headers[group], longest, "a header") for group in layout.GROUPS},
        common=_digest_and_size(fields.get("common"), _LONGEST_COMMON, "common.json"),
        samples=_digest_and_size(fields.get("samples"), _LONGEST_SAMPLES, "samples"),
        own=untrusted_json.mapping(fields.get("own"), "`own`"),
        present=None if present is None else untrusted_json.mapping(present, "`present`"),
    )


def _digest_and_size(value: object, most: int, what: str) -> tuple[str, int]:
    digest, size = checked.items_of(value, 2, what)
    return checked.digest_of(digest, what), checked.whole_up_to(size, most, what)


def _slot(announced: _Announced, received: _Content, layouts: Layouts, known: Known) -> DescribedSlot:
    """Verify the bytes of one snapshot, and return its description. Raises WrongDigestError or ValueError."""
    if checksums.of_whole(received.common) != announced.common[0]:
        raise WrongDigestError
    if checksums.of_whole(received.samples) != announced.samples[0]:
        raise WrongDigestError
    found = {}
    for (group, (digest, size)), header in zip(announced.headers.items(), received.headers, strict=True):
        if not size and digest not in known:
            raise ValueError("a header is missing")
        if size:
            if checksums.of_whole(header) != digest:
                raise WrongDigestError
            try:
                known[digest] = layouts.of(header)
            except tensor_file.Damaged as error:
                raise ValueError(str(error)) from error
        found[group] = known[digest]
    own = runs_of(announced.own, found, "`own`")
    present = None if announced.present is None else runs_of(announced.present, found, "`present`")
    samples = _samples_of(split_samples(received.samples), found)
    return DescribedSlot(
        rank=announced.rank,
        layouts=found,
        common=received.common,
        own=own,
        samples=samples,
        present=present,
    )


def _samples_of(samples: Sequence[bytes], slot: SlotLayout) -> dict[str, Sequence[bytes]]:
    """Return the sample of each chunk, by group. Raises ValueError if their number is wrong."""
    if [len(sample) for sample in samples] != [SAMPLE_BYTES] * sum(len(found.chunks) for found in slot.values()):
        raise ValueError("`samples` has not one of each chunk")
    left = iter(samples)
    return {group: list(islice(left, len(found.chunks))) for group, found in slot.items()}


def runs_of(value: Mapping[str, Any], slot: SlotLayout, what: str) -> dict[str, Runs]:
    """Return checked runs of the chunks of a snapshot, by group. Raises ValueError; `what` names the field."""
    return {group: checked_runs(value.get(group), len(found.chunks), what) for group, found in slot.items()}

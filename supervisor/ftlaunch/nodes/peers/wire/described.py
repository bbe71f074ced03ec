"""A rank's snapshot as one copier describes it to another: headers, common.json, samples, and which chunks there are.

Headers, common.json and samples follow the message as bytes, each verified by a digest in the message. A header that
the other side has from an earlier description is not sent again.
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
"""ranks of one node"""
_LONGEST_COMMON = 256 << 20
_LONGEST_SAMPLES = 64 << 20


Known = dict[str, TensorLayout]
"""digest -> a layout whose header was sent on this connection"""


class WrongDigestError(Exception):
    """What was received is not what was sent. The connection goes on: all announced bytes were received."""


def as_message(slots: Sequence[DescribedSlot], known: Collection[str]) -> tuple[list[dict[str, Any]], bytes]:
    """What a message says of the slots, and the bytes after it. known: digests of headers that are not sent again."""
    told = []
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
        told.append(
            {
                "rank": slot.rank,
                "headers": headers,
                "common": [checksums.of_whole(slot.common), len(slot.common)],
                "samples": [checksums.of_whole(samples), len(samples)],
                "own": _lists(slot.own),
                "present": None if slot.present is None else _lists(slot.present),
            }
        )
    return told, b"".join(content)


def _lists(runs: Mapping[str, Runs]) -> dict[str, list[list[int]]]:
    return {group: as_lists(found) for group, found in runs.items()}


@dataclass(frozen=True)
class _Told:
    """What a message says of one slot, checked."""

    rank: int
    headers: dict[str, tuple[str, int]]
    common: tuple[str, int]
    samples: tuple[str, int]
    own: dict[str, Any]
    present: dict[str, Any] | None


class _Content(NamedTuple):
    """The bytes that follow a message, of one slot."""

    headers: list[bytes]
    common: bytes
    samples: bytes


def receive_slots(connection: PeerConnection, value: object, layouts: Layouts, known: Known) -> list[DescribedSlot]:
    """The slots that a message describes. known: gains the headers that come.

    Raises ValueError for nonsense, WrongDigestError, OSError.
    """
    told = [_checked(one) for one in checked.items_of(value, MOST_SLOTS, "`slots`")]
    if len({one.rank for one in told}) < len(told):
        raise ValueError("`slots` names a rank twice")
    content = [
        _Content(
            [connection.receive_content(size) for _, size in one.headers.values()],
            connection.receive_content(one.common[1]),
            connection.receive_content(one.samples[1]),
        )
        for one in told
    ]
    return [_slot(one, received, layouts, known) for one, received in zip(told, content, strict=True)]


def _checked(value: object) -> _Told:
    told = untrusted_json.mapping(value, "a slot")
    headers = untrusted_json.mapping(told.get("headers"), "`headers`")
    if set(headers) != set(layout.GROUPS):
        raise ValueError("`headers` names other groups than there are")
    present = told.get("present")
    return _Told(
        checked.rank_of(told.get("rank")),
        {group: _announced(headers[group], tensor_file.LONGEST_HEADER + 8, "a header") for group in layout.GROUPS},
        _announced(told.get("common"), _LONGEST_COMMON, "common.json"),
        _announced(told.get("samples"), _LONGEST_SAMPLES, "samples"),
        untrusted_json.mapping(told.get("own"), "`own`"),
        None if present is None else untrusted_json.mapping(present, "`present`"),
    )


def _announced(value: object, most: int, what: str) -> tuple[str, int]:
    digest, size = checked.items_of(value, 2, what)
    return checked.digest_of(digest, what), checked.size_of(size, most, what)


def _slot(told: _Told, received: _Content, layouts: Layouts, known: Known) -> DescribedSlot:
    if (checksums.of_whole(received.common), checksums.of_whole(received.samples)) != (
        told.common[0],
        told.samples[0],
    ):
        raise WrongDigestError
    found = {}
    for (group, (digest, size)), header in zip(told.headers.items(), received.headers, strict=True):
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
    own = runs_of(told.own, found, "`own`")
    present = None if told.present is None else runs_of(told.present, found, "`present`")
    samples = _samples_of(split_samples(received.samples), found)
    return DescribedSlot(told.rank, found, received.common, own, samples, present)


def _samples_of(told: Sequence[bytes], slot: SlotLayout) -> dict[str, Sequence[bytes]]:
    """group -> a sample of each chunk. Raises ValueError."""
    if [len(sample) for sample in told] != [SAMPLE_BYTES] * sum(len(found.chunks) for found in slot.values()):
        raise ValueError("`samples` has not one of each chunk")
    left = iter(told)
    return {group: list(islice(left, len(found.chunks))) for group, found in slot.items()}


def runs_of(told: Mapping[str, Any], slot: SlotLayout, what: str) -> dict[str, Runs]:
    """group -> runs of the chunks of that group's file. Raises ValueError."""
    return {group: checked_runs(told.get(group), len(found.chunks), what) for group, found in slot.items()}

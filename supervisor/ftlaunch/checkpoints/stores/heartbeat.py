"""The heartbeat of a store's owner: a small object of its own that changes for as long as the owner lives.

The keeper replaces the object every `PERIOD_SECONDS`, during an upload too, and says there when it leaves. A process
that would take the store over looks whether the object changes. It counts on its own clock only, because clocks of
machines differ: an owner is lost if its heartbeat was seen unchanged for `SILENT_SECONDS`.

The index is not used for this. Each heartbeat would be a new version of the index, and a commit would lose against it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from ftlaunch.checkpoints.stores import index as indexes
from ftlaunch.checkpoints.stores.index import Index
from ftlaunch.checkpoints.stores.store import ChangedError, CheckpointStore, replace_object
from ftlaunch_contract.files import untrusted_json
from ftlaunch_contract.files.untrusted_json import mapping, text, whole

NAME = "heartbeat.json"
"""the name of the object"""
PERIOD_SECONDS = 30.0
SILENT_SECONDS = 100.0
"""three heartbeats and a slow request"""
LOOK_SECONDS = 5.0  # between two looks at another owner's heartbeat
_LAST_SECONDS = 4.0  # in which the last heartbeat, which says that the owner leaves, must be written
_MOST_TRIES = 3  # of one heartbeat, which two owners may be writing at the same moment
_VERSION = 1


@dataclass(frozen=True)
class Heartbeat:
    """What an owner writes."""

    claim: str
    """random token of the owner's claim, as in the index"""
    owner: str
    """host and pid, for people"""
    since: str
    """when the owner began, in UTC by its own clock, for people"""
    meeting: tuple[str, int] | None = None
    """where the head of a job of several nodes listens: a numeric address and a port; None on one node"""
    number: int = 0
    """one higher in each heartbeat"""
    ended: bool = False
    """whether this is the last one: the owner has left"""


def dump(beat: Heartbeat) -> bytes:
    """Return the content of the object."""
    return json.dumps({"version": _VERSION, **asdict(beat)}).encode() + b"\n"


def parse(data: bytes) -> Heartbeat | None:
    """Return the heartbeat that the object holds; None if it holds none of this version."""
    try:
        content = mapping(untrusted_json.parse(data), "the heartbeat")
        if content.get("version") != _VERSION:
            return None
        return Heartbeat(
            claim=text(content.get("claim"), "`claim`"),
            owner=text(content.get("owner"), "`owner`"),
            since=text(content.get("since"), "`since`"),
            meeting=_meeting(content.get("meeting")),
            number=whole(content.get("number"), "`number`"),
            ended=content.get("ended") is True,
        )
    except ValueError:
        return None


def _meeting(value: object) -> tuple[str, int] | None:
    """Return where a head listens. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("`meeting` is no address and port")
    return text(value[0], "the address"), whole(value[1], "the port")


def find_meeting(store: CheckpointStore, job: str) -> tuple[str, int] | None:
    """Return where the head that keeps a store has said that it listens; None if it has left, or none keeps the store.

    The head may be gone without a word: whoever connects to it finds out.

    Args:
        store: the store.
        job: id of the job.

    Raises:
        ValueError: the index cannot be read.
        OSError: the store does not answer, or refuses.
    """
    found = store.read(indexes.NAME)
    index = None if found is None else indexes.parse(found.data)
    written = store.read(NAME)
    beat = None if written is None else parse(written.data)
    if index is None or beat is None or index.job != job or beat.claim != index.claim or beat.ended:
        return None
    return beat.meeting


class LivingOwnerError(Exception):
    """The owner of the store lives. The message is a part of a sentence that says who it is."""


class OwnerWatch:
    """What was seen of an owner's heartbeat. Pure; moments are monotonic seconds of the process that looks."""

    def __init__(self, claim: str, silent_seconds: float = SILENT_SECONDS) -> None:
        """Begin without having looked.

        Args:
            claim: the claim of the owner that the index names.
            silent_seconds: after so many seconds without a change the owner is lost.
        """
        self._claim = claim
        self._silent_seconds = silent_seconds
        self._seen: str | None = None
        self._since: float | None = None
        self.is_alive = False
        """whether the heartbeat was seen to change"""
        self.is_gone = False
        """whether the owner has left, or is lost"""

    def record(self, version: str | None, beat: Heartbeat | None, now: float) -> None:
        """Record what a look has found.

        Args:
            version: the version of the object; None if there is none.
            beat: its content; None if there is none.
            now: when the look was begun.
        """
        if beat is not None and beat.claim == self._claim and beat.ended:
            self.is_gone = True
        elif self._since is None:
            self._seen = version
            self._since = now
        elif version != self._seen:
            self.is_alive = True
        elif now - self._since >= self._silent_seconds:
            self.is_gone = True


def wait_until_gone(
    store: CheckpointStore,
    index: Index,
    pause: Callable[[float], bool],
    begin_waiting: Callable[[str, float], object],
    silent_seconds: float = SILENT_SECONDS,
) -> None:
    """Wait until the owner of a store has left, or was silent for so long that it is taken for lost.

    Args:
        store: the store.
        index: the index of the store.
        pause: waits up to the given seconds; returns True as soon as waiting is to be given up.
        begin_waiting: called with the owner and the longest wait in seconds, if the owner has not said that it left.
        silent_seconds: as OwnerWatch takes it.

    Raises:
        LivingOwnerError: the owner lives, or waiting was given up.
        OSError: the store does not answer, or refuses.
    """
    watch = OwnerWatch(index.claim, silent_seconds)
    look_seconds = min(LOOK_SECONDS, silent_seconds / 4)
    is_first = True
    while True:
        began = time.monotonic()
        found = store.read(NAME)
        beat = None if found is None else parse(found.data)
        watch.record(None if found is None else found.version, beat, began)
        if watch.is_gone:
            return
        since = "" if beat is None or beat.claim != index.claim else f" since {beat.since}"
        if watch.is_alive:
            raise LivingOwnerError(f"job {index.job} runs on {index.owner}{since}")
        if is_first:
            begin_waiting(index.owner, silent_seconds)
            is_first = False
        if pause(look_seconds):
            raise LivingOwnerError(f"job {index.job} may still run on {index.owner}{since}")


class HeartbeatThread:
    """Writes the heartbeats of this process in a thread of its own, from `start` to `end`."""

    def __init__(
        self,
        store: CheckpointStore,
        claim: str,
        owner: str,
        overtaken: Callable[[str], None],
        meeting: tuple[str, int] | None = None,
        period_seconds: float = PERIOD_SECONDS,
    ) -> None:
        """Write nothing yet.

        Args:
            store: the store, which this process has claimed.
            claim: the token of the claim.
            owner: host and pid of this process.
            overtaken: called in the thread, once, with the owner if another process has taken the store over.
            meeting: where the head of a job of several nodes listens.
            period_seconds: seconds between two heartbeats.
        """
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._store = store
        self._beat = Heartbeat(claim, owner, since, meeting)
        self._version: str | None = None
        self._overtaken = overtaken
        self._period_seconds = period_seconds
        self._is_ending = threading.Event()
        # A daemon: a request that the store does not answer must not keep this process from ending.
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Write the first heartbeat, in the place of an earlier owner's, and begin the thread. Raises OSError."""
        found = self._store.read(NAME)
        self._version = None if found is None else found.version
        with suppress(ChangedError):  # an owner that was taken for lost has beaten once more: the thread is next
            self._version = replace_object(self._store, NAME, dump(self._beat), self._version)
        self._thread.start()

    def end(self) -> None:
        """Say in the store that this process leaves, unless that takes too long, and end the thread."""
        self._is_ending.set()
        self._thread.join(_LAST_SECONDS)

    def _run(self) -> None:
        is_ending = False
        while not is_ending:
            is_ending = self._is_ending.wait(self._period_seconds)
            self._beat = replace(self._beat, number=self._beat.number + 1, ended=is_ending)
            try:
                owner = self._write()
            except OSError:
                continue  # the next heartbeat tries it again, and a commit tells of a store that does not answer
            if owner is not None:
                self._overtaken(owner)
                return

    def _write(self) -> str | None:
        """Replace the heartbeat. Return the owner of the store if that is another one. Raises OSError."""
        for _ in range(_MOST_TRIES):
            try:
                self._version = replace_object(self._store, NAME, dump(self._beat), self._version)
            except ChangedError:
                # The index decides: the heartbeat may be the last one of an owner that this process has overtaken. Or
                # the object was removed by hand, or an earlier request of this process has arrived late.
                owner = self._other_owner()
                if owner is not None:
                    return owner
                found = self._store.read(NAME)
                self._version = None if found is None else found.version
            else:
                return None
        return None

    def _other_owner(self) -> str | None:
        """Return the owner that the index names if it is not this process. Raises OSError."""
        found = self._store.read(indexes.NAME)
        try:
            index = None if found is None else indexes.parse(found.data)
        except ValueError:
            return None  # the next commit says what is wrong
        return None if index is None or index.claim == self._beat.claim else index.owner

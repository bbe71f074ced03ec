"""The interface of a checkpoint store: objects with names, of which one can be replaced on a condition.

A checkpoint store is a class in a file of its own in this folder, with an entry in
`spec/checkpoint_stores.py`. `StoredCheckpoints` uses
any of them. The process that keeps the store (`keeper.py`) calls all methods, some in several threads at
once, and they may wait for the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from ftlaunch.extensions import load
from ftlaunch.spec.checkpoint_stores import STORES
from ftlaunch_contract.protocol import scheme_of

Spent = Callable[[int], None]
"""Called with the number of bytes of each piece that was sent or received; waits where a bandwidth is to be kept."""

SMALL_FILE = 8 << 20
"""bytes; a file that is no larger is sent in one request"""


class ChangedError(Exception):
    """An object was not replaced, because another process has replaced it since it was read."""


class Content(NamedTuple):
    """A small object, as it was read."""

    data: bytes
    version: str
    """a word of the store for exactly this content; another content has another one"""


class CheckpointStore(Protocol):
    """Objects below one place, for instance below a prefix of a bucket.

    Names are relative to the place: words of letters, digits, `.`, `_` and `-`, joined by `/`. Every method raises
    OSError with a `strerror` for people where the store does not answer, or refuses; retries are the store's affair.
    """

    scheme: ClassVar[str]
    """the beginning of an address, as in `s3://bucket/prefix`, without `://`"""
    where: str
    """the address, for people; never a secret"""

    @classmethod
    def open(cls, address: str) -> CheckpointStore:
        """Return the store at an address whose scheme is `scheme`. Nothing is asked of it yet.

        Raises:
            ValueError: the address is not one of this store; the message completes "cannot use ADDRESS: ".
            OSError: what is needed to reach the store is not there.
        """

    def read(self, name: str) -> Content | None:
        """Return a small object; None if there is none."""

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """Replace an object by `data`, or create it, in one step that is never half done.

        Args:
            name: the object.
            data: its new content, at most some MiB.
            version: what `read` or `replace` returned for the content to be replaced; None: there is to be none.

        Returns:
            The version of the new content.

        Raises:
            ChangedError: the object has another version. It stays as it is.
        """

    def upload(self, path: Path, name: str, spent: Spent) -> None:
        """Create an object from a file, or replace it. The object is there as a whole, or not at all."""

    def read_pieces(self, name: str, part: tuple[int, int] | None = None) -> Iterator[memoryview]:
        """Yield the content of an object of any size, piece by piece. The caller checks it.

        Args:
            name: the object.
            part: the byte at which to begin, and the byte before which to end. Nothing comes from behind the end of the
                object. None: all of it.

        Raises:
            FileNotFoundError: there is no such object.
        """

    def delete(self, name: str) -> None:
        """Delete an object; one that is not there is none to delete."""

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects that begin with `prefix`. What was created a moment ago may be missing."""


def open_store(address: str) -> CheckpointStore:
    """Return the store at an address that `spec/checkpoint_stores.py` allows. Nothing is asked of it yet.

    Raises:
        ValueError: the address is not one of that store; the message completes "cannot use ADDRESS: ".
        OSError: what is needed to reach the store is not there.
    """
    kind: type[CheckpointStore] = load(STORES[str(scheme_of(address))])
    return kind.open(address)


def replace_object(store: CheckpointStore, name: str, data: bytes, version: str | None) -> str:
    """Replace an object, and return its version. An answer that was lost to our own request is no refusal.

    Args:
        store: the store.
        name: the object.
        data: its new content, which nobody else writes.
        version: as `CheckpointStore.replace` takes it.

    Raises:
        ChangedError: the object has another version, and another content.
        OSError: the store does not answer, or refuses.
    """
    try:
        return store.replace(name, data, version)
    except ChangedError:
        found = store.read(name)
        if found is None or found.data != data:
            raise
        return found.version

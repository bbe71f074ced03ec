"""The table of checkpoint stores by the scheme of their addresses, and the parser of an address."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from ftlaunch.checkpoints.stores.store import CheckpointStore
from ftlaunch.extensions import load

STORES = {"file": "ftlaunch.checkpoints.stores.folder:FolderStore"}
"""scheme -> "module:class" of a CheckpointStore; loaded when a job has such a store"""

_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def scheme_of(text: str) -> str | None:
    """Return the scheme of an address, in lower case; None if the text is a path."""
    found = _ADDRESS.match(text)
    return None if found is None else found[1].lower()


def check_address(address: str) -> None:
    """Check an address as far as that can be done without the store.

    Raises:
        ValueError: it cannot be used; the message completes "cannot use ADDRESS: ", and never has a password.
    """
    scheme = scheme_of(address)
    if scheme not in STORES:
        known = ", ".join(f"{word}://" for word in STORES)
        raise ValueError(f"no store is known for `{scheme}://`; it must be a directory, or begin with one of {known}")
    parts = urlsplit(address)
    if parts.username is not None or parts.password is not None:
        raise ValueError("it has a user name or a password in it; give these as the store's own tools take them")
    if parts.query or parts.fragment:
        raise ValueError("it must end with the path: nothing with `?` or `#`")


def open_store(address: str) -> CheckpointStore:
    """Return the store at an address.

    Raises:
        ValueError: the address cannot be used.
        OSError: what is needed to reach the store is not there.
    """
    check_address(address)
    kind: type[CheckpointStore] = load(STORES[str(scheme_of(address))])
    return kind.open(address)

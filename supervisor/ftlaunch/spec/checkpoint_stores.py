"""The table of checkpoint stores by the scheme of their addresses, and what is checked of an address. Pure.

`checkpoints/stores/store.py` says how to write another store.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from ftlaunch.spec.errors import RefusedError
from ftlaunch_contract.protocol import scheme_of

STORES = {
    "file": "ftlaunch.checkpoints.stores.folder:FolderStore",
    "s3": "ftlaunch.checkpoints.stores.bucket:S3",
    "gs": "ftlaunch.checkpoints.stores.bucket:GoogleCloudStorage",
    "az": "ftlaunch.checkpoints.stores.bucket:AzureBlobStorage",
}
"""scheme -> "module:class" of a CheckpointStore; loaded when a job has such a store"""

CREDENTIALS = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
"""scheme -> how the names of the variables begin that have the store's credentials and endpoint, if it needs any"""

PACKAGES = {"ftlaunch.checkpoints.stores.bucket": ("obstore", "ftlaunch[cloud]")}
"""module of a store -> the package that it imports besides, and what pip installs it with"""

_HIDDEN = "***"


def address(text: str) -> str:
    """Return the address of a checkpoint store, without slashes at its end.

    Raises:
        RefusedError: the address cannot be used. What the error says was given never has a password.
    """
    scheme = scheme_of(text)
    parts = urlsplit(text)
    if "@" in parts.netloc:
        shown = f"{scheme}://{_HIDDEN}@{parts.netloc.rpartition('@')[2]}{parts.path}"
        reason = "a user name or a password has no place in an address; give it as the store's own tools take it"
        raise RefusedError(reason, given=shown)
    if scheme not in STORES:
        known = ", ".join(f"{word}://" for word in STORES)
        raise RefusedError(f"it must be a folder, or an address that begins with {known}")
    if parts.query or parts.fragment:
        raise RefusedError("it must end with a path: nothing with `?` or `#`", given=text.partition("?")[0])
    if not (parts.netloc + parts.path).strip("/"):
        raise RefusedError(f"it must name a place behind {scheme}://: a bucket, or an absolute path of a folder")
    return text.rstrip("/")


def credential_prefixes(*addresses: str | None) -> tuple[str, ...]:
    """Return how the names of the variables begin that stores at these addresses need. None stands for no store."""
    schemes = {scheme_of(address) for address in addresses if address is not None}
    return tuple(prefix for scheme, prefix in CREDENTIALS.items() if scheme in schemes)

"""Checkpoints kept in a bucket: `s3://`, `gs://` and `az://`, through the library obstore.

Only the process that keeps a store, or reads one for `ftctl` or for a start, loads this module. Credentials, region and
endpoint are found as obstore finds them: in the variables AWS_*, GOOGLE_* and AZURE_*, and where the provider's own
machines have them.

A large file is sent in parts of `_part_size` bytes, `_PARTS` at a time, so that a file under way holds at most
`_PARTS` + 2 parts in memory. obstore aborts an upload that fails.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, S3Store

from ftlaunch.checkpoints.stores.store import SMALL_FILE, ChangedError, Content, Spent

if TYPE_CHECKING:
    from obstore.store import RetryConfig

T = TypeVar("T")

_MOST_PARTS = 10_000  # of one object, in S3
_PARTS = 8  # of one file that are sent at the same time; with 2, links that limit each connection stay half empty
_PIECE = 1 << 20  # bytes of a download that are handed over at once: few enough to stay in the processor's cache
RETRY_SECONDS = 60.0  # after the first try, in which another one may begin
_AGAIN_SECONDS = 1.0  # between two tries of a request that obstore tries once
SILENT_SECONDS = 30.0  # without a byte of an answer, after which a try has failed
_NO_LIMIT = "7days"  # for one request: a large download may take as long as it takes

_BEYOND_END = "416"  # the status of an answer if an object has nothing of the part that is asked for
_PASSING_STATUS = {"429", "500", "502", "503", "504"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound", "NotFoundBucket"}
_BAD_CREDENTIALS = {
    "AuthenticationFailed", "ExpiredToken", "InvalidAccessKeyId", "InvalidAuthenticationInfo", "InvalidToken",
    "SignatureDoesNotMatch", "TokenRefreshRequired", "UnrecognizedClientException",
}  # fmt: skip
_CREDENTIAL_SOURCES = ("169.254.169.254", "169.254.170", "metadata.google.internal", "AssumeRole", "oauth2")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


class BucketStore:
    """Objects of a bucket whose names begin with a prefix. Implements CheckpointStore.

    There is a subclass for each provider.
    """

    scheme: ClassVar[str]
    variables: ClassVar[str]
    """how the names of the provider's variables begin, for people"""
    client: ClassVar[Any]
    """obstore's class for the provider's buckets"""

    def __init__(self, bucket: str, prefix: str) -> None:
        self.where = f"{self.scheme}://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        retry: RetryConfig = {
            "max_retries": 1000,  # `retry_timeout` ends them
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
            "backoff": {"max_backoff": timedelta(seconds=5)},
        }
        settings = {"timeout": _NO_LIMIT, "read_timeout": f"{SILENT_SECONDS}s"}
        try:
            self._objects = self.client(bucket, prefix=prefix or None, retry_config=retry, config=settings)
        except (BaseError, ValueError) as error:
            raise self._failure(error, "use") from None

    @classmethod
    def open(cls, address: str) -> BucketStore:
        """Return the store at SCHEME://BUCKET/PREFIX.

        Raises:
            ValueError: there is no bucket of such a name, or no object can have such a prefix.
            OSError: a variable of the provider has a value that cannot be used.
        """
        bucket, _, prefix = address.partition("://")[2].partition("/")
        if not _NAME.fullmatch(bucket):
            raise ValueError(
                f"it must be {cls.scheme}://BUCKET/PREFIX, and a bucket's name has 3 to 63 lower-case letters, digits,"
                " `.`, `-` and `_`"
            )
        if prefix and any(part in ("", ".", "..") or not part.isprintable() for part in prefix.split("/")):
            raise ValueError("the prefix must be names joined by `/`, none of which is empty, `.` or `..`")
        return cls(bucket, prefix)

    def read(self, name: str) -> Content | None:
        """Return a small object; None if there is none. Raises OSError."""
        try:
            found = obstore.get(self._objects, name)
            return Content(bytes(found.bytes()), _version(found.meta))
        except FileNotFoundError as error:
            if _code(str(error)) in _NO_BUCKET:
                raise self._failure(error, "read") from None
            return None
        except BaseError as error:
            raise self._failure(error, "read") from None

    def replace(self, name: str, data: bytes, version: str | None) -> str:
        """Replace an object if it has the given version (None: if there is none), by one conditional request.

        Raises:
            ChangedError: the object has another version, or was removed; or an earlier try was carried out, and its
                answer was lost.
            OSError: the store does not answer, or refuses.
        """
        return self._persist(lambda: self._try_replace(name, data, version))

    def _try_replace(self, name: str, data: bytes, version: str | None) -> str:
        """Try once to replace an object. Raises ChangedError, OSError."""
        try:
            put = obstore.put(self._objects, name, data, mode="create" if version is None else json.loads(version))
        except (AlreadyExistsError, PreconditionError):
            raise ChangedError(name) from None
        except FileNotFoundError as error:
            if version is None or _code(str(error)) in _NO_BUCKET:
                raise self._failure(error, "write") from None
            raise ChangedError(name) from None
        except BaseError as error:
            raise self._failure(error, "write") from None
        return _version(put)

    def upload(self, path: Path, name: str, spent: Spent) -> None:
        """Create an object from a file: in one request, or in parts if it is large. Raises OSError."""
        self._persist(lambda: self._try_upload(path, name, spent))

    def _persist(self, do: Callable[[], T]) -> T:
        """Try something again for a while if its connection is cut, or the server is busy, and return what it returns.

        obstore does so only with requests that may be carried out twice: not with those on a condition, nor with those
        that begin or complete an upload in parts. But one of these may be the last commit of a job.
        """
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            try:
                return do()
            except OSError as error:
                if error.errno not in (errno.EHOSTUNREACH, errno.EBUSY) or time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_SECONDS)  # nothing tells when a server is back

    def _try_upload(self, path: Path, name: str, spent: Spent) -> None:
        """Try once to create an object from a file. Raises OSError."""
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                if size <= SMALL_FILE:
                    data = file.read(SMALL_FILE)
                    obstore.put(self._objects, name, data, use_multipart=False)
                    spent(len(data))
                else:
                    part = _part_size(size)
                    obstore.put(
                        self._objects,
                        name,
                        _parts(file, part, spent=spent),
                        chunk_size=part,
                        max_concurrency=_PARTS,
                    )
            except (BaseError, FileNotFoundError) as error:
                raise self._failure(error, "write") from None

    def read_pieces(self, name: str, part: tuple[int, int] | None = None) -> Iterator[memoryview]:
        """Yield the content of an object, or of a part of it. Raises OSError; FileNotFoundError if there is none."""
        try:
            found = obstore.get(self._objects, name, options=None if part is None else {"range": part})
            for piece in found.stream(min_chunk_size=_PIECE):
                yield memoryview(piece)
        except FileNotFoundError as error:
            if _code(str(error)) in _NO_BUCKET:
                raise self._failure(error, "read") from None
            raise FileNotFoundError(errno.ENOENT, "there is no such object", f"{self.where}/{name}") from None
        except BaseError as error:
            if _status(str(error)) == _BEYOND_END:
                return
            raise self._failure(error, "read") from None

    def delete(self, name: str) -> None:
        """Delete an object. Raises OSError."""
        self._persist(lambda: self._try_delete(name))

    def _try_delete(self, name: str) -> None:
        """Try once to delete an object. Raises OSError."""
        try:
            obstore.delete(self._objects, name)
        except FileNotFoundError as error:
            if _code(str(error)) in _NO_BUCKET:
                raise self._failure(error, "delete") from None
        except BaseError as error:
            raise self._failure(error, "delete") from None

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names of the objects that begin with `prefix`. Raises OSError."""
        folder = prefix.rpartition("/")[0]  # obstore lists whole folders
        try:
            for found in obstore.list(self._objects, folder or None):
                for entry in found:
                    if entry["path"].startswith(prefix):
                        yield entry["path"]
        except (BaseError, FileNotFoundError) as error:
            raise self._failure(error, "list") from None

    def _failure(self, error: Exception, verb: str) -> OSError:
        """Return the error for people. What obstore says is searched for codes and not shown, because it has URLs."""
        said = str(error)
        code = _code(said)
        status = _status(said)
        shown = " ".join(filter(None, (status, code)))
        if code in _NO_BUCKET:
            return OSError(
                errno.EIO,  # not ENOENT: for the caller that would be a missing object, or a missing file
                f"there is no bucket `{self._bucket}` there; create it, or correct the address ({shown})",
            )
        if any(source in said.partition("Debug source")[0] for source in _CREDENTIAL_SOURCES):
            return OSError(
                errno.EACCES, f"no credentials were found; set those of {self.variables}, or give the machine a role"
            )
        if code in _BAD_CREDENTIALS or status == "401":
            return OSError(
                errno.EACCES,
                f"the credentials are wrong or have expired ({shown}); renew those that {self.variables} give",
            )
        if code == "AccessDenied" or status == "403":
            what = "list" if verb == "list" else f"{verb} objects in"
            return OSError(
                errno.EACCES,
                f"the credentials do not allow to {what} the bucket ({shown}); the job must read, write, list and"
                " delete there",
            )
        if status:
            kind = errno.EBUSY if status in _PASSING_STATUS else errno.EIO
            return OSError(kind, f"it answers {shown} when asked to {verb}; try again later")
        if "redirect" in said:
            return OSError(errno.EIO, f"the bucket is in another region; set {self.variables.rstrip('*')}REGION")
        if "HTTP error" in said:
            return OSError(
                errno.EHOSTUNREACH,
                f"no answer; check the network, and the endpoint if {self.variables} name one",
            )
        return OSError(errno.EIO, f"the request to {verb} has failed: {_first_line(said)}")


class S3(BucketStore):
    """A bucket of S3, or of a server that speaks its protocol and honours conditions."""

    scheme = "s3"
    variables = "AWS_*"
    client = S3Store


class GoogleCloudStorage(BucketStore):
    """A bucket of Google Cloud Storage."""

    scheme = "gs"
    variables = "GOOGLE_*"
    client = GCSStore


class AzureBlobStorage(BucketStore):
    """A container of Azure Blob Storage. AZURE_STORAGE_ACCOUNT_NAME names the account."""

    scheme = "az"
    variables = "AZURE_*"
    client = AzureStore


def _version(meta: Any) -> str:
    """Return what obstore needs to replace exactly this content."""
    return json.dumps({name: meta[name] for name in ("e_tag", "version") if meta[name] is not None})


def _part_size(size: int) -> int:
    """Return the bytes of a part: `SMALL_FILE`, or what a file needs to have no more than `_MOST_PARTS`."""
    return max(SMALL_FILE, -(-size // _MOST_PARTS))


def _parts(file: IO[bytes], size: int, spent: Spent) -> Iterator[bytes]:
    while part := file.read(size):
        spent(len(part))
        yield part


def _code(said: str) -> str:
    """Return the provider's word for an error; empty if there is none."""
    found = re.search(r"<Code>(\w+)</Code>|(?<!status )code: (\w+)", said)
    return "" if found is None else found[1] or found[2]


def _status(said: str) -> str:
    """Return the HTTP status of the answer; empty if there was none."""
    found = re.search(r"status code: (\d{3})", said)
    return "" if found is None else found[1]


def _first_line(said: str) -> str:
    return re.sub(r"\w+://\S+", "(address)", said.partition("\n")[0])[:200]

"""The secret by which the nodes of a job recognise each other: a file in a shared run dir, or an environment variable.

token = read_or_make(run_dir / "token")     # the same on every node, whichever node comes first
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from ftlaunch_contract.files.atomic import link_once

TOKEN_VARIABLE = "FTLAUNCH_TOKEN"  # noqa: S105 - the name of the variable
ETCD_USER = "FTLAUNCH_ETCD_USER"
ETCD_PASSWORD = "FTLAUNCH_ETCD_PASSWORD"  # noqa: S105 - the name of the variable
_SECRETS = {TOKEN_VARIABLE, ETCD_USER, ETCD_PASSWORD}
LEAST_TOKEN = 16
"""fewest characters of a token that a person chose"""
NO_TOKEN = b"ftlaunch without authentication"
"""what nodes use in place of a token where the user wants none; everybody knows it"""
FROM_STDIN = "-"
"""value of a variable whose secret is a line of standard input"""
_BYTES = 32  # of a generated token
_CONTENT = re.compile(rb"[0-9a-f]{%d}" % (2 * _BYTES))


class TokenRefused(Exception):
    """A token file cannot be trusted; the message is one sentence that begins with `cannot`."""


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for a process that needs neither the token nor etcd: a rank, a helper, and their children."""
    return {name: value for name, value in environ.items() if name not in _SECRETS}


def with_lines(environ: Mapping[str, str], lines: TextIO) -> dict[str, str]:
    """Return `environ` with each secret that is given as `-` replaced by a line of input.

    The result is a copy, so that the secrets do not appear in the environment that /proc shows.

    Args:
        environ: environment of this process.
        lines: has one line for each such secret, in the order of the variables' names.
    """
    names = sorted(name for name in _SECRETS if environ.get(name) == FROM_STDIN)
    return {**environ, **{name: lines.readline().rstrip("\n") for name in names}}


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets in `environ`, in the order of their names."""
    return {name: environ[name] for name in sorted(_SECRETS) if name in environ}


def read_or_make(path: Path) -> bytes:
    """Return the token in a file, as hexadecimal digits. If there is no file, create one with a new token.

    A file is linked to its name once it is whole. If many nodes try at once, one creates the file, and all read the
    same token.

    Args:
        path: the file; its folder must exist.

    Raises:
        TokenRefused: the file cannot be trusted.
        OSError: the file cannot be created or read.
    """
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        _write(temporary, os.urandom(_BYTES).hex().encode())
        with contextlib.suppress(FileExistsError):  # another node was first
            link_once(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return _read(path)


def _write(path: Path, content: bytes) -> None:
    """Write a new file with mode 600, and sync it to storage. Raises OSError."""
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(opened, 0o600)  # the umask and the folder's default ACL may have changed the mode
        if os.write(opened, content) != len(content):
            raise OSError(f"cannot write {path}: the disk is full")
        os.fsync(opened)
    finally:
        os.close(opened)


def _read(path: Path) -> bytes:
    """Read a token file after checking that only this user can have written it. Raises TokenRefused or OSError."""
    try:
        # with O_NONBLOCK, because opening a FIFO of that name would wait for a writer
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise TokenRefused(f"cannot use the token in {path}: {str(error.strerror).lower()}") from None
    try:
        if reason := _why_not(os.fstat(opened)):
            raise TokenRefused(f"cannot use the token in {path}: {reason}")
        content = os.read(opened, 2 * _BYTES + 1)
    finally:
        os.close(opened)
    if not _CONTENT.fullmatch(content):
        raise TokenRefused(f"cannot use the token in {path}: it is not {2 * _BYTES} hexadecimal digits; remove it")
    return content


def _why_not(found: os.stat_result) -> str | None:
    """Say why a file cannot hold this user's secret; None if it can."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, not to us ({os.geteuid()})"
    if found.st_mode & 0o077:
        return f"others may open it (mode {stat.S_IMODE(found.st_mode):o}); it must have mode 600"
    return None

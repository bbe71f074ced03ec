"""The secret by which the nodes of a job know each other: a file in a run dir that all of them share, or a variable.

token = read_or_make(run_dir / "token")     # the same on every node, whoever comes first
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
"""characters of a token that a person chose"""
FROM_STDIN = "-"
"""instead of a secret: it is a line of standard input"""
_BYTES = 32
_CONTENT = re.compile(rb"[0-9a-f]{%d}" % (2 * _BYTES))


class TokenRefused(Exception):
    """A token file that cannot be trusted; the message is one sentence that begins with `cannot`."""


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process that needs neither the token nor etcd: a rank, a helper, what they start."""
    return {name: value for name, value in environ.items() if name not in _SECRETS}


def with_lines(environ: Mapping[str, str], lines: TextIO) -> dict[str, str]:
    """`environ`, in which a secret that is given as `-` is read from a line: several by the order of their names.

    What is read is in no environment that /proc shows.
    """
    asked = sorted(name for name in _SECRETS if environ.get(name) == FROM_STDIN)
    return {**environ, **{name: lines.readline().rstrip("\n") for name in asked}}


def secrets_of(environ: Mapping[str, str]) -> dict[str, str]:
    """The secrets that `environ` holds, in the order of their names."""
    return {name: environ[name] for name in sorted(_SECRETS) if name in environ}


def read_or_make(path: Path) -> bytes:
    """The token in the file `path`, in hexadecimal digits; made where there is none yet. Its folder must be there.

    The file gets its name once it is whole: of many nodes that try at once one makes it, and all read the same.
    Raises TokenRefused, OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    written = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        _write(written, os.urandom(_BYTES).hex().encode())
        with contextlib.suppress(FileExistsError):  # another node was first
            link_once(written, path)
    finally:
        written.unlink(missing_ok=True)
    return _read(path)


def _write(path: Path, content: bytes) -> None:
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(opened, 0o600)  # whatever the umask and the folder's default ACL make of it
        if os.write(opened, content) != len(content):
            raise OSError(f"cannot write {path}: the disk is full")
        os.fsync(opened)
    finally:
        os.close(opened)


def _read(path: Path) -> bytes:
    try:
        # O_NONBLOCK: a FIFO of that name would keep us waiting
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
    """Why a file cannot hold a secret of ours."""
    if not stat.S_ISREG(found.st_mode):
        return "it is no regular file"
    if found.st_uid != os.geteuid():
        return f"it belongs to user {found.st_uid}, not to us ({os.geteuid()})"
    if found.st_mode & 0o077:
        return f"others may open it (mode {stat.S_IMODE(found.st_mode):o}); it must have mode 600"
    return None

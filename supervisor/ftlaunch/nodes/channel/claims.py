"""Who is the head of a job of several nodes, and where it listens: claims in the run dir, which all nodes share.

claims.claim(sign)       # link(2): of many that claim a term one wins, and nobody ever reads half a claim
claims.show(sign)        # again and again: the head lives; the storage is the witness where the network is cut
claims.read()            # whoever has lost the head

Each head has a term of its own. Whoever reads a higher term than its own is head no more. The sign of life is one file
under one name that is replaced: NFS asks its server whenever a name is opened, and not whenever a directory is listed.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ftlaunch.history.runs import CLAIMS
from ftlaunch.nodes.channel.claim_files import ClaimFiles, ClaimStore
from ftlaunch_contract.files import untrusted_json

NOT_OVER = -1
_SIGN = "sign.json"
_LINKED = 2  # names of a written claim that has got its own


@dataclass(frozen=True)
class Sign:
    """What a head says of itself."""

    term: int
    address: str
    port: int
    machine: str
    """see `this_machine`"""
    pid: int
    started: int
    """start time of that process, in the kernel's ticks: a reused pid is another process"""
    count: int
    """counts the signs of this head: where it goes on counting, it lives"""
    over: int = NOT_OVER
    """the job has ended with this exit code"""

    @property
    def ended(self) -> bool:
        """Whether the job has ended under this head."""
        return self.over != NOT_OVER


def this_machine() -> str:
    """Names what a process and its pid can be seen from: a boot of a kernel, a host name, and namespaces."""
    spaces = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("pid", "net")]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, os.uname().nodename[:100], *spaces])


_NUMBERS = [field.name for field in dataclasses.fields(Sign) if field.type == "int"]


class Claims:
    """Of one job: an Arbiter."""

    def __init__(self, run_dir: Path, files: ClaimStore | None = None) -> None:
        """run_dir: the directory that all nodes share. files: its folder of claims, where they are no files there."""
        self.folder = run_dir / CLAIMS
        self.where = str(self.folder)
        self._files = ClaimFiles(self.folder) if files is None else files

    def read(self) -> Sign | None:
        """See Arbiter."""
        try:
            return self.newest()
        except OSError:
            return None

    def newest(self) -> Sign | None:
        """See Arbiter. What cannot be a sign is none."""
        try:
            return parse(self._files.read(_SIGN))
        except (FileNotFoundError, ValueError):
            return None

    def next_term(self) -> int:
        """See Arbiter. It counts whether the winner has shown its sign or has died before."""
        newest = self.read()
        ends = [name.removeprefix("claim.") for name in self._files.names() if name.startswith("claim.")]
        claimed = [int(end) for end in ends if end.isdigit()]
        return 1 + max([0 if newest is None else newest.term, *claimed])

    def claim(self, sign: Sign) -> bool:
        """See Arbiter."""
        files = self._files
        written = f".claim.{os.urandom(8).hex()}"
        try:
            files.write(written, _bytes(sign), durable=True)
            self._link(written, f"claim.{sign.term}")
        except FileExistsError:
            return False
        finally:
            files.remove(written)
        newest = self.read()
        if newest is not None and newest.term >= sign.term:
            return False
        self.show(sign)
        return True

    def _link(self, written: str, name: str) -> None:
        """Raises OSError where the link was not made: of one that was made, NFS may lose the answer."""
        try:
            self._files.link(written, name)
        except OSError:
            if self._files.links(written) != _LINKED:
                raise

    def show(self, sign: Sign) -> None:
        """See Arbiter."""
        written = f".{_SIGN}.{sign.term}"
        self._files.write(written, _bytes(sign), durable=False)
        self._files.replace(written, _SIGN)

    def newer(self, term: int) -> Sign | None:
        """Return the sign of a head with a higher term; None where no higher term was claimed. Raises OSError.

        The claim of the next term counts as much as the sign: a head that was frozen between its look at the sign and
        showing its own has written over the sign of the head that has taken over. No term is claimed before the one
        ahead of it.
        """
        newest = self.newest()
        if newest is not None and newest.term > term:
            return newest
        name = f"claim.{term + 1}"
        try:
            return parse(self._files.read(name))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise OSError(errno.EIO, f"it is no claim: {error}", str(self.folder / name)) from error

    def check(self, term: int) -> None:
        """See Arbiter."""
        if self.read() is None:
            raise PermissionError(f"the sign of the head in {self.folder} cannot be read")
        try:
            newer = self.newer(term)
        except OSError as error:
            raise PermissionError(f"{error.filename or self.folder} cannot be read: {error.strerror}") from error
        if newer is not None:
            refuse_commit(newer)


def refuse_commit(newest: Sign) -> NoReturn:
    """Raises PermissionError: this head is of an older term."""
    raise PermissionError(f"another head has taken over the job, at {newest.address} port {newest.port}")


def parse(content: bytes) -> Sign:
    """A sign from what was read. Raises ValueError where it is none."""
    found = of_fields(untrusted_json.mapping(untrusted_json.parse(content), "the sign of the head"))
    if found is None:
        raise ValueError("the sign of the head lacks a field")
    return found


def of_fields(told: Mapping[str, Any]) -> Sign | None:
    """A sign from its fields; None where one is missing. Raises ValueError where one is nonsense."""
    try:
        words = {name: untrusted_json.text(told[name], name) for name in ("address", "machine")}
        return Sign(**words, **{name: untrusted_json.whole(told[name], name, NOT_OVER) for name in _NUMBERS})  # type: ignore[arg-type]
    except KeyError:
        return None


def _bytes(sign: Sign) -> bytes:
    return json.dumps(vars(sign)).encode()

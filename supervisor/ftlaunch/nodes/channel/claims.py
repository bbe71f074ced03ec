"""The arbiter in the shared run dir: says which process is the head of a job, and where the head listens.

    claims.claim(sign)  # by a process that wants to be the head; link(2) lets exactly one process win a term
    claims.show(sign)   # by the head, again and again, to show that it lives even if the network is cut
    claims.read()       # by an agent that has lost the head

Each head has a term of its own. A head that reads a term above its own is no longer the head. The sign of life is one
file that is replaced under the same name, because NFS asks its server whenever a name is opened, but not whenever a
directory is listed.

`Claims` is for one thread at a time, and waits for storage. The functions that read a `Sign` are pure.
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
from ftlaunch_contract.protocol import process_start_time

STALE_PART = 0.75
"""the fraction of the node timeout without a sign of life after which a node may have the head replaced"""
NOT_OVER = -1
"""`Sign.over` of a job that goes on"""
_SIGN = "sign.json"
_LINKED = 2  # names of a written claim after a successful link


@dataclass(frozen=True)
class Sign:
    """A head's sign of life: what the head says about itself."""

    term: int
    """the term that the head has claimed"""
    address: str
    """the numeric address at which other machines find the head"""
    port: int
    machine: str
    """the head's machine, as `this_machine` names it"""
    pid: int
    started: int
    """the start time of the head's process, in the kernel's ticks, by which a reused pid is recognised"""
    count: int
    """the number of this sign; a head that lives goes on counting"""
    over: int = NOT_OVER
    """the exit code of the job once it has ended, or NOT_OVER"""

    @property
    def process(self) -> str:
        """What tells the head's process from all others, of all machines."""
        return f"{self.machine} {self.pid} {self.started}"

    @property
    def ended(self) -> bool:
        """Whether the job has ended under this head."""
        return self.over != NOT_OVER


def this_machine() -> str:
    """Return a name for the place in which a pid means one process: kernel boot, host name and namespaces."""
    spaces = [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("pid", "net")]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return " ".join([boot, os.uname().nodename[:100], *spaces])


def is_alive_here(sign: Sign) -> bool:
    """Return whether the head of a sign is a process of this machine that still exists."""
    return sign.machine == this_machine() and process_start_time(sign.pid) == sign.started


_NUMBERS = [field.name for field in dataclasses.fields(Sign) if field.type == "int"]


class Claims:
    """The arbiter of one job, in its run dir."""

    def __init__(self, run_dir: Path, files: ClaimStore | None = None) -> None:
        """Use the claims in a run dir.

        Args:
            run_dir: the directory that all nodes share.
            files: replaces the folder of claims in the run dir; for the simulation.
        """
        self.folder = run_dir / CLAIMS
        self.where = str(self.folder)
        self._files = ClaimFiles(self.folder) if files is None else files

    def read(self) -> Sign | None:
        """Return the newest sign, or None if there is none or storage does not answer."""
        try:
            return self.newest()
        except OSError:
            return None

    def newest(self) -> Sign | None:
        """Return the newest sign, or None if there is none or the file holds no sign.

        Raises:
            OSError: storage does not answer.
        """
        try:
            return parse(self._files.read(_SIGN))
        except (FileNotFoundError, ValueError):
            return None

    def next_term(self) -> int:
        """Return the term after all claimed ones, including those of winners that died before they showed a sign.

        Raises:
            OSError: storage does not answer.
        """
        newest = self.read()
        ends = [name.removeprefix("claim.") for name in self._files.list_names() if name.startswith("claim.")]
        claimed = [int(end) for end in ends if end.isdigit()]
        return 1 + max([0 if newest is None else newest.term, *claimed])

    def claim(self, sign: Sign) -> bool:
        """Claim the term of `sign` and show the sign.

        The claim is written under a random name and then linked to the name of its term. Of several links one succeeds,
        and nobody ever reads half a claim.

        Returns:
            False if another process has claimed this term or a higher one.

        Raises:
            OSError: the claim cannot be written.
        """
        files = self._files
        written = f".claim.{os.urandom(8).hex()}"
        try:
            files.write(written, _encode(sign), durable=True)
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
        """Link a written claim to the name of its term.

        NFS may lose the answer to a link that was made; therefore the number of names decides.

        Raises:
            OSError: the link was not made. FileExistsError: the name is taken.
        """
        try:
            self._files.link(written, name)
        except OSError:
            if self._files.count_links(written) != _LINKED:
                raise

    def show(self, sign: Sign) -> None:
        """Replace the sign of life by `sign`.

        Raises:
            OSError: the sign cannot be written.
        """
        written = f".{_SIGN}.{sign.term}"
        self._files.write(written, _encode(sign), durable=False)
        self._files.replace(written, _SIGN)

    def newer(self, term: int) -> Sign | None:
        """Return the sign of a head with a term above `term`, or None if no higher term was claimed.

        The claim of the next term counts as much as the sign. A head that was frozen just before it showed its sign may
        have overwritten the sign of the head that has taken over. Terms are claimed one after another, so that the
        claim of the next term exists if any higher one does.

        Raises:
            OSError: storage does not answer, or holds a claim that cannot be read.
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
        """Check that the head of `term` still leads.

        Raises:
            PermissionError: a head of a higher term has claimed the job, or storage does not answer.
        """
        if self.read() is None:
            raise PermissionError(f"the sign of the head in {self.folder} cannot be read")
        try:
            newer = self.newer(term)
        except OSError as error:
            raise PermissionError(f"{error.filename or self.folder} cannot be read: {error.strerror}") from error
        if newer is not None:
            refuse_commit(newer)


def refuse_commit(newest: Sign) -> NoReturn:
    """Refuse a commit by the head of an older term.

    Args:
        newest: the sign of the head that has taken over.

    Raises:
        PermissionError: always.
    """
    raise PermissionError(f"another head has taken over the job, at {newest.address} port {newest.port}")


def parse(content: bytes) -> Sign:
    """Return the sign that the content of a file holds.

    Raises:
        ValueError: the content is no sign.
    """
    found = of_fields(untrusted_json.mapping(untrusted_json.parse(content), "the sign of the head"))
    if found is None:
        raise ValueError("the sign of the head lacks a field")
    return found


def of_fields(fields: Mapping[str, Any]) -> Sign | None:
    """Return a sign made of its fields, or None if a field is missing.

    Raises:
        ValueError: a field has a wrong type or value.
    """
    try:
        texts = {name: untrusted_json.text(fields[name], name) for name in ("address", "machine")}
        numbers = {name: untrusted_json.whole(fields[name], name, NOT_OVER) for name in _NUMBERS}
        return Sign(**texts, **numbers)  # type: ignore[arg-type]
    except KeyError:
        return None


def _encode(sign: Sign) -> bytes:
    return json.dumps(vars(sign)).encode()

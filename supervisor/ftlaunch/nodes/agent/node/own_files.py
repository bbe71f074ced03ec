"""The files of a node whose run dir is not the head's: the head is sent what it must read, and sends the journal.

The head judges a failure by what the failed ranks have left in files, and keeps the data of autopsies. Where the run
dir is shared it reads the files themselves. Where it is not, `OwnFiles` sends it the ends of the logs, the exceptions,
and the autopsies' files; and it keeps copies of the journal, so that `ftctl` works here, and of what a head on this
node would go on from (cluster/mirrors/run_dir_copies.py).
Runs in the agent's event loop; files are touched in the file thread.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.autopsy import client as autopsy
from ftlaunch.history.journal import EVENTS
from ftlaunch.nodes.cluster.membership import plan
from ftlaunch.nodes.cluster.mirrors.run_dir_copies import WHOLE, WHOLE_FILES
from ftlaunch.ranks.environment import error_file
from ftlaunch.ranks.log_files import log_path
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThread
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.dirlock import Holder, living_holder
from ftlaunch_contract.files.regular_file import open_regular, read_regular

MOST_BYTES = 64 << 10
"""bytes of the end of a log that are sent"""
_MOST_OF_A_FILE = 2 << 20  # bytes of an exception, or of a file of an autopsy; a longer file is not sent
_MOST_OF_A_JOURNAL = 64 << 20  # bytes; a longer journal is sent anew and not compared
PUT_ASIDE = "events.before.jsonl"
"""name in the run dir for a journal of this node that is no part of the job's journal"""


class OwnFiles:
    """The files of one node. Until `begin` is called, the run dir counts as shared, and nothing is sent."""

    def __init__(self, spec: JobSpec, files: FileThread, send: Callable[..., None], say: Callable[[str], None]) -> None:
        """Send nothing yet.

        Args:
            spec: the job.
            files: the thread that touches the run dir and the logs.
            send: sends a message of `messages.UP`.
            say: writes a sentence to this node's terminal.
        """
        self._spec = spec
        self._files = files
        self._send = send
        self._say = say
        self._complained = False
        self._keeps_copies = False  # no other job works in the run dir
        self._keeps_journal = False  # every piece that came has been written
        self._has_other_journal = False  # what was found is no part of this job's journal, if the journal begins
        self.is_apart = False
        """whether the run dir is this node's own"""

    # --- to the head ------------------------------------------------------------------------------------------

    def send_leavings(self, attempt: int, ranks: Mapping[int, int], failed: Collection[int]) -> None:
        """Send what ended ranks have left. Call this before the head is told of the ends.

        Args:
            attempt: the number of the attempt.
            ranks: where this attempt begins in the log, in bytes by rank.
            failed: the ranks that have ended by themselves. Of the others the head only gets to know that they have a
                log: there may be thousands, and the head reads them to find a cause.
        """
        if not self.is_apart:
            return
        spec = self._spec

        def read() -> list[dict[str, Any]]:
            found = []
            for rank, begin in ranks.items():
                most = MOST_BYTES if rank in failed else 0
                offset, content = _end_of(log_path(spec.log_dir, attempt, rank), begin, most)
                found.append(_message("log", attempt, rank, offset=offset, content=content))
                with contextlib.suppress(OSError):
                    error = read_regular(error_file(spec, attempt, rank), _MOST_OF_A_FILE)
                    found.append(_message("error", attempt, rank, offset=0, content=error))
            return found

        with contextlib.suppress(OSError):  # the head then finds no log, as on a shared file system that is silent
            for message in self._files.call(read):
                self._send("file", **message)

    def autopsy_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request to collect an autopsy's data, with this node's own paths, and make the directory.

        Args:
            request: as the head has sent it.

        Raises:
            OSError: the directory cannot be made.
        """
        if not self.is_apart:
            return dict(request)
        directory = self._spec.run_dir / "autopsy" / Path(request["directory"]).name
        self._files.call(lambda: autopsy.make_room(directory))
        ranks = [{**rank, "log": str(self._spec.log_dir / _last_two(rank["log"]))} for rank in request["ranks"]]
        return {**request, "directory": str(directory), "ranks": ranks}

    def send_autopsy(self, directory: Path) -> None:
        """Send the files of an autopsy that this node has collected."""
        if not self.is_apart:
            return

        def read() -> list[dict[str, Any]]:
            found = []
            for path in sorted(directory.iterdir()):
                with contextlib.suppress(OSError):
                    content = read_regular(path, _MOST_OF_A_FILE)
                    name = f"{directory.name}/{path.name}"
                    found.append({**_message("autopsy", 0, 0, offset=0, content=content), "name": name})
            return found

        with contextlib.suppress(OSError):  # what the head does not get stays unknown to it
            for message in self._files.call(read):
                self._send("file", **message)

    # --- from the head ----------------------------------------------------------------------------------------

    def begin_copies(self) -> tuple[int, str]:
        """Keep copies from now on, unless another job works in this node's run dir, which is then said.

        Returns:
            The bytes of the journal that this node has, and their SHA-256; 0 and "" if there are none.
        """
        run_dir = self._spec.run_dir

        def read() -> tuple[Holder | None, bytes]:
            holder = living_holder(run_dir)
            return holder, b"" if holder is not None else read_regular(run_dir / EVENTS, _MOST_OF_A_JOURNAL)

        self._keeps_copies = self._keeps_journal = True
        self._has_other_journal = False
        try:
            holder, content = self._files.call(read)
        except FileNotFoundError:
            return 0, ""
        except OSError as error:
            self._has_other_journal = error.errno == errno.EFBIG  # too long to be compared: it is put aside
            if not self._has_other_journal:  # whose run dir this is cannot be known
                self._keeps_copies = self._keeps_journal = False
                self._cannot_keep(error)
            return 0, ""
        if holder is not None:
            self._keeps_copies = self._keeps_journal = False
            self._say(
                f"keeps no copies of the head's run dir: a running supervisor (pid {holder[0]}) uses {run_dir}; ftctl"
                " lacks this job on this node: give each job a run dir of its own"
            )
            return 0, ""
        self._has_other_journal = True
        return len(content), hashlib.sha256(content).hexdigest()

    def keep_copy(self, message: Mapping[str, Any]) -> None:
        """Write a piece of the job's journal, or another file of the head's run dir, into this node's.

        Args:
            message: the message `copy`. With offset 0 the job's journal begins: another one that was found here is put
                aside.

        Raises:
            ValueError: the message names a file that is not copied, or cannot be decoded.
        """
        name = message["name"]
        offset = message["offset"]
        content = base64.b64decode(message["data"], validate=True)
        path = self._spec.run_dir / name
        if name == EVENTS and offset >= 0:
            if self._keeps_journal and not self._files.write(
                lambda: self._write_piece(path, offset, content), self._cannot_keep, size=len(content)
            ):
                self._keeps_journal = False  # a piece that comes later must not leave a hole
        elif name in WHOLE_FILES and offset == WHOLE:
            if self._keeps_copies:
                self._files.write(
                    lambda: atomic.replace_durable(path, content), self._cannot_keep, size=len(content), replaces=name
                )
        else:
            raise ValueError(f"a copy of {name!r} from byte {offset}")

    def _write_piece(self, path: Path, offset: int, content: bytes) -> None:
        """Write a piece of the journal, unless an earlier one failed. Runs in the file thread. Raises OSError.

        At offset 0 another journal is put aside. One that was not found before belongs to a job that has begun since:
        it is left alone.
        """
        if not self._keeps_journal:
            return
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            if offset == 0:
                flags |= os.O_CREAT | os.O_EXCL
                if self._has_other_journal:
                    path.replace(path.with_name(PUT_ASIDE))
                    self._has_other_journal = False
            with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
                file.seek(offset)
                file.write(content)
        except OSError:
            self._keeps_journal = False
            raise

    def forget_plan(self) -> None:
        """Remove the copy of the plan, because the job is over and nothing must be adopted."""
        if self._keeps_copies:
            self._files.write(lambda: plan.forget(self._spec.run_dir), self._cannot_keep)

    def _cannot_keep(self, error: OSError) -> None:
        if not self._complained:
            self._complained = True
            self._say(
                f"cannot copy the head's run dir: {error.filename}: {error.strerror}; ftctl lacks it on this node"
            )


def _message(kind: str, attempt: int, rank: int, offset: int, content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {"kind": kind, "attempt": attempt, "rank": rank, "name": "", "offset": offset, "data": data}


def _end_of(path: Path, begin: int, most: int) -> tuple[int, bytes]:
    """Return where the last `most` bytes of a file begin, but not before `begin`, and the bytes. Raises OSError."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            offset = file.seek(max(begin, size - most))
            return offset, file.read(most)
    except FileNotFoundError:
        return 0, b""


def _last_two(path: str) -> str:
    """Return the last two parts of the path of a log: attempt_N/rank_N.log."""
    return str(Path(*Path(path).parts[-2:]))

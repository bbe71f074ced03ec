"""Starting, signalling and reaping the processes of an attempt. Linux only.

Each rank leads a session of its own, so that its whole session can be killed, and a terminal's signals do
not reach it behind the supervisor's back. The supervisor is a child subreaper: what a rank leaves behind,
even in a session of its own, becomes our child and is found.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from ftlaunch.system.descriptor_limit import restore_limit
from ftlaunch_contract.files.kernel_files import open_end
from ftlaunch_contract.protocol import process_start_time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 4
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def become_subreaper() -> None:
    """Adopt orphaned descendants. Raises OSError."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def dies_with(parent: int) -> Callable[[], None]:
    """For a preexec_fn: the child gets SIGKILL at the end of `parent`, which must be the one that starts it.

    It has the limit on descriptors that `parent` was started with.
    """

    def ask() -> None:  # in the child, between fork and exec: system calls only, no locks
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        restore_limit()
        if os.getppid() != parent:
            os._exit(1)

    return ask


def state_of(pid: int) -> str:
    """Return the state letter of a process in /proc (R, S, D, T, Z); empty when it is gone, or cannot be looked at."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Leader:
    """One rank's process, a child of ours whoever forked it: its session leader, with a pidfd to wait on."""

    def __init__(self, rank: int, pid: int, log: Path, marker: str) -> None:
        """marker: NAME=VALUE in its environment by which leftovers of this attempt are recognised. Raises OSError."""
        self.rank, self.pid, self.log, self.marker = rank, pid, log, marker
        self.pidfd = open_end(pid)
        self.returncode: int | None = None

    def _poll(self) -> int | None:
        """The exit status as subprocess gives it, or None while there is none."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def reap(self) -> bool:
        """Take the exit status when there is one; True when the process is gone."""
        if self.returncode is None:
            self.returncode = self._poll()
            if self.returncode is not None:
                os.close(self.pidfd)
        return self.returncode is not None

    def ended_by(self) -> int:
        """Return the signal that ends the process while the kernel still frees what it held; 0 otherwise (proc(5)).

        0 as well where that cannot be read: the end is seen when it is over.
        """
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0
        flags, status = int(fields[6]), int(fields[49])
        return status & 0x7F if flags & _PF_EXITING else 0

    def signal(self, signum: int) -> None:
        """Signal the leader alone: a DataLoader worker that gets SIGTERM would break the training loop."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill_group(self) -> None:
        """SIGKILL the leader's process group, also after the leader's end."""
        kill_groups([self])

    def state(self) -> str:
        """The process state letter of /proc (R, S, D, T, Z); empty when it is gone."""
        return state_of(self.pid)


def kill_groups(leaders: Iterable[Leader]) -> None:
    """SIGKILL the process groups of leaders, without the cleaners in them (see `Cleaners`).

    The number of a group belongs to it while its leader is not reaped. After that it may be a stranger's: then only
    descendants of ours are killed, which all that a rank leaves behind are.
    """
    groups = {leader.pid: leader.returncode is not None for leader in leaders}
    try:
        members = _members(groups)
    except OSError:  # /proc cannot be read now: all are killed, cleaners included
        members = {group: [] for group in groups}
    for group, is_reaped in groups.items():
        if is_reaped:
            _kill_but_cleaners(members[group])
        elif any(map(is_cleaner, members[group])):
            _signal_group(group, signal.SIGSTOP)  # then it starts no process that is not seen in the next line
            _kill_stopped(group)
        else:
            _signal_group(group, signal.SIGKILL)


def _kill_stopped(group: int) -> None:
    try:
        members = _members([group])[group]
    except OSError:
        _signal_group(group, signal.SIGKILL)
    else:
        _kill_but_cleaners(members)


def _kill_but_cleaners(pids: Iterable[int]) -> None:
    for pid in pids:
        _signal(pid, signal.SIGCONT if is_cleaner(pid) else signal.SIGKILL)


def _members(groups: Iterable[int]) -> dict[int, list[int]]:
    """Return our descendants in each of these process groups."""
    found: dict[int, list[int]] = {group: [] for group in groups}
    for pid in descendants(os.getpid()):
        if (group := _group_of(pid)) in found:
            found[group].append(pid)
    return found


def _signal_group(group: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signum)


def _signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


class RankProcess(Leader):
    """A rank that was started as a program, not forked from the fork server."""

    def __init__(
        self, rank: int, argv: Sequence[str], env: Mapping[str, str], log: Path, out: int, marker: str
    ) -> None:
        """Start the program. Must be called in the main thread. Raises OSError.

        log: the file that takes its output. out: a descriptor that appends to that file, and stays the caller's.
        """
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(env),
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - in the main thread
        )
        super().__init__(rank, self._popen.pid, log, marker)

    def _poll(self) -> int | None:
        return self._popen.poll()


def children(pid: int) -> list[int]:
    """A process's children, those not yet reaped included; empty when it is gone.

    As the kernel lists them (proc(5)): complete where nobody but the caller reaps them. psutil looks at every process
    of the machine instead, which makes a restart the slower the more there are; it is asked where nothing is listed.
    """
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            if not (listed := task / "children").exists() and task.exists():
                return [child.pid for child in psutil.Process(pid).children()]
            found += [int(word) for word in listed.read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """All descendants of a process, as far as they can be listed while some start and end."""
    below = children(pid)
    for child in below:
        below.extend(children(child))
    return below


_TRACKER, _MANAGER = b"multiprocessing.resource_tracker", b"torch_shm_manager"
"""in the command lines of processes that remove from /dev/shm what their clients have left there"""
_CLEANING_SECONDS = 5.0
"""that a cleaner has once its clients are gone; Python's takes hundredths of a second, torch's waits 2 s before"""


def is_cleaner(pid: int) -> bool:
    """Whether a process is a helper of Python's or torch's that unlinks shared memory once its clients have ended."""
    command = _command(pid)
    return _TRACKER in command or _MANAGER in command


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Cleaners:
    """Lets the cleaners that ranks have left do their work before they are killed.

    SIGKILL to a whole tree ends Python's resource tracker and torch's torch_shm_manager before they have unlinked
    anything: /dev/shm fills up, restart by restart. The tracker is waited for, as a segment with a fixed name is in the
    way of the next attempt; the names of torch's files are drawn, and its manager may live beside that attempt.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """clock: monotonic seconds."""
        self._clock = clock
        self._since: dict[int, float] = {}

    def may_live(self, pid: int) -> bool:
        """Whether a process is a cleaner that is still within its time, which begins with the first call."""
        if pid not in self._since and not is_cleaner(pid):
            return False
        now = self._clock()
        return now < self._since.setdefault(pid, now) + _CLEANING_SECONDS

    def is_in_the_way(self, pid: int) -> bool:
        """Whether the next attempt must wait for the end of a process."""
        return not (self.may_live(pid) and _MANAGER in _command(pid))


def kill_descendants(keep: Iterable[int], managed: Iterable[int], cleaners: Cleaners | None = None) -> bool:
    """SIGKILL every descendant but `keep` and theirs; reap adopted ones. True when none is left.

    Args:
        keep: pids that are spared.
        managed: pids whose exit status their Leader reads.
        cleaners: those that are given time; None: all are killed.
    """
    own = set(keep)
    strangers = [pid for pid in children(os.getpid()) if pid not in own]
    own.update(managed)
    for pid in strangers:
        for process in (*descendants(pid), pid):
            if cleaners is None or not cleaners.may_live(process):
                _signal(process, signal.SIGKILL)
        if pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    left = [pid for pid in children(os.getpid()) if pid not in own]
    return not left if cleaners is None else not any(map(cleaners.is_in_the_way, left))


def reap_orphans(own: Collection[int]) -> int:
    """Take the exit status of adopted processes that have ended, and return how many there were.

    own: pids whose exit status others take.
    """
    count = 0
    try:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:  # it would be named each time: those behind it are looked for one by one
                return count + _reap_behind(own)
            os.waitpid(ended.si_pid, os.WNOHANG)
            count += 1
    except ChildProcessError:
        pass  # there is no child at all, or somebody else has taken the exit status
    return count


def _reap_behind(own: Collection[int]) -> int:
    """Take the exit status of ended children other than `own`, and return how many there were."""
    ended = [pid for pid in children(os.getpid()) if pid not in own and state_of(pid) == "Z"]
    for pid in ended:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return len(ended)


_READING_SECONDS = 2.0
"""that the environments of all processes may take to be read"""


def kill_marked(marker: str) -> int:
    """SIGKILL every process of this user that carries `marker` in its environment; returns how many.

    For what a supervisor that was itself killed has left behind.

    Args:
        marker: NAME=PATH of a directory. Containers that share their pids may each have another directory there: a
            process counts only where the path leads it to the same directory as us.
    """
    path = marker.partition("=")[2]
    pids = [process.pid for process in psutil.process_iter() if process.pid != os.getpid()]
    found: list[tuple[int, int]] = []
    # The kernel may hold up such a read for as long as it likes, where a process hangs in a driver with its memory
    # locked: the thread is left to itself then, and ends with this process.
    reading = threading.Thread(
        target=_find_marked, args=(pids, marker.encode(), path, found), name="ftlaunch-leftovers", daemon=True
    )
    try:
        reading.start()
    except RuntimeError:  # no thread may be started
        reading.run()
    else:
        reading.join(_READING_SECONDS)
    count = 0
    for pid, started in list(found):
        if process_start_time(pid) == started:
            _signal(pid, signal.SIGKILL)
            count += 1
    return count


def _find_marked(pids: Sequence[int], marker: bytes, path: str, found: list[tuple[int, int]]) -> None:
    """Add the pids and start times of marked processes to `found`, one by one."""
    for pid in pids:
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            if process.stat().st_uid != os.getuid():
                continue
            if marker in (process / "environ").read_bytes().split(b"\0") and _leads_to_same(process / "root", path):
                found.append((pid, process_start_time(pid)))


def _leads_to_same(root: Path, path: str) -> bool:
    """Whether a path leads a process to the same file as us; a path that is nowhere leads both to none."""
    try:
        ours = os.stat(path)  # noqa: PTH116 - a string that may be anything
    except OSError:
        return True
    try:
        return os.path.samestat(ours, os.stat(f"{root}{path}"))  # noqa: PTH116
    except OSError:
        return False


def free_port(address: str) -> int:
    """A TCP port free at this moment; whoever binds it must be ready to be told it is taken. Raises OSError."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])

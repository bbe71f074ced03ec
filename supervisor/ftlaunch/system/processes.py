"""Starts, signals and reaps the processes of an attempt. Linux only.

Each rank leads a session of its own, so that the whole session can be killed, and the terminal's signals do not reach
the rank behind the supervisor's back. The supervisor is a child subreaper: processes that a rank leaves behind, even in
another session, become children of the supervisor and are found. Functions here do not wait unless they say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
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
_PF_EXITING = 4  # flag of a task that is ending, in /proc/PID/stat
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def become_subreaper() -> None:
    """Make this process adopt its orphaned descendants. Raises OSError."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def bind_to(pid: int, cpus: frozenset[int] | None) -> None:
    """Bind the main thread of a process to CPUs; its later threads and children inherit this. None binds to nothing.

    The process stays unbound if the kernel refuses, as after a cgroup has taken the CPUs away since they were chosen.

    Args:
        pid: the process; 0: this one.
        cpus: the CPUs.
    """
    if cpus is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, cpus)


def dies_with(parent: int, cpus: frozenset[int] | None = None) -> Callable[[], None]:
    """Return a preexec_fn which has the kernel kill the child when `parent` ends, and binds the child to CPUs.

    The child also gets the limit on descriptors that `parent` was started with. A program in between that does all
    this and executes the child's would cost another start of an interpreter for each rank.

    Args:
        parent: pid of the process that starts the child.
        cpus: CPUs of the child; None: it is not bound.
    """

    def prepare_child() -> None:  # runs in the child, between fork and exec: system calls only, no locks
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        restore_limit()
        bind_to(0, cpus)
        if os.getppid() != parent:
            os._exit(1)

    return prepare_child


def state_of(pid: int) -> str:
    """Return the state letter of a process in /proc (R, S, D, T, Z); empty if the process is gone or unreadable."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class Leader:
    """The process of one rank, which leads a session. It is a child of this process, whichever process forked it."""

    def __init__(self, rank: int, pid: int, log: Path, marker: str) -> None:
        """Take over a running child.

        Args:
            rank: number of the rank.
            pid: pid of the child.
            log: file that takes the child's output.
            marker: NAME=VALUE in the child's environment, by which leftovers of the attempt are recognised.

        Raises:
            OSError: no pidfd can be opened.
        """
        self.rank = rank
        self.pid = pid
        self.log = log
        self.marker = marker
        self.pidfd = open_end(pid)
        """descriptor that becomes readable when the process ends; closed once the process is reaped"""
        self.returncode: int | None = None
        """exit status, negative after a signal; None until the process has been reaped"""

    def _poll(self) -> int | None:
        """Reap the process if it has ended, and return its exit status as subprocess does; None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def reap(self) -> bool:
        """Reap the process if it has ended, and return whether it has been reaped."""
        if self.returncode is None:
            self.returncode = self._poll()
            if self.returncode is not None:
                os.close(self.pidfd)
        return self.returncode is not None

    def ended_by(self) -> int:
        """Return the signal that is ending the process while the kernel still frees its memory (proc(5)).

        The result is 0 if no signal is ending the process, or if that cannot be read; the end is then seen when it is
        over.
        """
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0
        flags = int(fields[6])
        status = int(fields[49])
        return status & 0x7F if flags & _PF_EXITING else 0

    def signal(self, signum: int) -> None:
        """Send a signal to the leader alone: a DataLoader worker that gets SIGTERM would break the training loop."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def kill_group(self) -> None:
        """Send SIGKILL to the leader's process group, also after the leader's end."""
        kill_groups([self])

    def state(self) -> str:
        """Return the state letter of /proc (R, S, D, T, Z); empty if the process is gone."""
        return state_of(self.pid)


def kill_groups(leaders: Iterable[Leader]) -> None:
    """Send SIGKILL to the process groups of leaders, but not to the cleaners in them, which `Cleaners` explains.

    The number of a group belongs to it while its leader is not reaped. After that, the number may belong to a foreign
    group; then only our descendants in the group are killed, among which is everything that a rank leaves behind.
    """
    groups = {leader.pid: leader.returncode is not None for leader in leaders}
    try:
        members = _members(groups)
    except OSError:  # /proc cannot be read now: whole groups are killed, cleaners included
        members = {group: [] for group in groups}
    for group, is_reaped in groups.items():
        if is_reaped:
            _kill_but_cleaners(members[group])
        elif any(map(is_cleaner, members[group])):
            _signal_group(group, signal.SIGSTOP)  # from now on, no member can start a process that is overlooked
            _kill_stopped(group)
        else:
            _signal_group(group, signal.SIGKILL)


def _kill_stopped(group: int) -> None:
    """Kill the members of a stopped process group, and let its cleaners go on."""
    try:
        members = _members([group])[group]
    except OSError:
        _signal_group(group, signal.SIGKILL)
    else:
        _kill_but_cleaners(members)


def _kill_but_cleaners(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes, and SIGCONT to the cleaners among them."""
    for pid in pids:
        _signal(pid, signal.SIGCONT if is_cleaner(pid) else signal.SIGKILL)


def _members(groups: Iterable[int]) -> dict[int, list[int]]:
    """Return our descendants in each of these process groups. Raises OSError."""
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
    """Return the process group of a process; -1 if the process is gone."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


class RankProcess(Leader):
    """A rank that was started as a program, not forked from the fork server."""

    def __init__(
        self,
        rank: int,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        out: int,
        marker: str,
        cpus: frozenset[int] | None = None,
    ) -> None:
        """Start the program. Call in the main thread only.

        Args:
            rank: number of the rank.
            argv: command line.
            env: environment.
            log: file that takes the output.
            out: descriptor that appends to `log`. The caller closes it.
            marker: NAME=VALUE in `env`, by which leftovers of the attempt are recognised.
            cpus: CPUs that the rank is bound to; None: to none.

        Raises:
            OSError: the program cannot be started.
        """
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(env),
            start_new_session=True,
            preexec_fn=dies_with(os.getpid(), cpus),  # noqa: PLW1509 - in the main thread
        )
        super().__init__(rank, self._popen.pid, log=log, marker=marker)

    def _poll(self) -> int | None:
        return self._popen.poll()


def children(pid: int) -> list[int]:
    """Return the children of a process, zombies included; none if the process is gone.

    The kernel's own list is used (proc(5)), which is complete if only the caller reaps the children. psutil would look
    at every process of the machine, which slows down restarts on busy machines; psutil is used only if the kernel
    does not list children.
    """
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        for task in Path(f"/proc/{pid}/task").iterdir():
            listed = task / "children"
            if not listed.exists() and task.exists():
                return [child.pid for child in psutil.Process(pid).children()]
            found += [int(word) for word in listed.read_text().split()]
    return found


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, as far as they can be listed while processes start and end."""
    found = children(pid)
    for child in found:  # the loop extends the list
        found.extend(children(child))
    return found


# In the command lines of processes that remove shared memory which their clients have left behind.
_TRACKER = b"multiprocessing.resource_tracker"
_MANAGER = b"torch_shm_manager"
_CLEANING_SECONDS = 5.0
"""that a cleaner gets once its clients are gone; Python's takes hundredths of a second, torch's waits 2 s at first"""


def is_cleaner(pid: int) -> bool:
    """Return whether a process is a helper of Python or torch that unlinks shared memory after its clients' end."""
    command = _command(pid)
    return _TRACKER in command or _MANAGER in command


def _command(pid: int) -> bytes:
    """Return the command line of a process, its words separated by zero bytes; empty if the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Cleaners:
    """Gives the cleaners that ranks have left time for their work before they are killed.

    SIGKILL to a whole tree ends Python's resource tracker and torch's torch_shm_manager before they have unlinked
    anything, so that /dev/shm fills up restart by restart. The next attempt waits for the tracker, because a segment
    with a fixed name would be in its way. torch's file names are random, so its manager may live on meanwhile.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with no cleaner.

        Args:
            clock: returns monotonic seconds.
        """
        self._clock = clock
        self._since: dict[int, float] = {}  # by pid: when the cleaner's time began

    def may_live(self, pid: int) -> bool:
        """Return whether a process is a cleaner with time left. The time begins with the first call for its pid."""
        if pid not in self._since and not is_cleaner(pid):
            return False
        now = self._clock()
        return now < self._since.setdefault(pid, now) + _CLEANING_SECONDS

    def is_in_the_way(self, pid: int) -> bool:
        """Return whether the next attempt must wait for the end of a process."""
        return not (self.may_live(pid) and _MANAGER in _command(pid))


def kill_descendants(keep: Iterable[int], managed: Iterable[int], cleaners: Cleaners | None = None) -> bool:
    """Send SIGKILL to the descendants of this process that are not spared, and reap adopted ones that have ended.

    Args:
        keep: pids that are spared, with their descendants.
        managed: pids that are killed with the others, but reaped by their `Leader`.
        cleaners: tells which processes have time left; None kills all.

    Returns:
        Whether no process is left that the next attempt must wait for.
    """
    own = set(keep)
    to_kill = [pid for pid in children(os.getpid()) if pid not in own]
    own.update(managed)
    for pid in to_kill:
        for process in (*descendants(pid), pid):
            if cleaners is None or not cleaners.may_live(process):
                _signal(process, signal.SIGKILL)
        if pid not in own:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
    left = [pid for pid in children(os.getpid()) if pid not in own]
    return not left if cleaners is None else not any(map(cleaners.is_in_the_way, left))


def reap_orphans(own: Collection[int]) -> list[int]:
    """Reap adopted processes that have ended, and return their pids.

    Args:
        own: pids of children that others reap.
    """
    reaped: list[int] = []
    try:
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:  # waitid() would return this child each time, so the others are looked for
                return reaped + _reap_others(own)
            os.waitpid(ended.si_pid, os.WNOHANG)
            reaped.append(ended.si_pid)
    except ChildProcessError:
        pass  # there is no child at all, or another caller has reaped the child
    return reaped


def _reap_others(own: Collection[int]) -> list[int]:
    """Reap ended children other than `own`, found in /proc, and return their pids."""
    ended = [pid for pid in children(os.getpid()) if pid not in own and state_of(pid) == "Z"]
    for pid in ended:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return ended


_READING_SECONDS = 2.0
"""that reading the environments of all processes may take"""


def kill_marked(marker: str) -> list[int]:
    """Send SIGKILL to every process of this user with `marker` in its environment, and return their pids.

    The supervisor calls this at its start, to kill what a supervisor that was itself killed has left behind. The call
    waits for at most two seconds.

    Args:
        marker: NAME=PATH of a directory. Containers that share their pids may have different directories at equal
            paths, so a process is killed only if the path leads that process to the same directory as this process.
    """
    path = marker.partition("=")[2]
    pids = [process.pid for process in psutil.process_iter() if process.pid != os.getpid()]
    found: list[tuple[int, int]] = []
    # If a process hangs in a driver with its memory locked, the kernel may block such a read for any time. The thread
    # is then abandoned, and ends with this process.
    reading = threading.Thread(
        target=_find_marked, args=(pids, marker.encode(), path, found), name="ftlaunch-leftovers", daemon=True
    )
    try:
        reading.start()
    except RuntimeError:  # no thread can be started
        reading.run()
    else:
        reading.join(_READING_SECONDS)
    killed = []
    for pid, started in list(found):
        if process_start_time(pid) == started:
            _signal(pid, signal.SIGKILL)
            killed.append(pid)
    return killed


def _find_marked(pids: Sequence[int], marker: bytes, path: str, found: list[tuple[int, int]]) -> None:
    """Append the pid and start time of each marked process to `found` as soon as it is found. Runs in a thread."""
    for pid in pids:
        with contextlib.suppress(OSError):
            process = Path(f"/proc/{pid}")
            if process.stat().st_uid != os.getuid():
                continue
            if marker in (process / "environ").read_bytes().split(b"\0") and _leads_to_same(process / "root", path):
                found.append((pid, process_start_time(pid)))


def _leads_to_same(root: Path, path: str) -> bool:
    """Return whether a path leads another process to the same file as this process, or does not exist for this one.

    Args:
        root: the other process's root in /proc.
        path: the path.
    """
    try:
        ours = os.stat(path)  # noqa: PTH116 - the string may be anything
    except OSError:
        return True
    try:
        return os.path.samestat(ours, os.stat(f"{root}{path}"))  # noqa: PTH116
    except OSError:
        return False

"""The notifier: a process that delivers notices to commands, webhooks and Apprise, and retries failed deliveries.

The process runs `python -m ftlaunch.notify.notifier` with a SOCK_SEQPACKET socket as its stdin, which keeps the
boundaries of messages. Each message to or from the supervisor (client.py) is one packet with one JSON object:

    {"id", "to": number of the target, "argv", "stdin", "says_why", "timeout": seconds of a try, "retries"}
        -> {"id", "tries", "seconds", "error"}

`argv` starts the program that delivers the notice, and `stdin` is the text that the program reads. A program of ours
`says_why`: if it fails, its stdout is {"error": the reason, "final": whether another try is of no use}. In the answer
`seconds` count from the first try to the result, and `error` is empty if the target has taken the notice.

At the end of its stdin the notifier has FAREWELL_SECONDS to deliver what is left; the rest is answered as failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.system import processes
from ftlaunch_contract.files.kernel_files import memory_file, open_end

FAREWELL_SECONDS = 15.0
"""that the end of a job waits for its notices at most. To import Apprise takes a second, on a busy machine several: 5 s
were too few for the notice that counts most, the last one."""
_MOST = 100  # notices that may wait for one target; newer ones are refused
_FIRST_BACKOFF_SECONDS = 0.5  # before the second try; each further wait is twice as long
_LONGEST_BACKOFF_SECONDS = 30.0


class DeliveryTrial:
    """One try to deliver a notice: a process that reads the text of the notice from its stdin.

    Only the output of programs that say why they failed is read.
    """

    def __init__(self, notice: Mapping[str, Any], now: float) -> None:
        """Start the process. Call in the main thread.

        Args:
            notice: the message of the supervisor; the module's docstring has its fields.
            now: monotonic seconds.

        Raises:
            OSError: the process cannot be started.
        """
        self._says_why = bool(notice["says_why"])
        self.timeout = float(notice["timeout"])
        self.deadline = now + self.timeout
        stdin = memory_file("stdin")
        self._stdout = memory_file("answer")
        try:
            os.write(stdin, notice["stdin"].encode())  # a memory file, not a pipe: nothing waits for a reader
            os.lseek(stdin, 0, os.SEEK_SET)
            self._popen = subprocess.Popen(
                notice["argv"],
                stdin=stdin,
                stdout=self._stdout if self._says_why else subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # what a command prints may be secret
                start_new_session=True,
                preexec_fn=processes.dies_with(os.getpid()),  # noqa: PLW1509 - in the main thread
            )
        except OSError:
            os.close(self._stdout)
            raise
        finally:
            os.close(stdin)
        self.pidfd = open_end(self._popen.pid)

    def end(self, now: float) -> tuple[str, bool] | None:
        """Return the result of the try, or None while the process may run on.

        A process that has reached its deadline is killed.

        Returns:
            Why the try failed (empty after a delivery), and whether retrying is of no use.
        """
        has_ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if not has_ended and now < self.deadline:
            return None
        self.kill()
        status = self._popen.returncode if has_ended else None
        reason = f"no end within {duration(self.timeout)}" if status is None else _reason(status)
        answer = self._read_answer() if self._says_why and status else None
        os.close(self._stdout)
        return answer or (reason, False)

    def kill(self) -> None:
        """Send SIGKILL to the process group, and reap the process.

        The group's number belongs to the process until the process is reaped, so the signal comes first.
        """
        with contextlib.suppress(ProcessLookupError):  # the whole group is gone
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def _read_answer(self) -> tuple[str, bool] | None:
        """Return the error and its finality as our program wrote them; None if the program was killed before."""
        try:
            answer = json.loads(os.pread(self._stdout, 1 << 16, 0))
        except ValueError:
            return None
        return answer["error"], answer["final"]


def _reason(status: int) -> str:
    """Describe an exit status; empty for success."""
    if status == 0:
        return ""
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


class Route:
    """Delivers the notices for one target in order, one at a time. A target that hangs holds up no other target."""

    def __init__(self) -> None:
        """Start with no notice."""
        self.queue: deque[dict[str, Any]] = deque()
        self.trial: DeliveryTrial | None = None
        self._tries = 0  # of the first notice
        self._began = 0.0  # monotonic seconds at which the first notice was tried first
        self._error = ""  # of the last try of the first notice
        self._retry_at = 0.0  # monotonic seconds before which the first notice is not tried again

    def patience(self, now: float) -> float:
        """Return the seconds until `advance` has something to do by the clock; infinity if there is nothing."""
        if self.trial is not None:
            return self.trial.deadline - now
        return self._retry_at - now if self.queue else float("inf")

    def advance(self, now: float) -> dict[str, Any] | None:
        """Start or finish a try, if one is due. Return the answer to a notice that was delivered or given up."""
        if self.trial is None:
            return self._begin(now) if self.queue and now >= self._retry_at else None
        result = self.trial.end(now)
        if result is None:
            return None
        os.close(self.trial.pidfd)
        self.trial = None
        error, is_final = result
        return self._judge(error, is_final, now)

    def _begin(self, now: float) -> dict[str, Any] | None:
        """Start a try of the first notice. Return its answer if the notice is given up because that is impossible."""
        notice = self.queue[0]
        if self._tries == 0:
            self._began = now
        self._tries += 1
        try:
            self.trial = DeliveryTrial(notice, now)
        except OSError as error:
            return self._judge(f"it cannot be started: {error.strerror}", isinstance(error, FileNotFoundError), now)
        return None

    def _judge(self, error: str, is_final: bool, now: float) -> dict[str, Any] | None:
        """Return the answer to the first notice, or schedule another try if the last one failed for now only."""
        self._error = error
        if not error or is_final or self._tries > self.queue[0]["retries"]:
            return self.close(now)
        self._retry_at = now + min(_FIRST_BACKOFF_SECONDS * 2 ** (self._tries - 1), _LONGEST_BACKOFF_SECONDS)
        return None

    def close(self, now: float, why: str = "") -> dict[str, Any]:
        """Remove the first notice, which was delivered or is given up, and return its answer.

        Args:
            now: monotonic seconds.
            why: a reason for giving up beside the error of the last try.
        """
        notice = self.queue.popleft()
        seconds = round(now - self._began, 3) if self._tries else 0.0
        error = "; ".join(part for part in (self._error, why) if part)
        answer = {"id": notice["id"], "tries": self._tries, "seconds": seconds, "error": error}
        self._tries = 0
        self._error = ""
        self._retry_at = 0.0
        return answer


class Notifier:
    """The loop of the process, which waits for the socket, the tries under way, and the next deadline."""

    def __init__(self, link: socket.socket) -> None:
        """Serve one supervisor.

        Args:
            link: socket to the supervisor.
        """
        self._link = link
        self._routes: dict[int, Route] = {}  # by number of the target
        self._selector = selectors.DefaultSelector()
        self._selector.register(link, selectors.EVENT_READ)
        self._leave_at = float("inf")  # monotonic seconds; finite once the supervisor has hung up

    def run(self) -> None:
        """Serve until the supervisor hangs up, and then until every notice is answered or FAREWELL_SECONDS are over."""
        while self._leave_at == float("inf") or (self._has_notices() and time.monotonic() < self._leave_at):
            for key, _ in self._selector.select(self._seconds_to_wait()):
                if key.fileobj is self._link:
                    self._receive()
            for route in self._routes.values():
                self._advance(route)
        self._give_up()

    def _has_notices(self) -> bool:
        return any(route.queue for route in self._routes.values())

    def _seconds_to_wait(self) -> float | None:
        """Return the seconds until the next deadline; None if there is none."""
        now = time.monotonic()
        waits = [self._leave_at - now, *(route.patience(now) for route in self._routes.values())]
        return None if min(waits) == float("inf") else max(min(waits), 0.0)

    def _receive(self) -> None:
        """Queue a notice, or begin the farewell if the supervisor has hung up."""
        message = self._link.recv(1 << 20)
        if not message:
            self._selector.unregister(self._link)
            self._leave_at = time.monotonic() + FAREWELL_SECONDS
            return
        notice = json.loads(message)
        route = self._routes.setdefault(notice["to"], Route())
        if len(route.queue) >= _MOST:
            self._answer({"id": notice["id"], "tries": 0, "seconds": 0.0, "error": f"{_MOST} others wait already"})
            return
        route.queue.append(notice)

    def _advance(self, route: Route) -> None:
        """Advance a route, watch the process of a new try, and send the answer if there is one."""
        before = route.trial
        answer = route.advance(time.monotonic())
        if before is not None and route.trial is not before:
            self._selector.unregister(before.pidfd)
        if route.trial is not None and route.trial is not before:
            self._selector.register(route.trial.pidfd, selectors.EVENT_READ)
        if answer is not None:
            self._answer(answer)

    def _give_up(self) -> None:
        """Kill the tries under way, and answer all notices that are left as failed."""
        for route in self._routes.values():
            if route.trial is not None:
                route.trial.kill()
            while route.queue:
                self._answer(
                    route.close(time.monotonic(), f"the job has ended, and {duration(FAREWELL_SECONDS)} are over")
                )
        processes.kill_descendants([], [])  # what a command has started in a session of its own

    def _answer(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the supervisor is gone, and nobody else wants to know
            self._link.send(json.dumps(answer).encode())


def main() -> int:
    """Serve the socket that is stdin."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Such signals are meant for the job, whose end is to be reported. Commands would inherit SIG_IGN, so a handler
        # is set instead.
        signal.signal(signum, lambda *_: None)
    processes.become_subreaper()
    Notifier(socket.socket(fileno=sys.stdin.fileno())).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The saver of a simulated head, which makes a checkpoint of a step that the nodes hold in memory.

`SimSaver` takes the place of the link to the saver process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.checkpoints import empty

if TYPE_CHECKING:
    from tests.support.simulation.head import Head

_NORMAL = {"health": {"status": "normal"}}


class SimSaver:
    """Answers each request a moment later, as soon as the storage answers."""

    def __init__(self, head: Head) -> None:
        self._head = head
        head.savers += 1
        self.fd = -100 - head.savers
        self.pid = 5000
        self.stored = -1
        self.pending: dict[str, Any] | None = None
        self.closed = False
        self._said: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request, and begin with it a moment later."""
        self.pending = request
        self._head.job.world.after(0.2, self._begin, request)

    def _begin(self, request: dict[str, Any]) -> None:
        self._head.job.claims.ask(self._head.machine, self._answer, request)

    def _answer(self, request: dict[str, Any]) -> None:
        if not self._head.lives:
            return
        if self._head.sleeps():
            self._head.job.world.after(0.1, self._begin, request)
            return
        answer = {"did": request["do"], "step": request.get("step", -1), "why": request.get("why")}
        if request["do"] == "find":
            answer |= {"step": max(self._head.job.storage, default=-1), "rejected": []}
        elif error := self._commit(request["step"]):
            answer["error"] = error
        self._said.append({**answer, "path": "x", "bytes": 1, "seconds": 0.1, "deleted": [], "notes": [], **_NORMAL})
        self.pending = None
        if self.fd in self._head.loop.handlers:
            self._head.loop.handlers[self.fd]()
            self._head.wake()

    def _commit(self, step: int) -> str:
        """Commit a checkpoint of a step that all nodes hold; return why that failed, or an empty string."""
        job = self._head.job
        head = self._head
        histories = []
        for place in range(len(head.pages) // job.ranks_each):
            history = head.history_of(place, step)
            if history is None:
                return f"node {place}, which held a part of it, is lost"
            histories.append(history)
        try:
            job.claims.make_claims(head.machine).check(head.term)
        except PermissionError as error:
            return str(error)
        job.laws.commits(head, step, histories)
        job.storage[step] = histories[0]
        empty(head.supervisor.saving.spec.checkpoint_dir, step)
        return ""

    def hurry(self) -> None:
        """Do nothing: a simulated saver cannot go faster."""

    def answers(self) -> list[dict[str, Any]]:
        """Return the answers since the last call."""
        answers = self._said
        self._said = []
        return answers

    def work(self) -> object:
        """Return a value that changes with time, as that of a saver that works."""
        return self._head.job.world.now

    def kill_if_stopped(self, now: float) -> None:
        """Do nothing: a simulated saver is never stopped."""

    def close(self, timeout: float) -> int:
        """End the saver; return exit code 0."""
        self.closed = True
        return 0

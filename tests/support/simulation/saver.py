"""The saver of a simulated head: what the nodes' memory holds of a step becomes a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.checkpoints import empty

if TYPE_CHECKING:
    from tests.support.simulation.head import Head

_NORMAL = {"health": {"status": "normal"}}


class SimSaver:
    """It has saved a moment after it was asked."""

    def __init__(self, head: Head) -> None:
        self._head = head
        head.savers += 1
        self.fd, self.pid = -100 - head.savers, 5000
        self.pending: dict[str, Any] | None = None
        self.closed = False
        self._said: list[dict[str, Any]] = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request."""
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
        told = {"did": request["do"], "step": request.get("step", -1), "why": request.get("why")}
        if request["do"] == "find":
            told |= {"step": max(self._head.job.storage, default=-1), "rejected": []}
        elif error := self._commit(request["step"]):
            told["error"] = error
        self._said.append({**told, "path": "x", "bytes": 1, "seconds": 0.1, "deleted": [], "notes": [], **_NORMAL})
        self.pending = None
        if self.fd in self._head.loop.handlers:
            self._head.loop.handlers[self.fd]()
            self._head.wake()

    def _commit(self, step: int) -> str:
        """What the nodes hold of a step becomes a checkpoint; an error where one of them is lost."""
        job, head = self._head.job, self._head
        histories = []
        for place in range(len(head.pages) // job.ranks_each):
            history = head.history_of(place, step)
            if history is None:
                return f"node {place}, which held a part of it, is lost"
            histories.append(history)
        try:
            job.claims.claims(head.machine).check(head.term)
        except PermissionError as error:
            return str(error)
        job.laws.commits(head, step, histories)
        job.storage[step] = histories[0]
        empty(head.supervisor.saving.spec.checkpoint_dir, step)
        return ""

    def hurry(self) -> None:
        """It cannot go faster."""

    def answers(self) -> list[dict[str, Any]]:
        """What it has said."""
        said, self._said = self._said, []
        return said

    def work(self) -> object:
        """It works."""
        return self._head.job.world.now

    def look(self, now: float) -> None:
        """It is never stopped."""

    def close(self, timeout: float) -> int:
        """It is over."""
        self.closed = True
        return 0

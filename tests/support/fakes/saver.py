"""A saver that answers what a test says, and a watch for deaths that the kernel reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.fakes.clock import BEGIN

if TYPE_CHECKING:
    from tests.support.engine import World


from typing import Any


class FakeSaver:
    """The link to a saver that has saved half a second after a request, unless the test has it answer otherwise."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self.fd = -10 - number
        self.pid = 5000 + number
        self.stored = -1
        self.pending: dict[str, Any] | None = None
        self.closed = False
        self.stopped = False
        self.asked: list[dict[str, Any]] = []
        self.hurried = 0
        self.moved = 0
        self._said: list[dict[str, Any]] | None = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request, and answer half a second later, unless the saver is stopped or the storage silent."""
        self.pending = request
        self.asked.append(request)
        if self.stopped or not self._world.storage_answers:
            return
        self._world.clock.at(self._world.clock() - BEGIN + 0.5, lambda: self.say(self._world.answer(request)))

    def say(self, answer: dict[str, Any]) -> None:
        """Give an answer, unless the saver has died."""
        if self._said is not None:
            self._said.append(answer)
            self.pending = None
            self._world.ring(self.fd)

    def die(self) -> None:
        """End the saver, which the engine learns at once."""
        self._said = None
        self._world.ring(self.fd)

    def answers(self) -> list[dict[str, Any]] | None:
        """Return the answers since the last call; None if the saver is dead."""
        answers = self._said
        if answers is not None:
            self._said = []
        return answers

    def work(self) -> tuple[float, int]:
        """Return the work done so far, which a test counts up in `moved`."""
        return 0.0, self.moved

    def close(self, timeout: float) -> int:
        """Note the end of the link; return the code of a killed process."""
        self.closed = True
        return -9

    def kill_if_stopped(self, now: float) -> None:
        """Die if the saver was stopped while a request was pending."""
        if self.stopped and self.pending is not None:
            self.die()

    def hurry(self) -> None:
        """Count the requests to hurry."""
        self.hurried += 1


class FakeDeaths:
    """The kernel's reports of ranks that begin to die."""

    fd = -2

    def __init__(self) -> None:
        self.ranks: list[int] = []

    def forget(self) -> None:
        """Forget the reports, because a new attempt begins."""
        self.ranks = []

    def read_dying(self) -> list[int]:
        """Return the ranks that the test has named."""
        return self.ranks


def saved(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a saver that has saved what was requested."""
    return {
        "did": request["do"],
        "step": request["step"],
        "why": request["why"],
        "bytes": 1000,
        "seconds": 0.1,
        "path": "/nowhere",
        "deleted": [],
        "notes": [],
        "health": {"status": "normal"},
    }

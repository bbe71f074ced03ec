"""A saver that answers as a test says, and deaths that the kernel tells of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.fakes.clock import BEGIN

if TYPE_CHECKING:
    from tests.support.engine import World


from typing import Any


class FakeSaver:
    """The saver's link: it says half a second later that it has saved, unless the test has it say something else."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self.fd, self.pid = world, -10 - number, 5000 + number
        self.pending: dict[str, Any] | None = None
        self.closed = self.stopped = False
        self.asked: list[dict[str, Any]] = []
        self.hurried = 0
        self.moved = 0
        self._said: list[dict[str, Any]] | None = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request, and answer it in a while."""
        self.pending = request
        self.asked.append(request)
        if self.stopped or not self._world.storage_answers:
            return
        self._world.clock.at(self._world.clock() - BEGIN + 0.5, lambda: self.say(self._world.answer(request)))

    def say(self, answer: dict[str, Any]) -> None:
        """Answer, unless it has died meanwhile."""
        if self._said is not None:
            self._said.append(answer)
            self.pending = None
            self._world.ring(self.fd)

    def die(self) -> None:
        """Its end is heard at once."""
        self._said = None
        self._world.ring(self.fd)

    def answers(self) -> list[dict[str, Any]] | None:
        """What it has said; None: it is gone."""
        said = self._said
        if said is not None:
            self._said = []
        return said

    def work(self) -> tuple[float, int]:
        """What it has done; a test counts that up."""
        return 0.0, self.moved

    def close(self, timeout: float) -> int:
        """Nothing is left to wait for."""
        self.closed = True
        return -9

    def look(self, now: float) -> None:
        """A saver that was stopped over a request dies of it."""
        if self.stopped and self.pending is not None:
            self.die()

    def hurry(self) -> None:
        """Count it."""
        self.hurried += 1


class FakeDeaths:
    """The kernel's word that a rank begins to die."""

    fd = -2

    def __init__(self) -> None:
        self.ranks: list[int] = []

    def forget(self) -> None:
        """A new attempt."""
        self.ranks = []

    def heard(self) -> list[int]:
        """What the test has said."""
        return self.ranks


def saved(request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a saver that has saved."""
    told = {"bytes": 1000, "seconds": 0.1, "path": "/nowhere", "deleted": [], "notes": []}
    return {
        "did": request["do"],
        "step": request["step"],
        "why": request["why"],
        **told,
        "health": {"status": "normal"},
    }

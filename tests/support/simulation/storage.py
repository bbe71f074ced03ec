"""The shared run dir of a simulated job: which head has the newest term, and who starts heads."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from ftlaunch.agent.head.starter import LOOK, TAKE_OVER
from ftlaunch.agent.head_search import HeadSearch
from ftlaunch.channel.claims import Sign

if TYPE_CHECKING:
    from tests.support.simulation.head import Head
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine

STALE = 1.5  # seconds
PERIOD = 0.25
ENDPOINT = ("m0", 1)


class Storage:
    """What all machines see at once, whatever becomes of their links."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.sign: Sign | None = None
        self._term, self._port = 0, ENDPOINT[1]

    # --- a head -----------------------------------------------------------------------------------------------

    def claim(self, machine: Machine, port: int) -> int:
        """The next term, for a head that listens there."""
        self._term += 1
        self.sign = Sign(self._term, machine.name, port, machine.name, self._term, self._term, 0)
        return self._term

    def watch(self, head: Head) -> None:
        """A head shows that it lives, and sees whether it is one still."""
        if not head.lives:
            return
        if not head.sleeps():
            assert self.sign is not None
            if self.sign.term > head.term:
                self._job.world.tell(f"the head of term {head.term} sees that it was replaced")
                head.die()
                return
            if head.clock() >= head.held_until:
                self.sign = replace(self.sign, count=self.sign.count + 1)
                head.shown = head.clock()
        self._job.world.after(PERIOD, lambda: self.watch(head))

    def is_newest(self, head: Head) -> bool:
        """Whether no other head has a higher term."""
        return self.sign is not None and self.sign.term == head.term

    def end(self, code: int) -> None:
        """The job is over."""
        assert self.sign is not None
        self.sign = replace(self.sign, over=code)

    # --- what an agent's starter does -------------------------------------------------------------------------

    def order(self, machine: Machine, search: HeadSearch, order: bytes) -> None:
        """It takes a moment; storage that is asked answers."""
        random = self._job.world.random

        def answer(**told: Any) -> None:
            if machine.lives and machine.search is search:
                search.on_answer(told)

        def obey() -> None:
            if not machine.lives:
                return
            if not machine.awake:
                self._job.world.after(0.1, obey)
            elif order == LOOK:
                answer(sign={} if self.sign is None else asdict(self.sign))
            elif order == TAKE_OVER:
                answer(head=self._take_over(machine))
            else:
                self._start(machine, answer)

        self._job.world.after(random.uniform(0.005, 0.05) if order == LOOK else random.uniform(0.05, 0.4), obey)

    def _take_over(self, machine: Machine) -> int:
        sign, job = self.sign, self._job
        if sign is None or job.over:
            return 0
        port = sign.port
        if sign.machine == machine.name:
            job.kill_heads(machine, port)
        else:
            self._port += 1
            port = self._port
        job.world.tell(f"{machine.name} takes the head's place")
        job.start_head(machine, port)
        return 1

    def _start(self, machine: Machine, answer: Any) -> None:
        """Where the endpoint is this machine's, or the last head was here, and none lives."""
        sign, job = self.sign, self._job
        at_endpoint = machine.name == ENDPOINT[0]
        if job.over or (sign is not None and sign.ended):
            answer(head=0)
        elif sign is None or sign.machine == machine.name:
            port = ENDPOINT[1] if at_endpoint else (sign.port if sign is not None else 0)
            if port and job.listener((machine.name, port)) is None:
                job.start_head(machine, port)
            answer(head=1)
        elif at_endpoint:
            job.world.after(STALE, lambda: self._start_if_stale(machine, sign, answer))
        else:
            answer(head=0)

    def _start_if_stale(self, machine: Machine, seen: Sign, answer: Any) -> None:
        if machine.awake and self.sign == seen and not self._job.over:
            self._job.start_head(machine, ENDPOINT[1])
        answer(head=0)

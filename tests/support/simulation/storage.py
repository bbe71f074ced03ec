"""The shared run dir of a simulated job: the real claims, in files whose server is slow, silent, or loses answers."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftlaunch.nodes.agent.head.starter import LOOK, START, TAKE_OVER
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.channel.claims import Claims, Sign

if TYPE_CHECKING:
    from tests.support.simulation.head import Head
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine

STALE = 1.5  # seconds
PERIOD = 0.25
ENDPOINT = ("m0", 1)
_NOWHERE = Path("run")
_OPENED = 0.3  # seconds for which a file that is opened by its name may be older than the server's


class SharedFiles:
    """What the server has. Each file is its content and the number of its names."""

    def __init__(self) -> None:
        self.files: dict[str, list[Any]] = {}
        self.lose_next_answer = False

    @property
    def newest_term(self) -> int:
        """The highest term that was claimed."""
        return max((int(name[6:]) for name in self.files if name.startswith("claim.")), default=0)


class FilesSeen:
    """A ClaimStore: the files as one machine sees them, which may be as they were a while ago."""

    def __init__(self, shared: SharedFiles, now: Callable[[], float]) -> None:
        self._shared, self._now = shared, now
        self._before: dict[str, list[Any]] = {}
        self._listed_until = self._opened_until = 0.0

    def grow_old(self, seconds: float) -> None:
        """Show for a while what is there now: the directory; what is opened is never so old."""
        now = self._now()
        self._before = dict(self._shared.files)
        self._listed_until, self._opened_until = now + seconds, now + min(seconds, _OPENED)

    def read(self, name: str) -> bytes:
        """See ClaimStore."""
        seen = self._before if self._now() < self._opened_until else self._shared.files
        if name not in seen:
            raise FileNotFoundError(name)
        return bytes(seen[name][0])

    def names(self) -> list[str]:
        """See ClaimStore."""
        return list(self._before if self._now() < self._listed_until else self._shared.files)

    def write(self, name: str, content: bytes, *, durable: bool) -> None:
        """See ClaimStore."""
        self._shared.files[name] = self._before[name] = [content, 1]

    def link(self, written: str, name: str) -> None:
        """See ClaimStore. An answer that is lost is asked for again: then the name is taken, by this very file."""
        files = self._shared.files
        if name in files:
            raise FileExistsError(name)
        files[name] = self._before[name] = files[written]
        files[written][1] += 1
        if self._shared.lose_next_answer:
            self._shared.lose_next_answer = False
            raise FileExistsError(errno.EEXIST, "the name is taken", name)

    def links(self, written: str) -> int:
        """See ClaimStore."""
        return int(self._shared.files[written][1])

    def replace(self, written: str, name: str) -> None:
        """See ClaimStore."""
        self._shared.files[name] = self._before[name] = self._shared.files.pop(written)

    def remove(self, name: str) -> None:
        """See ClaimStore."""
        self._before.pop(name, None)
        if found := self._shared.files.pop(name, None):
            found[1] -= 1


class Storage:
    """One server; each machine reaches it by itself."""

    def __init__(self, job: Job) -> None:
        self._job, self.shared = job, SharedFiles()
        self._port = ENDPOINT[1]
        self._seen: dict[str, FilesSeen] = {}
        self._claims: dict[str, Claims] = {}
        self._slow: dict[str, float] = {}
        self._silent: dict[str, float] = {}  # until when; "" is the server itself

    def seen_by(self, machine: Machine) -> FilesSeen:
        """The files as a machine sees them."""
        if machine.name not in self._seen:
            seen = self._seen[machine.name] = FilesSeen(self.shared, lambda: self._job.world.now)
            self._claims[machine.name] = Claims(_NOWHERE, seen)
        return self._seen[machine.name]

    def claims(self, machine: Machine) -> Claims:
        """The claims as a machine sees them."""
        self.seen_by(machine)
        return self._claims[machine.name]

    # --- what befalls it --------------------------------------------------------------------------------------

    def be_slow(self, machine: Machine, seconds: float) -> None:
        """Take up to a second for each answer."""
        self._slow[machine.name] = max(self._slow.get(machine.name, 0.0), self._job.world.now + seconds)

    def be_silent(self, machine: Machine | None, seconds: float) -> None:
        """Answer a machine only afterwards. None: answer nobody."""
        name = "" if machine is None else machine.name
        self._silent[name] = max(self._silent.get(name, 0.0), self._job.world.now + seconds)

    def is_silent(self, machine: Machine) -> bool:
        """Whether it does not answer now."""
        return self._job.world.now < max(self._silent.get("", 0.0), self._silent.get(machine.name, 0.0))

    def ask(self, machine: Machine, do: Callable[..., None], *told: Any) -> None:
        """Have something done there as soon as it answers."""
        world = self._job.world
        if self.is_silent(machine):
            until = max(self._silent.get("", 0.0), self._silent.get(machine.name, 0.0))
            world.after(until - world.now + world.random.uniform(0.001, 0.05), self.ask, machine, do, *told)
        else:
            slow = world.now < self._slow.get(machine.name, 0.0)
            world.after(world.random.uniform(0.1, 1.0) if slow else world.random.uniform(0.0005, 0.01), do, *told)

    # --- a head -----------------------------------------------------------------------------------------------

    def watch(self, head: Head) -> None:
        """A head shows that it lives, and sees whether it is one still: see SignOfLife."""
        self._job.world.after(PERIOD, self._watch, head)

    def _watch(self, head: Head) -> None:
        if not head.lives:
            return
        if head.sleeps():
            self._job.world.after(0.1, self._watch, head)
        else:
            self.ask(head.machine, self._look_and_show, head, head.clock())

    def _look_and_show(self, head: Head, begun: float) -> None:
        if not head.lives or head.sleeps():
            self._watch(head)
            return
        if self.claims(head.machine).newer(head.term) is not None:
            self._job.world.tell(f"the head of term {head.term} sees that it was replaced")
            head.die()
            return
        if begun >= head.held_until:
            head.sign = replace(head.sign, count=head.sign.count + 1)
            self.claims(head.machine).show(head.sign)
            head.shown = begun
        self.watch(head)

    def end(self, head: Head, code: int) -> None:
        """The job is over."""
        self.claims(head.machine).show(replace(head.sign, count=head.sign.count + 1, over=code))

    # --- what an agent's starter does -------------------------------------------------------------------------

    def order(self, machine: Machine, search: HeadSearch, order: bytes) -> None:
        """It takes a moment, and then as long as the storage takes to answer."""
        random = self._job.world.random
        wait = random.uniform(0.005, 0.05) if order == LOOK else random.uniform(0.05, 0.4)
        self._job.world.after(wait, self._obey, machine, search, order)

    def _obey(self, machine: Machine, search: HeadSearch, order: bytes) -> None:
        if not machine.lives or machine.search is not search:
            return
        if not machine.awake:
            self._job.world.after(0.1, self._obey, machine, search, order)
        else:
            self.ask(machine, self._do, machine, search, order)

    def _do(self, machine: Machine, search: HeadSearch, order: bytes) -> None:
        if not machine.awake or machine.search is not search:
            self._obey(machine, search, order)
            return
        sign = self.claims(machine).read()
        if order == LOOK:
            self._answer(machine, search, sign={} if sign is None else vars(sign))
        elif order == TAKE_OVER:
            seen = search.sign
            mine = sign is not None and seen is not None and sign.term == seen.term
            self._answer(machine, search, head=self._take_over(machine, sign) if mine else 0)
        else:
            self._start(machine, search, sign, begins=order == START)

    def _answer(self, machine: Machine, search: HeadSearch, **told: Any) -> None:
        if machine.lives and machine.search is search:
            machine.when_awake(search.on_answer)(told)

    def _stand(self, machine: Machine, port: int, *, may_be_beside: bool = False) -> int:
        """Claim the next term for a head that listens there: see election.stand."""
        job, claims = self._job, self.claims(machine)
        if job.listener((machine.name, port)) is not None:
            return 0
        sign = Sign(claims.next_term(), machine.name, port, machine.boot, 1, 1, 0)
        if not claims.claim(sign):
            return 0
        job.start_head(machine, sign, may_be_beside=may_be_beside)
        return 1

    def _take_over(self, machine: Machine, sign: Sign | None) -> int:
        """See election.stand, with takes_over."""
        job = self._job
        if sign is None or sign.ended:
            return 0
        port = sign.port
        is_elsewhere = sign.machine != machine.boot
        if is_elsewhere:
            self._port += 1
            port = self._port
        else:
            job.kill_heads(machine, port)
        job.world.tell(f"{machine.name} takes the head's place")
        return self._stand(machine, port, may_be_beside=is_elsewhere)

    def _start(self, machine: Machine, search: HeadSearch, sign: Sign | None, *, begins: bool) -> None:
        """See election.stand: at the endpoint, or where the last head was on this machine, and none lives."""
        at_endpoint = machine.name == ENDPOINT[0]
        if (sign is None or sign.ended) and not begins:
            self._answer(machine, search, head=0)
        elif sign is None or sign.ended or sign.machine == machine.boot:
            port = ENDPOINT[1] if at_endpoint else (sign.port if sign is not None and not sign.ended else 0)
            told = self._stand(machine, port) if port and not self._job.over else 0
            self._answer(machine, search, head=told)
        elif at_endpoint:
            self._job.world.after(STALE, self._start_if_stale, machine, search, sign)
        else:
            self._answer(machine, search, head=0)

    def _start_if_stale(self, machine: Machine, search: HeadSearch, seen: Sign) -> None:
        told = 0
        if machine.awake and self.claims(machine).read() == seen and not self._job.over:
            told = self._stand(machine, ENDPOINT[1], may_be_beside=True)  # the head before was on another machine
        self._answer(machine, search, head=told)

"""The shared run dir of a simulated job: the real claims, over files whose server is slow, silent, or loses answers.

`Storage` also does the work of each agent's starter: it looks for a sign of life, and starts heads.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftlaunch.nodes.agent.head.starter import READ_SIGN, START, TAKE_OVER
from ftlaunch.nodes.agent.head_search import HeadSearch
from ftlaunch.nodes.channel.claims import Claims, Sign
from ftlaunch.nodes.channel.votes.claims import VotedClaims
from ftlaunch.nodes.cluster.membership.voting import Voting

if TYPE_CHECKING:
    from tests.support.simulation.head import Head
    from tests.support.simulation.job import Job
    from tests.support.simulation.machine import Machine

STALE = 1.5  # seconds after which a sign of life that does not change is stale
PERIOD = 0.25  # seconds between two signs of life of a head
ENDPOINT = ("m0", 1)
_NOWHERE = Path("run")
_OPENED = 0.3  # seconds for which a file that is opened by its name may be older than the server's


class SharedFiles:
    """The files on the server: for each name the content and the number of names of the file."""

    def __init__(self) -> None:
        self.files: dict[str, list[Any]] = {}
        self.lose_next_answer = False

    @property
    def newest_term(self) -> int:
        """The highest term that was claimed."""
        return max((int(name[6:]) for name in self.files if name.startswith("claim.")), default=0)


class FilesSeen:
    """A ClaimStore: the files as one machine sees them, which may be outdated."""

    def __init__(self, shared: SharedFiles, now: Callable[[], float]) -> None:
        self._shared = shared
        self._now = now
        self._before: dict[str, list[Any]] = {}
        self._listed_until = self._opened_until = 0.0

    def grow_old(self, seconds: float) -> None:
        """Show the directory as it is now for some seconds. Files opened by name are outdated for less time."""
        now = self._now()
        self._before = dict(self._shared.files)
        self._listed_until = now + seconds
        self._opened_until = now + min(seconds, _OPENED)

    def read(self, name: str) -> bytes:
        """Return the content of the file that has this name, as this machine sees it."""
        seen = self._before if self._now() < self._opened_until else self._shared.files
        if name not in seen:
            raise FileNotFoundError(name)
        return bytes(seen[name][0])

    def list_names(self) -> list[str]:
        """Return the names of the files, as this machine sees them."""
        return list(self._before if self._now() < self._listed_until else self._shared.files)

    def write(self, name: str, content: bytes, *, durable: bool) -> None:
        """Write a file."""
        self._shared.files[name] = self._before[name] = [content, 1]

    def link(self, written: str, name: str) -> None:
        """Give a written file a second name.

        A lost answer looks like the answer to a repeated request: the name is taken, by the very file.

        Raises:
            FileExistsError: the name is taken.
        """
        files = self._shared.files
        if name in files:
            raise FileExistsError(name)
        files[name] = self._before[name] = files[written]
        files[written][1] += 1
        if self._shared.lose_next_answer:
            self._shared.lose_next_answer = False
            raise FileExistsError(errno.EEXIST, "the name is taken", name)

    def count_links(self, written: str) -> int:
        """Return how many names a written file has."""
        return int(self._shared.files[written][1])

    def replace(self, written: str, name: str) -> None:
        """Rename a written file, and replace the file of that name."""
        self._shared.files[name] = self._before[name] = self._shared.files.pop(written)

    def remove(self, name: str) -> None:
        """Remove a name, if it exists."""
        self._before.pop(name, None)
        if found := self._shared.files.pop(name, None):
            found[1] -= 1


class Storage:
    """The server, which each machine reaches, or does not reach, on its own."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.shared = SharedFiles()
        self._port = ENDPOINT[1]
        self._pid = 0
        self._seen: dict[str, FilesSeen] = {}
        self._claims: dict[str, Claims] = {}
        self._slow: dict[str, float] = {}  # machine -> until when the server is slow for it
        self._silent: dict[str, float] = {}  # machine -> until when it gets no answer; "" stands for all machines

    def seen_by(self, machine: Machine) -> FilesSeen:
        """Return the files as a machine sees them."""
        if machine.name not in self._seen:
            seen = self._seen[machine.name] = FilesSeen(self.shared, lambda: self._job.world.now)
            self._claims[machine.name] = Claims(_NOWHERE, seen)
        return self._seen[machine.name]

    def claims(self, machine: Machine) -> Claims | VotedClaims:
        """Return the claims as a machine sees them."""
        self.seen_by(machine)
        return self._claims[machine.name]

    def make_claims(self, machine: Machine) -> Claims | VotedClaims:
        """Return claims for a process that stands for election on a machine."""
        return self.claims(machine)

    def note_candidate(self, sign: Sign, before: Sign | None) -> None:
        """Note that a process claims a term with a sign. before: the newest sign until then."""

    def hand_over(self, claims: Claims | VotedClaims, sign: Sign) -> None:
        """Give the claims with which a term was won to its head."""

    def newest_term_beside(self, head: Head) -> int:
        """Return the highest term that was claimed of the life of the job in which a head is."""
        return self.shared.newest_term

    def voter_of(self, machine: Machine) -> Any:
        """Return the voter of a machine; None: the run dir has no voters."""
        return None

    def empty_disk(self, machine: Machine) -> None:
        """Do nothing: the run dir does not lie on the machines."""

    def voting(self, head: Head) -> Voting | None:
        """Return what changes the voters; None: the run dir has no voters."""
        return None

    def claims_of(self, head: Head) -> Claims | VotedClaims:
        """Return the claims that a head uses."""
        return self.claims(head.machine)

    # --- what befalls it --------------------------------------------------------------------------------------

    def be_slow(self, machine: Machine, seconds: float) -> None:
        """Take up to a second for each answer to a machine, for some seconds."""
        self._slow[machine.name] = max(self._slow.get(machine.name, 0.0), self._job.world.now + seconds)

    def be_silent(self, machine: Machine | None, seconds: float) -> None:
        """Do not answer a machine for some seconds; None: answer no machine."""
        name = "" if machine is None else machine.name
        self._silent[name] = max(self._silent.get(name, 0.0), self._job.world.now + seconds)

    def is_silent(self, machine: Machine) -> bool:
        """Return whether a machine gets no answer now."""
        return self._job.world.now < max(self._silent.get("", 0.0), self._silent.get(machine.name, 0.0))

    def ask(self, machine: Machine, do: Callable[..., None], *args: Any) -> None:
        """Call `do` with `args` as soon as the server answers the machine."""
        world = self._job.world
        if self.is_silent(machine):
            until = max(self._silent.get("", 0.0), self._silent.get(machine.name, 0.0))
            world.after(until - world.now + world.random.uniform(0.001, 0.05), self.ask, machine, do, *args)
        else:
            is_slow = world.now < self._slow.get(machine.name, 0.0)
            seconds = world.random.uniform(0.1, 1.0) if is_slow else world.random.uniform(0.0005, 0.01)
            world.after(seconds, do, *args)

    # --- a head -----------------------------------------------------------------------------------------------

    def watch(self, head: Head) -> None:
        """Have a head show a sign of life regularly, and end once it was replaced, as `SignOfLife` does."""
        self._job.world.after(PERIOD, self._watch, head)

    def _watch(self, head: Head) -> None:
        if not head.lives:
            return
        if head.sleeps():
            self._job.world.after(0.1, self._watch, head)
        else:
            self.ask(head.machine, self._check_and_show, head, head.clock())

    def _check_and_show(self, head: Head, begun: float) -> None:
        if not head.lives or head.sleeps():
            self._watch(head)
            return
        with contextlib.suppress(OSError):
            claims = self.claims_of(head)
            if claims.newer(head.term) is not None:
                self._job.world.record(f"the head of term {head.term} sees that it was replaced")
                head.die()
                return
            if begun >= head.held_until:
                claims.show(head.next_sign())
                self._change_voters(head)
                head.shown = begun
        self.watch(head)

    def _change_voters(self, head: Head) -> None:
        """Do nothing: the run dir has no voters."""

    def end(self, head: Head, code: int) -> None:
        """Show that the job has ended with an exit code."""
        with contextlib.suppress(OSError):
            self.claims_of(head).show(replace(head.next_sign(), over=code))

    # --- what an agent's starter does -------------------------------------------------------------------------

    def order(self, machine: Machine, search: HeadSearch, order: bytes) -> None:
        """Take an order of an agent to its starter: obey it after a moment, and as soon as the storage answers."""
        random = self._job.world.random
        wait = random.uniform(0.005, 0.05) if order == READ_SIGN else random.uniform(0.05, 0.4)
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
        at_endpoint = machine.name == ENDPOINT[0]
        claims = self.make_claims(machine)
        if order == START and isinstance(claims, VotedClaims) and not claims.may_begin(at_endpoint=at_endpoint):
            self._answer(machine, search, head=0)
            return
        sign = claims.read()
        if order == READ_SIGN:
            self._answer(machine, search, sign={} if sign is None else vars(sign))
        elif order == TAKE_OVER:
            seen = search.sign
            mine = sign is not None and seen is not None and sign.term == seen.term
            self._answer(machine, search, head=self._take_over(machine, sign) if mine else 0)
        else:
            self._start(machine, search, claims, sign, begins=order == START)

    def _answer(self, machine: Machine, search: HeadSearch, **answer: Any) -> None:
        if machine.lives and machine.search is search:
            machine.when_awake(search.on_answer)(answer)

    def _stand(self, machine: Machine, port: int, claims: Claims | VotedClaims, *, may_be_beside: bool = False) -> int:
        """Claim the next term for a head on a machine and a port, as `election.stand` does.

        Returns:
            The number of heads that were started.
        """
        job = self._job
        if job.listener((machine.name, port)) is not None:
            return 0
        try:
            term = claims.next_term()
            before = claims.newest()
        except OSError:
            return 0
        sign = Sign(
            term=term,
            address=machine.name,
            port=port,
            machine=machine.boot,
            pid=self._next_pid(),
            started=1,
            count=0,
        )
        self.note_candidate(sign, before)
        if not claims.claim(sign):
            return 0
        self.hand_over(claims, sign)
        job.start_head(machine, sign, may_be_beside=may_be_beside)
        return 1

    def _next_pid(self) -> int:
        self._pid += 1
        return self._pid

    def _take_over(self, machine: Machine, sign: Sign | None) -> int:
        """Start a head in place of a silent one, as `election.stand` does with `takes_over`.

        Returns:
            The number of heads that were started.
        """
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
        job.world.record(f"{machine.name} takes the head's place")
        return self._stand(machine, port, self.make_claims(machine), may_be_beside=is_elsewhere)

    def _start(
        self,
        machine: Machine,
        search: HeadSearch,
        claims: Claims | VotedClaims,
        sign: Sign | None,
        *,
        begins: bool,
    ) -> None:
        """Start a head at the endpoint, or where the last head was if that is this machine, unless a head lives."""
        at_endpoint = machine.name == ENDPOINT[0]
        if (sign is None or sign.ended) and not begins:
            self._answer(machine, search, head=0)
        elif sign is None or sign.ended or sign.machine == machine.boot:
            port = 0
            if at_endpoint:
                port = ENDPOINT[1]
            elif sign is not None and not sign.ended:
                port = sign.port
            new_heads = self._stand(machine, port, claims) if port and not self._job.over else 0
            self._answer(machine, search, head=new_heads)
        elif at_endpoint:
            self._job.world.after(STALE, self._start_if_stale, machine, search, sign)
        else:
            self._answer(machine, search, head=0)

    def _start_if_stale(self, machine: Machine, search: HeadSearch, seen: Sign) -> None:
        new_heads = 0
        if machine.awake and self.claims(machine).read() == seen and not self._job.over:
            claims = self.make_claims(machine)  # the head before was on another machine
            new_heads = self._stand(machine, ENDPOINT[1], claims, may_be_beside=True)
        self._answer(machine, search, head=new_heads)

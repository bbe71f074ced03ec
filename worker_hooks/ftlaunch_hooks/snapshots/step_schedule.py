"""The order for each step boundary: rank 0 decides it one step ahead, all ranks follow it.

"Rank 0" and "all ranks" are those of this node. What is common to all nodes of a job (where to stop, what to hold for
the saver, how many steps lie between snapshots) the supervisor announces on each of them, ahead of the step.

If each rank decided by itself (by looking at its orders, at the saver, at its own clock), two ranks could decide
differently: a step would be held on one of them only, or one would wait for a snapshot that the other never
takes. So rank 0 writes an order for each step into its page, and all ranks follow it. In a job whose ranks step
together an order is always there before it is wanted.

A rank that has left its loop (uneven inputs: torch.distributed.algorithms.Join) is waited for no longer. Where that is
rank 0, the others only stop where they are told to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.pages.words import ASKED, SCHEDULE
from ftlaunch_contract.protocol import Flag, Why
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval, AnnouncedInterval
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget

_TAKE, _AGREE = 1, 2
_ASKS = 0xFF  # the bits of a packed order that ask for something
_NEVER = 1 << 62
_SIGN_SECONDS = 1.0  # between signs of life of a rank that waits for the saver
_LONG_NS = 1_000_000_000  # that training waits for the saver before people are told
_WAITED = (
    "step {step} has waited {seconds:.1f} s for the checkpoint of step {before}: the script asks for one every {every}"
    " steps, and saving takes longer than these; ask for fewer where training is not to wait"
)
_ASKED, _FIRST, _RING = int(ASKED), int(SCHEDULE), SCHEDULE.count


@dataclass(frozen=True)
class BoundaryOrder:
    """What all ranks do at one boundary."""

    take: bool = False  # a snapshot
    hold: Why | None = None  # a snapshot held for the saver, and why
    keep: int = NONE  # the step the saver may be reading: its slot stays
    agree: bool = False  # the ranks agree anew on the memory, before the snapshot

    @property
    def asks(self) -> bool:
        """Whether anything is to be done."""
        return self.take or self.agree or self.hold is not None


def pack(step: int, order: BoundaryOrder) -> int:
    """An order as one word: 31 bits of step, 24 of how many steps ago `keep` was (0: none), 4 of why, 4 of flags.

    A step to keep that is more than 16 million steps old is left out.
    """
    age = step - order.keep if order.keep != NONE and step - order.keep < 1 << 24 else 0
    why = 0 if order.hold is None else order.hold + 1
    return step << 32 | age << 8 | why << 4 | _TAKE * order.take | _AGREE * order.agree


def unpack(word: int) -> tuple[int, BoundaryOrder]:
    """The step of a packed order, and the order."""
    step, age, why = word >> 32, word >> 8 & 0xFFFFFF, word >> 4 & 0xF
    hold = Why(why - 1) if why else None
    return step, BoundaryOrder(bool(word & _TAKE), hold, step - age if age else NONE, bool(word & _AGREE))


class StepSchedule:
    """The orders, in the page of the node's first rank."""

    def __init__(
        self,
        place: int,
        peers: Sequence[Page],
        orders: Page,
        pace: AdaptiveInterval,
        budget: MemoryBudget,
        *,
        common: bool = False,
    ) -> None:
        """peers: the pages of the node's ranks; this one's is at `place`. orders: see Coordinator.

        common: there are ranks on other nodes, and all follow the interval that is announced to all nodes.
        """
        self._page, self._peers, self._orders = peers[place], peers, orders
        self._leads, self._alone = place == 0, len(peers) == 1
        self._pace, self._budget = pace, budget
        self._announced = AnnouncedInterval(pace.interval, orders) if common else None
        self._served = self._held = NONE
        self._save_every = 0  # steps, as the script asks; 0: the supervisor announces what is saved
        self._ahead = 0  # by how much the script's count of steps is ahead of the job's
        self._awaited = NONE  # the newest step held by that
        self._told_of_wait = False
        self._all_pages = [page.q for page in peers]
        self._passed = 0  # a step that every rank has completed
        self._idle_before, self._requests = 0, b""  # with these requests no order for an earlier step asks for anything
        if self._leads:
            self._interval(NONE)

    def save_every(self, steps: int, ahead: int = 0) -> None:
        """Have the snapshot of every step that is a multiple of `steps` saved, and besides only what somebody asks for.

        Call it on every rank before the order for the first of these steps is written. ahead: by how much the count
        whose multiples are meant is ahead of the job's steps.
        """
        self._save_every, self._ahead = steps, ahead
        self._served = self._orders.persist_at  # what an interval of the supervisor's has announced before
        self.decide_anew()

    def keep_interval(self, steps: int) -> None:
        """Take a snapshot at every step that is a multiple of `steps`, on all nodes, whatever that costs."""
        self._pace.fix(steps)
        if self._announced is not None:
            self._announced = AnnouncedInterval(steps, self._orders)
        self.decide_anew()

    def await_saver(self, step: int) -> int:
        """Wait until the step saved before `step` is on storage, where `save_every` holds; return nanoseconds.

        Every rank calls it at a boundary whose snapshot is to be held. Each multiple is saved, so that training waits
        where saving takes longer than the steps between two: a snapshot more would take memory for a copy of the state.
        A save that has failed, or a stop that is announced, ends the wait.
        """
        if not self._save_every or step == self._awaited:
            return 0
        before, self._awaited = self._awaited, step
        began_ns = time.monotonic_ns()
        page, orders = self._page, self._orders
        while not wait_until(
            lambda: page.leave or orders.stop_at != NONE or orders.saved >= before, time.monotonic() + _SIGN_SECONDS
        ):
            page.touch(time.monotonic_ns())
        waited_ns = time.monotonic_ns() - began_ns
        if waited_ns > _LONG_NS and self._leads and not self._told_of_wait:
            self._told_of_wait = True
            say(_WAITED.format(step=step, seconds=waited_ns / 1e9, before=before, every=self._save_every))
        return waited_ns

    def idle(self, step: int, now_ns: int) -> bool:
        """Whether nothing is to be done at the boundary of `step`, and nothing is to be waited for.

        Then rank 0 has written the order for the next step. Otherwise nothing has happened: `read` and `write` do it.
        """
        ahead, orders = step, self._all_pages[0]
        if not self._alone:
            word = orders[_FIRST + step % _RING]
            if word >> 32 != step or word & _ASKS:
                return False
            if not self._leads:
                return True
            ahead += 1
            if ahead - _RING > self._passed:
                return False
        if ahead >= self._idle_before or now_ns >= self._budget.look_ns or self._orders.requests() != self._requests:
            return False  # what `_decide` has found may not be so any more
        for page in self._all_pages:
            if page[_ASKED]:
                return False
        if not self._alone:
            orders[_FIRST + ahead % _RING] = ahead << 32
        return True

    def quiet(self, until_ns: int) -> tuple[int, int]:
        """Where `idle` has just returned True: the step before which that holds, and the time, at most `until_ns`.

        A request is seen then, and not before. Only a rank without peers may rely on that: no other rank waits for it.
        """
        return (self._idle_before, min(until_ns, self._budget.look_ns)) if self._alone else (0, 0)

    def decide_anew(self) -> None:
        """Something was done: what it changes counts for the next order."""
        self._idle_before = 0

    def write(self, step: int) -> None:
        """Rank 0: write the order for `step`, after waiting for a rank that is far behind. Other ranks: nothing."""
        if self._leads and not self._alone:
            self._write(step)

    def _write(self, step: int) -> None:
        behind = step - _RING
        if behind > self._passed:
            if not self._all_past(behind):
                wait_until(lambda: self._page.leave or self._all_past(behind), math.inf)
            self._passed = max(min(page.step for page in self._peers), 0)
        self._peers[0].q[_FIRST + step % _RING] = pack(step, self._decide(step))

    def _all_past(self, step: int) -> bool:
        """Whether every rank that is in its loop has completed `step`."""
        return all(page.step >= step or page.flags & Flag.LOOP_LEFT for page in self._peers)

    def read(self, step: int) -> BoundaryOrder:
        """The order for `step`; waits until rank 0 has written it. An empty order when the ranks are told to leave."""
        if self._alone:
            self._write(step)  # no other rank must know it in advance: the newest requests count
        words, word = self._peers[0].q, _FIRST + step % _RING
        if words[word] >> 32 != step:
            leader = self._peers[0]
            wait_until(
                lambda: self._page.leave or words[word] >> 32 == step or bool(leader.flags & Flag.LOOP_LEFT), math.inf
            )
        said, order = unpack(words[word])
        if said == step:
            return order
        return BoundaryOrder(hold=Why.STOP if NONE != self._orders.stop_at <= step else None)

    def _decide(self, step: int) -> BoundaryOrder:
        self._requests = self._orders.requests()  # before they are read one by one: what comes now is seen next time
        every = self._interval(step)
        hold = self._hold(step)
        keep = max(self._held, self._page.save_step)
        if keep <= self._page.saved:
            keep = self._page.reading
        if hold is not None:
            self._held = step
        due = every > 0 and step % every == 0
        agree = self._budget.progress.wanted() and self._budget.progress.left_before(step) is None
        order = BoundaryOrder(due, hold, keep if keep < step else NONE, agree)
        self._idle_before = 0 if order.asks or keep != NONE else self._next(step, every)
        return order

    def _interval(self, step: int) -> int:
        """The interval that holds at `step`. What this node by itself would have is told to the supervisor."""
        if self._announced is None:
            return self._budget.spaced(self._pace.interval)
        self._page.wanted = self._budget.allowed(self._pace.interval) or self._pace.interval
        return self._budget.spaced(self._announced.at(step))

    def _next(self, step: int, every: int) -> int:
        """The first step after `step` that has something to be done, as far as is known."""
        orders = self._orders
        known = [step - step % every + every if every else _NEVER]
        known += [step + self._save_every - (step + self._ahead) % self._save_every] if self._save_every else []
        known += [orders.stop_at] if orders.stop_at != NONE else []
        known += [orders.persist_at] if orders.persist_at not in (NONE, self._served) else []
        change = self._announced.changes_after(step) if self._announced is not None else None
        known += [change] if change is not None else []
        return min(known)

    def _hold(self, step: int) -> Why | None:
        orders = self._orders
        if NONE != orders.stop_at <= step:
            return Why.STOP
        is_due = bool(self._save_every) and (step + self._ahead) % self._save_every == 0
        if NONE != orders.persist_at <= step and orders.persist_at != self._served:
            self._served = orders.persist_at
            is_due = True
        return Why.INTERVAL if is_due else None

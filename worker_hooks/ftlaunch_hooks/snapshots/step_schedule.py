"""The order for each step boundary: rank 0 decides it one step ahead, all ranks follow it.

In this module "rank 0" and "all ranks" mean this node's. What is common to all nodes of a job (where to stop, what to
hold for the saver, how many steps lie between snapshots) the supervisor announces on each node, ahead of the step.

If each rank decided by itself (from its requests, the saver's progress, its own clock), two ranks could decide
differently: a step would be held on one of them only, or one would wait for a snapshot that the other never
takes. So rank 0 writes an order for each step into its page, and all ranks follow it. In a job whose ranks step
together an order is always there before it is wanted.

Nobody waits any more for a rank that has left its loop (uneven inputs: torch.distributed.algorithms.Join). Where that
is rank 0, the others only stop where they are told to.
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

_SNAPSHOT = 1  # flag of a packed order
_AGREE = 2  # flag of a packed order
_ASKS = 0xFF  # the bits of a packed order that ask for something
_NEVER = 1 << 62
_MOST_POSTPONED_NS = 60_000_000_000  # for longer no snapshot waits until slots are prepared
_SIGN_SECONDS = 1.0  # between signs of life of a rank that waits for the saver
_LONG_NS = 1_000_000_000  # a wait for the saver that is longer is reported
_WAITED = (
    "step {step} has waited {seconds:.1f} s for the checkpoint of step {before}: the script asks for one every {every}"
    " steps, and saving takes longer than these; ask for fewer where training is not to wait"
)
# offsets in a page, as exact ints, which are faster indices than rows of the table
_ASKED = int(ASKED)
_FIRST = int(SCHEDULE)
_RING = SCHEDULE.count


@dataclass(frozen=True)
class BoundaryOrder:
    """What all ranks do at one boundary."""

    snapshot: bool = False
    hold: Why | None = None  # why to take a snapshot that is held for the saver; None: not to
    keep: int = NONE  # the step that the saver may be reading: its slot stays
    agree: bool = False  # agree on the memory once more, before the snapshot

    @property
    def asks(self) -> bool:
        """Whether anything is to be done."""
        return self.snapshot or self.agree or self.hold is not None


def pack(step: int, order: BoundaryOrder) -> int:
    """Return an order as one word: 31 bits of step, 24 of the steps since `keep` (0: none), 4 of why, 4 of flags.

    A step to keep that is more than 16 million steps old is left out.
    """
    age = step - order.keep if order.keep != NONE and step - order.keep < 1 << 24 else 0
    why = 0 if order.hold is None else order.hold + 1
    return step << 32 | age << 8 | why << 4 | _SNAPSHOT * order.snapshot | _AGREE * order.agree


def unpack(word: int) -> tuple[int, BoundaryOrder]:
    """Return the step of a packed order, and the order."""
    step = word >> 32
    age = word >> 8 & 0xFFFFFF
    why = word >> 4 & 0xF
    order = BoundaryOrder(
        snapshot=bool(word & _SNAPSHOT),
        hold=Why(why - 1) if why else None,
        keep=step - age if age else NONE,
        agree=bool(word & _AGREE),
    )
    return step, order


class StepSchedule:
    """Writes and reads the orders, a ring in the page of the node's first rank."""

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
        """Begin without orders.

        Args:
            place: this rank's place among the node's ranks.
            peers: the pages of the node's ranks.
            orders: the page with the supervisor's requests.
            pace: the interval between snapshots.
            budget: the memory for snapshots.
            common: whether there are ranks on other nodes, so that all nodes follow an announced interval.
        """
        self._page = peers[place]
        self._peers = peers
        self._orders = orders
        self._leads = place == 0
        self._alone = len(peers) == 1
        self._pace = pace
        self._budget = budget
        self._announced = AnnouncedInterval(pace.interval, orders) if common else None
        self._served = NONE  # the newest `persist_at` of the supervisor's that was held, or is replaced by `save_every`
        self._held = NONE  # the newest step that was ordered to be held
        self._save_every = 0  # steps between saves, as the script asks; 0: the supervisor announces what is saved
        self._ahead = 0  # by how much the script's count of steps is ahead of the job's
        self._awaited = NONE  # the newest step that `await_saver` was called for
        self._has_warned_of_wait = False
        self._postponed_until_ns = 0  # monotonic time; 0: no snapshot is postponed
        self._all_pages = [page.q for page in peers]
        self._passed = 0  # a step that every rank has completed
        # While the requests are these, no order for a step before `_idle_before` asks for anything.
        self._idle_before = 0
        self._requests = b""
        if self._leads:
            self._interval(NONE)

    def save_every(self, steps: int, ahead: int = 0) -> None:
        """Save the snapshot of every step that is a multiple of `steps`, and besides only what somebody asks for.

        Call this on every rank before the order for the first of these steps is written.

        Args:
            steps: steps between saves.
            ahead: by how much the count whose multiples are meant is ahead of the job's steps.
        """
        self._save_every = steps
        self._ahead = ahead
        self._served = self._orders.persist_at  # drops what the supervisor's own interval has announced before
        self.invalidate_order()

    def keep_interval(self, steps: int) -> None:
        """Take a snapshot at every step that is a multiple of `steps`, on all nodes, whatever that costs."""
        self._pace.fix(steps)
        if self._announced is not None:
            self._announced = AnnouncedInterval(steps, self._orders)
        self.invalidate_order()

    def await_saver(self, step: int) -> int:
        """Wait until the step saved before `step` is on storage, if `save_every` holds; return nanoseconds waited.

        Every rank calls this at a boundary whose snapshot is to be held. Every multiple is saved, so training waits
        where saving takes longer than the steps between two: one more snapshot would take memory for another copy of
        the state. A save that has failed, or a stop that is announced, ends the wait.
        """
        if not self._save_every or step == self._awaited:
            return 0
        before = self._awaited
        self._awaited = step
        began_ns = time.monotonic_ns()
        page = self._page
        orders = self._orders

        def is_over() -> bool:
            return page.leave or orders.stop_at != NONE or orders.saved >= before

        while not wait_until(is_over, time.monotonic() + _SIGN_SECONDS):
            page.touch(time.monotonic_ns())
        waited_ns = time.monotonic_ns() - began_ns
        if waited_ns > _LONG_NS and self._leads and not self._has_warned_of_wait:
            self._has_warned_of_wait = True
            say(_WAITED.format(step=step, seconds=waited_ns / 1e9, before=before, every=self._save_every))
        return waited_ns

    def idle(self, step: int, now_ns: int) -> bool:
        """Whether nothing is to be done at the boundary of `step`, and nothing is to be waited for.

        If so, rank 0 has written the order for the next step. Otherwise nothing has happened, and `read` and `write`
        are to be called.
        """
        ahead = step
        orders = self._all_pages[0]
        if not self._alone:
            word = orders[_FIRST + step % _RING]
            if word >> 32 != step or word & _ASKS:
                return False
            if not self._leads:
                return True
            ahead += 1
            if ahead - _RING > self._passed:
                return False
        if (
            ahead >= self._idle_before
            or now_ns >= self._budget.check_at_ns
            or self._orders.requests() != self._requests
        ):
            return False  # what `_decide` has found may no longer be true
        for page in self._all_pages:
            if page[_ASKED]:
                return False
        if not self._alone:
            orders[_FIRST + ahead % _RING] = ahead << 32
        return True

    def quiet(self, until_ns: int) -> tuple[int, int]:
        """Return how long an `idle` that has just returned True holds: the step before which, and the time until which.

        Until then a request is not seen. Only a rank without peers may rely on the result, as no other rank waits for
        it; a rank with peers gets (0, 0).

        Args:
            until_ns: the latest monotonic time to return, nanoseconds.
        """
        return (self._idle_before, min(until_ns, self._budget.check_at_ns)) if self._alone else (0, 0)

    def invalidate_order(self) -> None:
        """Make the next order take account of what was just changed."""
        self._idle_before = 0

    def write(self, step: int) -> None:
        """Write the order for `step`, after waiting for any rank that is far behind. Does nothing but on rank 0."""
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
        """Return the order for `step`, and wait until rank 0 has written it.

        If the ranks are told to leave meanwhile, the order is to stop or empty.
        """
        if self._alone:
            self._write(step)  # no other rank needs the order in advance, so the newest requests count
        words = self._peers[0].q
        word = _FIRST + step % _RING
        if words[word] >> 32 != step:
            leader = self._peers[0]
            wait_until(
                lambda: self._page.leave or words[word] >> 32 == step or bool(leader.flags & Flag.LOOP_LEFT), math.inf
            )
        order_step, order = unpack(words[word])
        if order_step == step:
            return order
        return BoundaryOrder(hold=Why.STOP if NONE != self._orders.stop_at <= step else None)

    def _decide(self, step: int) -> BoundaryOrder:
        self._requests = self._orders.requests()  # read first: a request that comes meanwhile is seen at the next step
        every = self._interval(step)
        hold = self._hold(step)
        keep = max(self._held, self._page.save_step)
        if keep <= self._page.saved:
            keep = self._page.reading
        if hold is not None:
            self._held = step
        due = every > 0 and step % every == 0 and not self._postpones()
        agree = self._budget.progress.wanted() and self._budget.progress.left_before(step) is None
        order = BoundaryOrder(snapshot=due, hold=hold, keep=keep if keep < step else NONE, agree=agree)
        self._idle_before = 0 if order.asks or keep != NONE else self._next(step, every)
        return order

    def _postpones(self) -> bool:
        """Whether no snapshot is due as long as a rank prepares the slot for it: it would hold up the loop ten times.

        An interval that was asked for holds from the beginning on. So does that of a job on several nodes: each would
        begin at another step, and until all have begun, no step would be common to them.
        """
        may = self._pace.is_auto and self._announced is None
        if not (may and self._budget.progress.any_preparing()):
            self._postponed_until_ns = 0
            return False
        now_ns = time.monotonic_ns()
        if not self._postponed_until_ns:
            self._postponed_until_ns = now_ns + _MOST_POSTPONED_NS
        return now_ns < self._postponed_until_ns

    def _interval(self, step: int) -> int:
        """Return the interval in force at `step`; tell the supervisor the interval that this node alone would have."""
        if self._announced is None:
            return self._budget.spaced(self._pace.interval)
        self._page.wanted = self._budget.allowed(self._pace.interval) or self._pace.interval
        return self._budget.spaced(self._announced.at(step))

    def _next(self, step: int, every: int) -> int:
        """Return the first step after `step` at which something is to be done, as far as is known."""
        orders = self._orders
        known = [step - step % every + every if every else _NEVER]
        if self._save_every:
            known.append(step + self._save_every - (step + self._ahead) % self._save_every)
        if orders.stop_at != NONE:
            known.append(orders.stop_at)
        persist_at = orders.persist_at
        if persist_at not in (NONE, self._served):
            known.append(persist_at)
        change = self._announced.changes_after(step) if self._announced is not None else None
        if change is not None:
            known.append(change)
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

"""One life of the ranks. An Attempt is built anew each time, so that nothing of an earlier one can be left over."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from ftlaunch.autopsy.grace_cut import GraceCut
from ftlaunch.engine.context import Context
from ftlaunch.engine.hang_examination import HangExamination
from ftlaunch.health.healthy_waits import HealthyWaits
from ftlaunch.health.progress import AttemptProgress
from ftlaunch.health.resume_proof import ProofWatch
from ftlaunch.health.stragglers import Stragglers
from ftlaunch.policy.failure_diagnosis import Cause, aborts_over_timeout
from ftlaunch.ranks.group import RankGroup
from ftlaunch.ranks.log_files import tail
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.ranks.view import all_attached, any_attached, front
from ftlaunch.reporting.events.ranks import (
    AttemptAdopted,
    AttemptStarted,
    RankCrashedAtEnd,
    RankDying,
    RankExited,
    RankRestarted,
    RanksKilled,
)
from ftlaunch_contract.files.regular_file import file_size
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import announce_step


class Attempt:
    """The ranks of one attempt, and what is known and decided about them."""

    def __init__(
        self,
        context: Context,
        number: int,
        group: RankGroup,
        progress: AttemptProgress,
        waits: HealthyWaits,
    ) -> None:
        """number: 0 is the job's first attempt."""
        self._context, self.number, self.group = context, number, group
        self.progress, self.waits = progress, waits
        self.stragglers = Stragglers()
        self.proof = ProofWatch(len(context.pages))
        self.examination = HangExamination(context, group)
        in_run_dir = context.files.of(context.spec.run_dir)
        self.grace_cut = GraceCut(context.collect, context.spec.run_dir, in_run_dir, group)
        self.must_look = False
        """a rank's process has ended since the last look, or what it has left can be read by now"""
        self.broken_off = False
        """its ranks are ended though nothing has failed: their ends are no failures"""

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self, prepare: Callable[[], None]) -> None:
        """Start the ranks. Raises SpawnFailed; those that were started by then are told of all the same.

        prepare: decides where the ranks take their state from, and writes that into their pages; may raise OSError.
        """
        began = self._context.clock()
        try:
            with _failing_to_start():
                prepare()
                self.group.spawn()
        finally:
            ranks = self.group.ranks
            logs = {number: (rank.log, rank.log_from) for number, rank in ranks.items()}
            pids = [rank.process.pid for rank in ranks.values()]
            told = pids, self.group.port, logs, self._context.hosts(), self._context.clock() - began
            self._context.tell(AttemptStarted(self.number, *told))

    def adopt(self) -> None:
        """The ranks run already, and the group knows them. Their logs are followed from here on."""
        ranks = self.group.ranks
        call = self._context.bulkheads.call
        what = "see how long the log of a rank is, which is shown from its beginning"
        files = self._context.files.of(self._context.spec.log_dir)
        paths = {number: rank.log for number, rank in ranks.items()}
        nothing = dict.fromkeys(paths, 0)
        sizes = call(
            what, lambda: files.call(lambda: {number: file_size(log) for number, log in paths.items()}), nothing
        )
        logs = {number: (log, sizes[number]) for number, log in paths.items()}
        pids = [rank.process.pid for rank in ranks.values()]
        self._context.tell(AttemptAdopted(self.number, pids, self.group.port, logs, self._context.hosts()))

    def refill(self, now: float) -> None:
        """Start the ranks again whose time has come. Raises SpawnFailed."""
        with _failing_to_start():
            for number, restarts in self.group.refill(now):
                self.progress.rank_restarted()
                self._context.tell(RankRestarted(number, self.group.ranks[number].process.pid, restarts))

    # --- what is known ----------------------------------------------------------------------------------------

    def can_replace(self, rank: int) -> bool:
        """Whether a rank can be started again alone: not where ranks have attached, they agree on every step."""
        scope = self._context.spec.restarts.restart_scope
        return scope == "rank" and rank in self.group.ranks and not any_attached(self.group.views())

    def lifetime(self, rank: int, now: float) -> float:
        """Seconds that a rank has lived; of one that was never started, that the attempt has."""
        found = self.group.ranks.get(rank)
        return now - (self.group.started if found is None else found.started)

    # --- ends of ranks ----------------------------------------------------------------------------------------

    def look_at_once(self) -> None:
        """Have the ranks looked at in this turn, however long ago the last look was."""
        self.must_look = True

    def on_exit(self, rank: Rank) -> None:
        """A rank's process has ended."""
        self.look_at_once()
        page, code = rank.page, rank.process.returncode
        assert code is not None
        step = page.step if page is not None else -1
        self._context.tell(RankExited(rank.number, rank.process.pid, code, step))
        if code != rank.code and not rank.failed and not rank.asked:
            self._context.tell(RankCrashedAtEnd(rank.number, -code))

    def on_dying(self, rung: list[int]) -> None:
        """A signal has begun to end ranks: the others can leave meanwhile, whatever the verdict will be."""
        if self.group.dying():
            return  # those that come now leave because they are told to, or are seen when they have gone
        dying = self.group.note_dying(rung, self._context.loop.turn, self._context.clock())
        for rank, signum in dying.items():
            self._context.tell(RankDying(rank, signum))
        if any(not self.can_replace(rank) and not self._timed_out(rank, signum) for rank, signum in dying.items()):
            self.ask_to_leave()

    def _timed_out(self, number: int, signum: int) -> bool:
        """Whether a dying rank has waited in vain for another: the others are examined before they leave."""
        context, rank = self._context, self.group.ranks[number]
        files = context.files.of(context.spec.log_dir)
        words = context.bulkheads.call(
            "read the log of a dying rank", lambda: files.call(lambda: tail(rank.log, rank.log_from)), ""
        )
        return aborts_over_timeout(signum, words, context.rules)

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """Tell every rank that the attempt is over, on its page and by SIGTERM."""
        self._context.pages.ask_leave()
        self.group.ask_to_leave()

    def end(self, cause: Cause | None, now: float) -> bool:
        """Tell all ranks to leave; True where there is no use in a grace: they are killed then.

        cause: the failure that they leave for; None: they leave because the job was asked to stop.
        """
        self.examination.end()
        self._context.pages.ask_leave()
        if cause is not None and cause.kind == "hang" and all_attached(self.group.views()):
            self.kill()  # hung ranks with hooks have nothing to do with a grace
            return True
        self.group.ask_to_leave()
        self.grace_cut.begin(cause, now, self.examination.dumps)
        return False

    def announce_stop(self, deadline: float) -> tuple[int, int] | None:
        """Announce the step to stop at; returns it, and the newest step of any rank.

        None: no step has been made in this attempt. What is in memory from before is all there is to save, and the
        ranks are told to leave at once.
        """
        views = self.group.views()
        if not all_attached(views):
            self.broken_off = True
            self.ask_to_leave()
            return None
        newest, seconds = front(views)
        announced = self._context.pages[0].stop_at  # by a head whose place this one has taken
        step = announce_step(newest, seconds, self._context.pages.delay_seconds) if announced == NONE else announced
        self._context.pages.ask_stop(step, int(deadline * 1e9))
        return step, newest

    def kill(self) -> None:
        """SIGKILL to all ranks."""
        self.examination.end()
        if left := self.group.living:
            self._context.tell(RanksKilled(left, self.grace_cut.why))
        self.grace_cut.end()
        self.broken_off = True
        self.group.kill()


@contextlib.contextmanager
def _failing_to_start() -> Iterator[None]:
    """Take an OSError for a failure to start, which is judged like any other failure."""
    try:
        yield
    except OSError as error:
        raise SpawnFailed(0, f"{error.filename or 'a system call'}: {error.strerror}") from error

"""One attempt: the ranks from their start until the last of them has ended.

The supervisor builds a new Attempt for each start of the ranks, so that no state of an earlier attempt is left over.
Everything here runs in the main thread, called by `engine/supervisor.py` and `engine/watch.py`.
"""

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
    """Starts, watches and ends the ranks of one attempt, and holds what is known about these ranks."""

    def __init__(
        self,
        context: Context,
        number: int,
        group: RankGroup,
        progress: AttemptProgress,
        waits: HealthyWaits,
    ) -> None:
        """Prepare an attempt; no rank is started yet.

        Args:
            context: what all modules of the engine share.
            number: the number of the attempt; 0 is the job's first attempt.
            group: the ranks.
            progress: the progress of the ranks in this attempt.
            waits: measures the healthy waits of the ranks, from which the hang limits are learned.
        """
        self._context = context
        self.number = number
        self.group = group
        self.progress = progress
        self.waits = waits
        self.stragglers = Stragglers()
        self.proof = ProofWatch(len(context.pages))
        self.examination = HangExamination(context, group)
        in_run_dir = context.files.of(context.spec.run_dir)
        self.grace_cut = GraceCut(collect=context.collect, run_dir=context.spec.run_dir, files=in_run_dir, group=group)
        self.is_poll_due = False
        """whether the ranks are polled in this turn of the loop, because a process has ended or can be judged now"""
        self.broken_off = False
        """whether the ranks are being ended although none has failed: then their exit codes are no failures"""

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self, prepare: Callable[[], None]) -> None:
        """Start the ranks, and report the processes that were started, also when a later one could not be started.

        Args:
            prepare: called before the start; decides where the ranks take their state from, and writes this into their
                pages; may raise OSError.

        Raises:
            SpawnFailed: `prepare` or the start of a rank has failed.
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
            self._context.report(
                AttemptStarted(
                    attempt=self.number,
                    pids=pids,
                    port=self.group.port,
                    logs=logs,
                    hosts=self._context.hosts(),
                    seconds=self._context.clock() - began,
                )
            )

    def adopt(self) -> None:
        """Report that ranks which run already were taken over. Their logs are followed from their present ends on.

        Called instead of `spawn`, after the group was made to know the ranks.
        """
        ranks = self.group.ranks
        call = self._context.bulkheads.call
        what = "see how long the log of a rank is, which is shown from its beginning"
        files = self._context.files.of(self._context.spec.log_dir)
        paths = {number: rank.log for number, rank in ranks.items()}
        no_sizes = dict.fromkeys(paths, 0)
        sizes = call(
            what, lambda: files.call(lambda: {number: file_size(log) for number, log in paths.items()}), no_sizes
        )
        logs = {number: (log, sizes[number]) for number, log in paths.items()}
        pids = [rank.process.pid for rank in ranks.values()]
        self._context.report(
            AttemptAdopted(attempt=self.number, pids=pids, port=self.group.port, logs=logs, hosts=self._context.hosts())
        )

    def refill(self, now: float) -> None:
        """Start the ranks whose restart, each alone, is due at monotonic `now`. Raises SpawnFailed."""
        with _failing_to_start():
            for number, restarts in self.group.refill(now):
                self.progress.rank_restarted()
                self._context.report(RankRestarted(number, self.group.ranks[number].process.pid, restarts))

    # --- what is known ----------------------------------------------------------------------------------------

    def can_replace(self, rank: int) -> bool:
        """Return whether a rank can be restarted alone.

        Ranks that have called attach() agree on every step, so that none of these can be restarted without the others.
        """
        scope = self._context.spec.restarts.restart_scope
        return scope == "rank" and rank in self.group.ranks and not any_attached(self.group.views())

    def lifetime(self, rank: int, now: float) -> float:
        """Return how many seconds a rank has lived; for a rank that was never started, the age of the attempt."""
        known = self.group.ranks.get(rank)
        return now - (self.group.started if known is None else known.started)

    # --- ends of ranks ----------------------------------------------------------------------------------------

    def poll_in_this_turn(self) -> None:
        """Make the watch poll the ranks in this turn, however recent the last poll was."""
        self.is_poll_due = True

    def on_exit(self, rank: Rank) -> None:
        """Report that a rank's process has ended, and have the ranks polled in this turn."""
        self.poll_in_this_turn()
        page = rank.page
        code = rank.process.returncode
        assert code is not None
        step = page.step if page is not None else -1
        self._context.report(RankExited(rank=rank.number, pid=rank.process.pid, code=code, step=step))
        if code != rank.code and not rank.failed and not rank.asked:
            self._context.report(RankCrashedAtEnd(rank.number, -code))

    def on_dying(self, rung: list[int]) -> None:
        """Report ranks that a signal has begun to end, and tell the others to leave, whatever the verdict will be.

        Args:
            rung: the numbers of the ranks that are dying.
        """
        if self.group.dying():
            return  # ranks that die after the first ones were told to leave, or are seen once they have ended
        dying = self.group.note_dying(rung, self._context.loop.turn, self._context.clock())
        for rank, signum in dying.items():
            self._context.report(RankDying(rank, signum))
        if any(not self.can_replace(rank) and not self._timed_out(rank, signum) for rank, signum in dying.items()):
            self.ask_to_leave()

    def _timed_out(self, number: int, signum: int) -> bool:
        """Return whether a dying rank timed out waiting for another: then the others are examined before they leave."""
        context = self._context
        rank = self.group.ranks[number]
        files = context.files.of(context.spec.log_dir)
        last_output = context.bulkheads.call(
            "read the log of a dying rank", lambda: files.call(lambda: tail(rank.log, rank.log_from)), ""
        )
        return aborts_over_timeout(signum, last_output, context.rules)

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """Tell every rank to leave, on its page and by SIGTERM."""
        self._context.pages.ask_leave()
        self.group.ask_to_leave()

    def end(self, cause: Cause | None, now: float) -> None:
        """Tell all ranks to leave.

        Args:
            cause: the failure for which the ranks leave; None: the job was asked to stop.
            now: monotonic seconds.
        """
        self.examination.end()
        self._context.pages.ask_leave()
        self.group.ask_to_leave()
        self.grace_cut.begin(cause, now, self.examination.dumps, are_attached=all_attached(self.group.views()))

    def announce_stop(self, deadline: float) -> tuple[int, int] | None:
        """Announce the step at which all ranks are to stop.

        Args:
            deadline: monotonic seconds, until which the ranks have time to reach the step.

        Returns:
            The announced step and the newest step of any rank. None if no step was made in this attempt: memory holds
            only what was there before, and the ranks are told to leave at once.
        """
        views = self.group.views()
        if not all_attached(views):
            self.broken_off = True
            self.ask_to_leave()
            return None
        newest, seconds = front(views)
        announced = self._context.pages[0].stop_at  # set already if this head has taken the place of a dead one
        step = announce_step(newest, seconds, self._context.pages.delay_seconds) if announced == NONE else announced
        self._context.pages.ask_stop(step, int(deadline * 1e9))
        return step, newest

    def kill(self) -> None:
        """SIGKILL all ranks, and end the autopsy that may be under way."""
        self.examination.end()
        if left := self.group.living:
            self._context.report(RanksKilled(left, self.grace_cut.why))
        self.grace_cut.end()
        self.broken_off = True
        self.group.kill()


@contextlib.contextmanager
def _failing_to_start() -> Iterator[None]:
    """Turn an OSError into SpawnFailed, so that the failure is judged like any other failure to start."""
    try:
        yield
    except OSError as error:
        raise SpawnFailed(0, f"{error.filename or 'a system call'}: {error.strerror}") from error

"""Keeps the state of a job, and what a page shows of all its events, up to date with a growing journal.

The objects are used by one thread at a time, the helper thread of a `PageWatcher`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ftlaunch.history.journal import JournalFollower
from ftlaunch.views.dashboard.run_state import RunState
from ftlaunch.views.report_page.run_files import open_journal_without_links


class EventConsumer(Protocol):
    """Something that is built from the events of a journal, in their order."""

    @property
    def resumed(self) -> bool:
        """Whether some event reports a resume, which shows that the ranks report their steps."""

    def apply(self, event: dict[str, Any]) -> None:
        """Process the next event."""


Consumer = TypeVar("Consumer", bound=EventConsumer)


class FollowedJournal(Generic[Consumer]):
    """The journal of a run dir, the state of the job, and something built from all events.

    If the first resume shows that the ranks report their steps, or the journal is replaced, everything is built again.
    """

    def __init__(self, run_dir: Path, make: Callable[[bool], Consumer]) -> None:
        """Begin before the first event.

        Args:
            run_dir: the run dir.
            make: creates an empty `consumer`; the argument says whether the ranks report their steps.
        """
        self._run_dir = run_dir
        self._make = make
        self._begin(hooked=False)

    def _begin(self, *, hooked: bool) -> None:
        """Begin before the first event. `hooked` says whether the ranks report their steps."""
        self._journal = JournalFollower(
            self._run_dir, on_replaced=lambda: self._forget(hooked=False), open_file=open_journal_without_links
        )
        self._forget(hooked=hooked)

    def _forget(self, *, hooked: bool) -> None:
        """Forget all events, for a new beginning or because another journal has replaced the one that was read."""
        self._hooked = hooked
        self.state = RunState(self._run_dir)
        self.consumer = self._make(hooked)

    @property
    def dropped(self) -> Counter[str]:
        """Number of lines that hold no event, by reason."""
        return self._journal.dropped

    @property
    def lag(self) -> tuple[int, int] | None:
        """The bytes read so far and the bytes of the journal, if `read` has not reached its end; else None."""
        journal = self._journal
        return (journal.offset, journal.size) if journal.offset < journal.size else None

    def read(self, most: int = sys.maxsize) -> bool:
        """Process about `most` bytes of what was appended. Return whether there was an event.

        Raises:
            OSError: the journal cannot be read. The next call goes on where this one ended.
            Exception: the state or the consumer cannot process an event. As only one of them may have processed it,
                the next call begins again with the first event.
        """
        try:
            return self._read(most)
        except OSError:
            raise
        except Exception:
            self._begin(hooked=False)
            raise

    def _read(self, most: int) -> bool:
        new = False
        for event in self._journal.events(most):
            self.state.apply(event)
            self.consumer.apply(event)
            new = True
            if self.consumer.resumed and not self._hooked:
                self._begin(hooked=True)
                return self._read(most)
        return new

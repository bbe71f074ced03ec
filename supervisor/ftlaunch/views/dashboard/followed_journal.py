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


class Hears(Protocol):
    """Something that is built from the events of a journal, in their order."""

    @property
    def resumed(self) -> bool:
        """Whether some event reports a resume, which shows that the ranks report their steps."""

    def hear(self, event: dict[str, Any]) -> None:
        """Process the next event."""


Heard = TypeVar("Heard", bound=Hears)


class FollowedJournal(Generic[Heard]):
    """The journal of a run dir, the state of the job, and something built from all events.

    If the first resume shows that the ranks report their steps, or the journal is replaced, everything is built again.
    """

    def __init__(self, run_dir: Path, make: Callable[[bool], Heard]) -> None:
        """Begin before the first event.

        Args:
            run_dir: the run dir.
            make: creates an empty `Heard`; the argument says whether the ranks report their steps.
        """
        self._run_dir = run_dir
        self._make = make
        self._begin(hooked=False)

    def _begin(self, *, hooked: bool) -> None:
        """Begin before the first event."""
        self._journal = JournalFollower(
            self._run_dir, on_replaced=lambda: self._forget(hooked=False), open_file=open_journal_without_links
        )
        self._forget(hooked=hooked)

    def _forget(self, *, hooked: bool) -> None:
        """Forget all events: also when another journal has taken the place of the one that was read."""
        self._hooked = hooked
        self.state = RunState(self._run_dir)
        self.heard = self._make(hooked)

    @property
    def dropped(self) -> Counter[str]:
        """Number of lines that hold no event, by reason."""
        return self._journal.dropped

    @property
    def lag(self) -> tuple[int, int] | None:
        """Bytes read and bytes of the journal if `read` has left a rest; else None."""
        journal = self._journal
        return (journal.offset, journal.size) if journal.offset < journal.size else None

    def read(self, most: int = sys.maxsize) -> bool:
        """Process what was appended, about `most` bytes. Return whether there was an event.

        After any error other than OSError everything is built again, because only some parts processed the event.

        Raises:
            OSError: the journal cannot be read.
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
            self.state.hear(event)
            self.heard.hear(event)
            new = True
            if self.heard.resumed and not self._hooked:
                self._begin(hooked=True)
                return self._read(most)
        return new

"""The live page of one job: the data of the report page, updated as the journal grows.

The page is updated on helper threads, one at a time, by a `PageWatcher`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.runs import CLAIMS, Run
from ftlaunch.views.dashboard.followed_journal import FollowedJournal
from ftlaunch.views.report_page.data import NoEvents, data_of
from ftlaunch.views.report_page.gathering.walk import Walk
from ftlaunch.views.report_page.run_files import RunFiles
from ftlaunch.views.report_page.words import SafeText


class LiveRun:
    """The live page of one run dir."""

    def __init__(self, run_dir: Path, *, listed: bool) -> None:
        """Begin without a page. listed: whether an index shows this job among others."""
        self.run_dir = run_dir
        self._listed = listed
        self._journal = FollowedJournal(run_dir, lambda hooked: Walk(hooked=hooked))
        self._start: Mapping[str, Any] = {}
        self._files = RunFiles(run_dir)
        self._logged = ""  # last logged error
        self._newest: object = None
        self._due = False  # whether the journal holds more than the page shows
        self.data: dict[str, Any] | None = None
        """data of the newest page; None before the first"""

    @property
    def run(self) -> Run:
        """The newest run of the job, as far as the journal was read."""
        return Run(self.run_dir, self._journal.state.ends_of_run)

    def update(self) -> Mapping[str, Any]:
        """Read the journal and return the parts of the page, without those parts if nothing was appended.

        The part `live` is always there. It holds the job's state, or why the page cannot be updated.
        """
        try:
            found = self._read()
        except NoEvents:
            return {"live": self._live("empty", "the journal has no whole event yet")}
        except OSError as error:
            gone = not self.run_dir.is_dir()
            return {
                "live": self._live("gone" if gone else "unreadable", f"{self._at()}: {str(error.strerror).lower()}")
            }
        except Exception as error:
            # The last line of defence: the journal may be anybody's, and the page must say that it stands still.
            why = f"{type(error).__name__}: {error}"
            if why != self._logged:
                logging.getLogger(__name__).exception("the page of %s cannot be made", self.run_dir)
            self._logged = why
            return {"live": self._live("unreadable", f"{self._at()}: {why}")}
        self._newest = self._journal.state.newest
        state, sentence = self._journal.state.describe()
        return {**found, "live": self._live(state, sentence)}

    def _at(self) -> str:
        return f"cannot read the journal in {self.run_dir}"

    def _read(self) -> dict[str, Any]:
        """Return the data of the page if the journal holds more than the page; else nothing."""
        self._due = self._journal.read() or self._due or self.data is None
        if not self._due:
            return {}
        walk = self._journal.consumer.closed()
        walk.dropped = walk.dropped + self._journal.dropped
        if walk.start is not self._start:  # files are masked with the secrets of the command
            self._start = walk.start
            self._files = RunFiles(self.run_dir)
        self.data = data_of(self.run_dir, walk, self._files)
        self._due = False
        return self.data

    def _live(self, state: str, sentence: str) -> dict[str, Any]:
        """Return the part `live`. Its `nodes` says that the job has several nodes, which may be asked to leave."""
        several = (self.run_dir / CLAIMS).is_dir()
        return {
            "state": state,
            "sentence": SafeText([]).line(sentence),
            "newest": self._newest,
            "nodes": several,
            "listed": self._listed,
        }

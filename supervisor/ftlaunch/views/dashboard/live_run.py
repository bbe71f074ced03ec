"""One job as its page shows it, live."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.history.runs import CLAIMS, Run
from ftlaunch.views.dashboard.growing_journal import FollowedJournal
from ftlaunch.views.report_page.data import NoEvents, data_of
from ftlaunch.views.report_page.gathering.walk import Walk
from ftlaunch.views.report_page.run_files import RunFiles
from ftlaunch.views.report_page.words import SafeText


class LiveRun:
    """Of one run dir."""

    def __init__(self, run_dir: Path, *, listed: bool) -> None:
        """listed: it is one of several that an index shows."""
        self.run_dir, self._listed = run_dir, listed
        self._journal = FollowedJournal(run_dir, lambda hooked: Walk(hooked=hooked))
        self._start: Mapping[str, Any] = {}
        self._files = RunFiles(run_dir)
        self._logged = ""  # why a page could not be made
        self._newest: object = None
        self._due = False  # there is more in the journal than on the page
        self.data: dict[str, Any] | None = None
        """the newest page; None where there was none yet"""

    @property
    def run(self) -> Run:
        """The newest run of the supervisor, as far as the journal was read."""
        return Run(self.run_dir, self._journal.state.ends_of_run)

    def look(self) -> Mapping[str, Any]:
        """What has changed: parts of the page, and `live`, which says why the page stays as it is where it does."""
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
            # The last line of defence: a journal is other people's, and its page must say that it stands still.
            why = f"{type(error).__name__}: {error}"
            if why != self._logged:
                logging.getLogger(__name__).exception("the page of %s cannot be made", self.run_dir)
            self._logged = why
            return {"live": self._live("unreadable", f"{self._at()}: {why}")}
        self._newest = self._journal.state.newest
        return {**found, "live": self._live(*self._journal.state.told())}

    def _at(self) -> str:
        return f"cannot read the journal in {self.run_dir}"

    def _read(self) -> dict[str, Any]:
        """The page, where the journal has more than it."""
        self._due = self._journal.read() or self._due or self.data is None
        if not self._due:
            return {}
        walk = self._journal.heard.closed()
        walk.dropped = walk.dropped + self._journal.dropped
        if walk.start is not self._start:  # what is a secret stands in the command, too
            self._start, self._files = walk.start, RunFiles(self.run_dir)
        self.data = data_of(self.run_dir, walk, self._files)
        self._due = False
        return self.data

    def _live(self, state: str, sentence: str) -> dict[str, Any]:
        """nodes: the job is one of several, of which one may be asked to leave."""
        several = (self.run_dir / CLAIMS).is_dir()
        return {
            "state": state,
            "sentence": SafeText([]).line(sentence),
            "newest": self._newest,
            "nodes": several,
            "listed": self._listed,
        }

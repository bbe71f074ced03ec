"""The index of a dashboard: a row for each job of a directory, with state, steps, goodput and last incident.

The rows are updated on the helper thread of a `PageWatcher`. A row keeps numbers, and no events of its journal.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ftlaunch.history.events import sound
from ftlaunch.history.goodput import Teller
from ftlaunch.history.story import Incident, Story
from ftlaunch.history.timeline import TimeLine
from ftlaunch.views.dashboard.followed_journal import FollowedJournal
from ftlaunch.views.report_page.words import SafeText

PORTION = 4 << 20
"""bytes of a journal that one update reads, so that a long journal does not hold up other rows"""


class IndexRows:
    """The rows of one directory."""

    def __init__(self, runs: Callable[[], Mapping[str, Path]]) -> None:
        """Begin without rows. runs: returns the run dirs that exist now, by name; may raise OSError."""
        self._runs = runs
        self._rows: dict[str, IndexRow] = {}

    def update(self) -> Mapping[str, Any]:
        """Update and return all rows, the newest first, ready for JSON."""
        try:
            there = self._runs()
        except OSError as error:
            return {"trouble": f"cannot list the directory: {str(error.strerror).lower()}"}
        self._rows = {name: self._rows.get(name) or IndexRow(name, path) for name, path in there.items()}
        rows = [row.update() for row in self._rows.values()]
        return {"rows": sorted(rows, key=lambda row: float(row.get("newest", 0.0)), reverse=True), "trouble": ""}


class IndexRow:
    """The row of one run dir."""

    def __init__(self, name: str, run_dir: Path) -> None:
        self._run_dir = run_dir
        raw = os.fsencode(name)
        shown = SafeText([]).line(raw.decode(errors="replace"), 300)
        self._named = {"name": shown, "link": f"run/{quote(raw, safe='')}/"}
        self._journal = FollowedJournal(run_dir, _StorySoFar)
        self._cells: dict[str, Any] = {}
        self._due = False  # whether the journal holds more than the row shows
        self._logged = ""  # last logged error

    def update(self) -> dict[str, Any]:
        """Update and return the row, ready for JSON; a row that cannot be made says why."""
        try:
            return self._update()
        except OSError as error:
            return self._unreadable(f"cannot read its journal: {str(error.strerror).lower()}")
        except Exception as error:
            # The last line of defence: the journal may be anybody's, and must not take away the rows of other jobs.
            why = f"{type(error).__name__}: {error}"
            if why != self._logged:
                logging.getLogger(__name__).exception("the row of %s cannot be made", self._run_dir)
            self._logged = why
            return self._unreadable(f"cannot read its journal: {why}")

    def _update(self) -> dict[str, Any]:
        self._due = self._journal.read(PORTION) or self._due
        state = self._journal.state
        if (lag := self._journal.lag) is not None:
            read, there = (size >> 20 for size in lag)
            sentence = f"its journal is long: {read} of {there} MiB are read"
            return {**self._cells, **self._named, "state": "reading", "sentence": sentence}
        if self._due:
            self._due = False
            self._cells = self._journal.consumer.make_cells() | {"step": state.step}
        word, sentence = state.describe()
        return {**self._cells, **self._named, "state": word, "sentence": SafeText([]).line(sentence, 300)}

    def _unreadable(self, why: str) -> dict[str, Any]:
        return {**self._cells, **self._named, "state": "unreadable", "sentence": SafeText([]).line(why, 300)}


class _StorySoFar:
    """The cells of a row, built from events in bounded memory."""

    def __init__(self, hooked: bool) -> None:
        self._line = TimeLine()
        self._teller = Teller(hooked)
        self._incidents = 0
        self._last = ""  # sentence of the last incident

    @property
    def resumed(self) -> bool:
        """Whether some event reports a resume."""
        return self._line.resumed

    def apply(self, event: dict[str, Any]) -> None:
        """Process the next event."""
        for moment in self._line.add(sound(event)):
            self._teller.apply(moment)
            self._count(self._teller.story)

    def _count(self, story: Story) -> None:
        for entry in story.entries:
            if isinstance(entry, Incident):
                self._incidents += 1
                self._last = entry.sentence
        story.entries.clear()

    def make_cells(self) -> dict[str, Any]:
        """Return the cells of the row, as if the journal ended here."""
        teller = self._teller.copied()
        words = SafeText([])
        for moment in self._line.held:
            teller.apply(moment)
        story = teller.close()
        more = story.incidents
        last = more[-1].sentence if more else self._last
        return {
            "job_id": words.line(story.job_id, 200),
            "ranks": story.ranks,
            "goodput": story.effective,
            "incidents": self._incidents + len(more),
            "incident": words.line(last, 300),
            "begin": story.begin,
            "newest": story.end,
        }

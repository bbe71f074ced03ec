"""All jobs of a directory as rows: state, steps, goodput, the last incident."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ftlaunch.history.goodput import Teller
from ftlaunch.history.lines.numbers import sound
from ftlaunch.history.story import Incident, Story
from ftlaunch.history.timeline import TimeLine
from ftlaunch.views.dashboard.growing_journal import FollowedJournal
from ftlaunch.views.report_page.words import SafeText

_PORTION = 4 << 20  # bytes of a journal that one look reads: a long one must not keep the rows of others away


class IndexRows:
    """Of one directory."""

    def __init__(self, runs: Callable[[], Mapping[str, Path]]) -> None:
        """runs: the run dirs that are there now, by name. May raise OSError."""
        self._runs = runs
        self._rows: dict[str, IndexRow] = {}

    def look(self) -> Mapping[str, Any]:
        """All rows, the newest first."""
        try:
            there = self._runs()
        except OSError as error:
            return {"trouble": f"cannot list the directory: {str(error.strerror).lower()}"}
        self._rows = {name: self._rows.get(name) or IndexRow(name, path) for name, path in there.items()}
        rows = [row.look() for row in self._rows.values()]
        return {"rows": sorted(rows, key=lambda row: float(row.get("newest", 0.0)), reverse=True), "trouble": ""}


class IndexRow:
    """One run dir."""

    def __init__(self, name: str, run_dir: Path) -> None:
        self._run_dir = run_dir
        raw = os.fsencode(name)
        shown = SafeText([]).line(raw.decode(errors="replace"), 300)
        self._named = {"name": shown, "link": f"run/{quote(raw, safe='')}/"}
        self._journal = FollowedJournal(run_dir, _StorySoFar)
        self._told: dict[str, Any] = {}
        self._due = False  # the journal has told more than the row
        self._logged = ""  # why the row could not be made

    def look(self) -> dict[str, Any]:
        """The row now, JSON-ready; one that cannot be made says why."""
        try:
            return self._look()
        except OSError as error:
            return self._unreadable(f"cannot read its journal: {str(error.strerror).lower()}")
        except Exception as error:
            # The last line of defence: a journal is other people's, and one of them must not keep the others away.
            why = f"{type(error).__name__}: {error}"
            if why != self._logged:
                logging.getLogger(__name__).exception("the row of %s cannot be made", self._run_dir)
            self._logged = why
            return self._unreadable(f"cannot read its journal: {why}")

    def _look(self) -> dict[str, Any]:
        self._due = self._journal.read(_PORTION) or self._due
        state = self._journal.state
        if (lag := self._journal.lag) is not None:
            read, there = (size >> 20 for size in lag)
            sentence = f"its journal is long: {read} of {there} MiB are read"
            return {**self._told, **self._named, "state": "reading", "sentence": sentence}
        if self._due:
            self._due = False
            self._told = self._journal.heard.told() | {"step": state.step}
        word, sentence = state.told()
        return {**self._told, **self._named, "state": word, "sentence": SafeText([]).line(sentence, 300)}

    def _unreadable(self, why: str) -> dict[str, Any]:
        return {**self._told, **self._named, "state": "unreadable", "sentence": SafeText([]).line(why, 300)}


class _StorySoFar:
    """What a row tells of the events, in the room of one of them."""

    def __init__(self, hooked: bool) -> None:
        self._line, self._teller = TimeLine(), Teller(hooked)
        self._incidents, self._last = 0, ""

    @property
    def resumed(self) -> bool:
        """Some event tells of a resume."""
        return self._line.resumed

    def hear(self, event: dict[str, Any]) -> None:
        """Take one in."""
        for moment in self._line.take(sound(event)):
            self._teller.hear(moment)
            self._count(self._teller.story)

    def _count(self, story: Story) -> None:
        for entry in story.entries:
            if isinstance(entry, Incident):
                self._incidents, self._last = self._incidents + 1, entry.sentence
        story.entries.clear()

    def told(self) -> dict[str, Any]:
        """The cells of the row, as if the journal ended here."""
        teller, words = self._teller.copied(), SafeText([])
        for moment in self._line.held:
            teller.hear(moment)
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

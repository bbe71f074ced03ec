"""Knows which run dirs a dashboard shows, and keeps a watcher for each page that browsers look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.history.runs import runs_in
from ftlaunch.views.dashboard.index_rows import IndexRows
from ftlaunch.views.dashboard.live_run import LiveRun
from ftlaunch.views.dashboard.watcher import PageWatcher

KEPT = 8
"""number of pages without viewers whose last state is kept"""


class RunsShown:
    """The run dirs of a dashboard: one run dir, or all that come and go in a directory."""

    def __init__(self, place: Path, *, every: bool) -> None:
        """Begin without watchers. every: `place` is a directory of run dirs; otherwise `place` is the run dir."""
        self._place = place.resolve()
        self.every = every
        self._watched: dict[str, tuple[LiveRun, PageWatcher]] = {}
        self.index = PageWatcher(IndexRows(self.there).update)

    def there(self) -> Mapping[str, Path]:
        """Return the run dirs that exist now, by name. Raises OSError."""
        if not self.every:
            return {self._place.name: self._place}
        next(self._place.iterdir(), None)  # raises OSError for an unreadable directory, for which a glob would be empty
        return {path.name: path for path in runs_in(self._place)}

    def find(self, name: str) -> Path | None:
        """Return the run dir of a name, also a deleted run dir whose page is kept; None if there is none."""
        if name in self._watched:
            return self._watched[name][0].run_dir
        try:
            return self.there().get(name)
        except OSError:
            return None

    def watched(self, name: str, run_dir: Path) -> tuple[LiveRun, PageWatcher]:
        """Return the page of a run and its watcher, which all viewers share."""
        found = self._watched.pop(name, None)
        if found is None:
            run = LiveRun(run_dir, listed=self.every)
            found = run, PageWatcher(run.update)
        self._watched[name] = found  # the most recently used at the end
        unseen = [name for name, (_, watcher) in self._watched.items() if not watcher.watched]
        for old in unseen[:-KEPT]:
            del self._watched[old]
        return found

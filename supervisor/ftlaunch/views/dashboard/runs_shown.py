"""Which run dirs a dashboard shows, and the watcher of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.history.runs import runs_in
from ftlaunch.views.dashboard.index_rows import IndexRows
from ftlaunch.views.dashboard.live_run import LiveRun
from ftlaunch.views.dashboard.watcher import PageWatcher

KEPT = 8
"""pages that nobody looks at any more and whose last state is kept"""


class RunsShown:
    """One run dir, or all of a directory, whichever come and go."""

    def __init__(self, place: Path, *, every: bool) -> None:
        """every: `place` is a directory of run dirs, else it is the run dir."""
        self._place, self.every = place.resolve(), every
        self._watched: dict[str, tuple[LiveRun, PageWatcher]] = {}
        self.index = PageWatcher(IndexRows(self.there).look)

    def there(self) -> Mapping[str, Path]:
        """The run dirs that are there now, by name. Raises OSError."""
        if not self.every:
            return {self._place.name: self._place}
        next(self._place.iterdir(), None)  # a glob is empty where the directory cannot be read
        return {path.name: path for path in runs_in(self._place)}

    def find(self, name: str) -> Path | None:
        """The run dir of that name; also one that is gone, where somebody has looked at it before."""
        if name in self._watched:
            return self._watched[name][0].run_dir
        try:
            return self.there().get(name)
        except OSError:
            return None

    def watched(self, name: str, run_dir: Path) -> tuple[LiveRun, PageWatcher]:
        """What is known of a run, and its watcher: the same for all who look at it."""
        found = self._watched.pop(name, None)
        if found is None:
            run = LiveRun(run_dir, listed=self.every)
            found = run, PageWatcher(run.look)
        self._watched[name] = found  # the newest at the end
        unseen = [name for name, (_, watcher) in self._watched.items() if not watcher.watched]
        for old in unseen[:-KEPT]:
            del self._watched[old]
        return found

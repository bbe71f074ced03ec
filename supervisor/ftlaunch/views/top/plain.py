"""Shows the job as plain lines: each event as it comes, and a block on every change of state or half minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ftlaunch.views.top.job_watch import JobWatch
from ftlaunch.views.top.view import Picture, RankLayout, rank_rows, summary

_MAX_RANKS = 8  # ranks of a block, the worst first
_BLOCK_SECONDS = 30.0  # between blocks while the state does not change


def follow(watch: JobWatch, say: Callable[[str], None]) -> str:
    """Print lines about the job until it ends, and return how it ended.

    Args:
        watch: the watched job.
        say: prints a line.

    Raises:
        OSError: the journal cannot be read.
    """
    lines = PlainLines()
    while True:
        picture = watch.make_picture()
        for line in lines.of(picture, time.monotonic()):
            say(line)
        if picture.ended:
            return picture.ended
        time.sleep(watch.interval)


class PlainLines:
    """Chooses the lines to print for each picture."""

    def __init__(self) -> None:
        self._situation: object = None
        self._next = 0.0  # monotonic time at which a block is due

    def of(self, picture: Picture, now: float) -> Iterator[str]:
        """Yield the lines to print for a picture; the last picture of a job has only news.

        Args:
            picture: the picture.
            now: monotonic seconds.
        """
        for news in picture.news:
            yield f"{news.at}Z {'! ' if news.grave else ''}{news.sentence}"
        situation = _situation(picture)
        if picture.ended or (situation == self._situation and now < self._next):
            return
        self._situation = situation
        self._next = now + _BLOCK_SECONDS
        yield "\n".join([*summary(picture), *_worst(picture), ""])


def _situation(picture: Picture) -> object:
    """Return the facts whose change prints a block at once; steps, phases and memory change all the time."""
    status = picture.status
    if status is None:
        return None, bool(picture.silence)
    living = sum(bool(rank["alive"]) for rank in status["ranks"])
    return status["state"], status["attempt"], living, len(status["ranks"]), len(picture.nodes)


def _worst(picture: Picture) -> Iterator[str]:
    rows = rank_rows(picture)
    layout = RankLayout(rows[:_MAX_RANKS], several=bool(picture.nodes), width=None)
    if rows:
        yield layout.head()
    yield from (layout.line(row) for row in rows[:_MAX_RANKS])
    if len(rows) > _MAX_RANKS:
        yield f"and {len(rows) - _MAX_RANKS} more"

"""The job as plain lines: a block at most once an interval, where something has changed; news as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ftlaunch.cli.live.job_watch import JobWatch
from ftlaunch.cli.live.view import Picture, rank_head, rank_line, rank_rows, summary

_RANKS = 8  # the worst that are shown


def follow(watch: JobWatch, say: Callable[[str], None]) -> str:
    """Tell of the job until it ends; returns how it ended. Raises OSError where the journal cannot be read."""
    before: list[str] = []
    while True:
        picture = watch.look()
        for news in picture.news:
            say(f"{news.at} {'! ' if news.grave else ''}{news.sentence}")
        if picture.ended:
            return picture.ended
        told = summary(picture)
        if told != before:
            before = told
            say("\n".join([*told, *_worst(picture), ""]))
        time.sleep(watch.interval)


def _worst(picture: Picture) -> Iterator[str]:
    rows, several = rank_rows(picture), bool(picture.nodes)
    if rows:
        yield rank_head(several=several)
    yield from (rank_line(row, several=several) for row in rows[:_RANKS])
    if len(rows) > _RANKS:
        yield f"and {len(rows) - _RANKS} more"

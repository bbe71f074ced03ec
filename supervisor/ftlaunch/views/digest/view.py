"""Formats a digest as the text and the JSON of `ftctl report DIR`. Pure, but for this machine's time zone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ftlaunch.common.formatting import counted, duration, table
from ftlaunch.history.report_view import LEDGER
from ftlaunch.history.story import DOWN, LOST, UNKNOWN, USEFUL
from ftlaunch.views.digest.directory import Digest
from ftlaunch.views.digest.flaky import FlakyNode
from ftlaunch.views.digest.job_digest import JobDigest

_MOST_ROWS = 30  # rows of a table; JSON has all


def data(digest: Digest) -> dict[str, Any]:
    """Return the digest for `ftctl report DIR --json`: durations in seconds, times in seconds since the epoch."""
    spent = digest.rank_seconds
    hosts = digest.hosts
    return {
        "directory": digest.directory,
        "since": digest.since or None,
        "jobs": [_job(job) for job in digest.jobs],
        "idle_jobs": digest.idle,
        "not_read": [{"run": name, "why": why} for name, why in digest.unread.items()],
        "rank_seconds": spent,
        "effective": _effective(spent),
        "incidents": sum(digest.causes.values()),
        "causes": dict(digest.causes.most_common()),
        "nodes": {
            name: {"seconds": host.seconds, "failures": host.failures, "causes": dict(host.causes.most_common())}
            for name, host in sorted(hosts.items()) if name
        },
        "incidents_without_node": hosts[""].causes.total() if "" in hosts else 0,
        "flaky_nodes": [asdict(node) for node in digest.flaky],
    }  # fmt: skip


def _job(job: JobDigest) -> dict[str, Any]:
    return {
        "run": job.name, "job_id": job.job_id, "state": job.state, "ranks": job.ranks, "begin": job.begin,
        "end": job.end, "attempts": job.attempts, "incidents": job.incidents, "causes": dict(job.causes),
        "steps_lost": job.steps_lost, "seconds": job.seconds, "effective": _effective(job.seconds),
        "torn_lines": job.torn,
    }  # fmt: skip


def _effective(seconds: dict[str, float]) -> float | None:
    """Return the share of the time with a supervisor that was spent on steps that were never repeated.

    Returns:
        The share, between 0 and 1; None if ranks do not report their steps.
    """
    up = sum(seconds.values()) - seconds[DOWN]
    return None if up <= 0 or seconds[UNKNOWN] > 0 else seconds[USEFUL] / up


def lines(digest: Digest) -> Iterator[str]:
    """Yield the lines that `ftctl report DIR` prints."""
    yield from _head(digest)
    if not digest.jobs:
        yield from _unread(digest)
        return
    yield from _time(digest)
    yield from _incidents(digest)
    yield from _nodes(digest)
    yield from _jobs(digest)
    yield from _unread(digest)


def _head(digest: Digest) -> Iterator[str]:
    states = Counter(job.state for job in digest.jobs)
    counts = ", ".join(f"{states[state]} {state}" for state in ("done", "stopped", "failed", "open") if states[state])
    idle = f"; {counted(digest.idle, 'job')} had nothing since then" if digest.idle else ""
    yield f"{counted(len(digest.jobs), 'job')} in {digest.directory}{': ' if counts else ''}{counts}{idle}"
    if digest.jobs:
        begin = digest.since or min(job.begin for job in digest.jobs)
        yield f"{_when(begin)} to {_when(max(job.end for job in digest.jobs))} ({_zone(begin)})"
    if states["open"]:
        yield "open: the job runs, or its supervisor was killed; it is counted to its last event"


def _time(digest: Digest) -> Iterator[str]:
    spent = digest.rank_seconds
    up = sum(spent.values()) - spent[DOWN]
    yield ""
    yield f"where the time of the ranks went: {duration(up)}, times of jobs with a supervisor times their ranks"
    for name, meaning in LEDGER.items():
        if name != DOWN and (spent[name] > 0 or name in (USEFUL, LOST)):
            share = spent[name] / up if up else 0.0
            yield f"  {name:<11}{duration(spent[name]):>14} {share:>8.2%}   {meaning}"
    effective = _effective(spent)
    why = " (ranks of some jobs do not tell their steps)" if spent[UNKNOWN] > 0 else ""
    yield f"effective training time: {'not known' if effective is None else f'{effective:.2%}'}{why}"


def _incidents(digest: Digest) -> Iterator[str]:
    causes = digest.causes
    lost = sum(job.steps_lost for job in digest.jobs)
    yield ""
    if not causes:
        yield "no incidents"
        return
    hit = sum(1 for job in digest.jobs if job.causes)
    yield f"{counted(causes.total(), 'incident')} in {counted(hit, 'job')}; {counted(lost, 'step')} made again"
    rows = [("cause", "incidents", "jobs")]
    for cause, number in causes.most_common():
        rows.append((cause, str(number), str(sum(1 for job in digest.jobs if job.causes[cause]))))
    yield from _indented(rows, left=(0,))


def _nodes(digest: Digest) -> Iterator[str]:
    hosts = {name: host for name, host in digest.hosts.items() if name}
    whole = sum(host.seconds for host in hosts.values())
    ranked = sorted(hosts.items(), key=lambda item: (-item[1].failures, -item[1].causes.total(), item[0]))
    hit = [(name, host) for name, host in ranked if host.causes]
    if hit:
        yield ""
        yield f"{len(hit)} of {counted(len(hosts), 'node')} had incidents"
        rows = [("node", "incidents", "maybe its own", "time", "share of time", "causes")]
        for name, host in hit[:_MOST_ROWS]:
            causes = ", ".join(f"{cause} {number}" for cause, number in host.causes.most_common())
            share = f"{host.seconds / whole:.1%}" if whole else "-"
            rows.append((name, str(host.causes.total()), str(host.failures), duration(host.seconds), share, causes))
        yield from _indented(rows, left=(0, 5))
    if (unknown := digest.hosts.get("")) is not None and unknown.causes:
        yield f"  of {counted(unknown.causes.total(), 'incident')} the journals do not say the node"
    yield from map(_flaky, digest.flaky)
    if hit and len(hosts) > 1 and not digest.flaky:
        yield "no node has significantly more failures than its share"


def _flaky(node: FlakyNode) -> str:
    chance = f"{node.chance:.1%}" if node.chance >= 0.001 else "less than 0.1%"
    return (
        f"FLAKY: {node.host}: {node.failures} of {node.of} failures that may be a machine's own, in {node.share:.1%} of"
        f" the time; were all nodes alike, the chance of such a node would be {chance}"
    )


def _jobs(digest: Digest) -> Iterator[str]:
    worst = sorted(digest.jobs, key=lambda job: (-job.incidents, job.name))
    yield ""
    rows = [("job", "state", "ranks", "incidents", "steps lost", "up", "effective")]
    for job in worst[:_MOST_ROWS]:
        effective = _effective(job.seconds)
        up = sum(job.seconds.values()) - job.seconds[DOWN]
        rows.append(
            (
                job.name,
                job.state,
                str(job.ranks),
                str(job.incidents),
                str(job.steps_lost),
                duration(up),
                "-" if effective is None else f"{effective:.2%}",
            )
        )
    yield from table(rows, left=(0, 1))
    if len(worst) > _MOST_ROWS:
        yield f"and {len(worst) - _MOST_ROWS} more; --json has all"
    torn = [job for job in digest.jobs if job.torn]
    if torn:
        names = ", ".join(job.name for job in torn[:_MOST_ROWS])
        yield f"{counted(sum(job.torn for job in torn), 'torn line')} passed over in the journals of {names}"


def _unread(digest: Digest) -> Iterator[str]:
    if digest.unread:
        yield ""
        yield f"not in these numbers, {counted(len(digest.unread), 'run dir')} that could not be read:"
        yield from (f"  {name}: {why}" for name, why in digest.unread.items())


def _indented(rows: Sequence[tuple[str, ...]], left: tuple[int, ...]) -> Iterator[str]:
    yield from (f"  {row}" for row in table(rows, left=left))


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def _zone(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Z")

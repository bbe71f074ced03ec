"""Formats a picture of a job for `ftctl top`: a few sentences, and the ranks, the worst first. Pure.

The supervisor's answers are mappings that come from another process. Call `lack_of` for them first: all other functions
take the fields for granted, and raise KeyError where one is missing. In the answers, ages and step times are seconds;
`beat_age` is None before the first beat. A step is -1 where it is unknown. A node's `place` is its number among the
nodes with ranks, None for a node without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.common.formatting import duration, printable, size
from ftlaunch.views.top.news import News

_QUIET_SECONDS = 2.0  # a shorter silence is never remarkable
_QUIET_STEPS = 3.0  # nor is a silence of fewer steps
_MIN_LAG = 2  # steps; ranks that train together are often one step apart


@dataclass(frozen=True)
class JobPast:
    """The job's past, as the journal adds up."""

    seconds: float
    """seconds since this run of the supervisor began"""
    incidents: int
    """number of incidents of all runs"""
    goodput: float | None
    """share, between 0 and 1, of all runs' wall time that made steps which were never repeated; None if unknown"""


@dataclass(frozen=True)
class Picture:
    """All that is known about the job at one moment."""

    job_id: str
    status: Mapping[str, Any] | None = None
    """the supervisor's answer, for which `lack_of` has found nothing missing; None if there is none"""
    silence: str = ""
    """why there is no answer"""
    ended: str = ""
    """how the job has ended; empty if it has not"""
    nodes: Sequence[Mapping[str, Any]] = ()
    """the nodes of a job of several nodes; else empty"""
    here: Mapping[int, int] = field(default_factory=dict)
    """pid by rank of the living ranks on this machine"""
    memory: Mapping[int, int] = field(default_factory=dict)
    """resident bytes by rank of the ranks on this machine"""
    free: int = 0
    """bytes of available memory of this machine"""
    pace: float | None = None
    """steps per second, above 0; None if unknown"""
    waited_for: frozenset[int] = frozenset()
    """ranks that the others wait for at every step"""
    past: JobPast | None = None
    """the job's past; None if the journal does not say when the job began"""
    news: Sequence[News] = ()
    """news of the journal since the last picture"""


@dataclass(frozen=True)
class RankRow:
    """The line of one rank, as texts."""

    rank: int
    node: int | None
    step: str
    phase: str
    beat: str
    step_time: str
    memory: str
    pid: int
    note: str
    """what is remarkable about the rank; empty if nothing"""


# title, whether the column is flush left, and the cell of a row
_COLUMNS: Sequence[tuple[str, bool, Callable[[RankRow], str]]] = (
    ("rank", False, lambda row: str(row.rank)),
    ("node", False, lambda row: "-" if row.node is None else str(row.node)),
    ("step", False, lambda row: row.step),
    ("phase", True, lambda row: row.phase),
    ("last beat", False, lambda row: row.beat),
    ("step time", False, lambda row: row.step_time),
    ("memory", False, lambda row: row.memory),
    ("pid", False, lambda row: str(row.pid)),
)
_DROPPED_FIRST = ("pid", "memory", "step time", "phase")  # columns to drop, in this order, if notes have no room
# Least widths, so that columns rarely move.
_MIN_WIDTHS = {"rank": 5, "step": 7, "phase": 10, "last beat": 9, "step time": 9, "memory": 9, "pid": 7}


class RankLayout:
    """The columns of the lines of ranks and their widths; the note takes the rest of a line."""

    def __init__(self, rows: Sequence[RankRow], *, several: bool, width: int | None) -> None:
        """Choose the columns.

        Args:
            rows: all rows that will be shown.
            several: whether the job has several nodes, so that the nodes have a column.
            width: most characters of a line; None for no limit.
        """
        self._columns = [
            (title, max(len(title), _MIN_WIDTHS.get(title, 0), *(len(cell(row)) for row in rows)), left, cell)
            for title, left, cell in _COLUMNS
            if rows and (several or title != "node")
        ]
        note = max((len(row.note) for row in rows), default=0)
        for title in _DROPPED_FIRST if width is not None else ():
            if sum(wide + 1 for _, wide, _, _ in self._columns) + note > (width or 0):
                self._columns = [column for column in self._columns if column[0] != title]

    def head(self) -> str:
        """Return the line of titles."""
        return _joined([(title, width, left) for title, width, left, _ in self._columns], "note")

    def line(self, row: RankRow) -> str:
        """Return the line of a rank."""
        return printable(_joined([(cell(row), width, left) for _, width, left, cell in self._columns], row.note))


_STATUS = ("state", "attempt", "restarts_left", "max_restarts", "in_memory", "committed", "ranks")
_RANK = ("rank", "pid", "alive", "phase", "step", "beat_age", "step_seconds")
_NODE = ("place", "host", "address", "ranks", "isolated", "ready", "here_for", "failures", "silent_for")


def lack_of(status: Mapping[str, Any], nodes: object) -> str:
    """Return the name of the first field that is missing in the supervisor's answers; empty if none is.

    Args:
        status: the answer about the job.
        nodes: the answer about its nodes; a list, also where the job has one node.
    """
    entries: list[tuple[Mapping[str, Any], tuple[str, ...]]] = [(status, _STATUS)]
    entries += [(rank, _RANK) for rank in _entries(status.get("ranks"))]
    if not isinstance(nodes, list):
        return "nodes"
    entries += [(node, _NODE) for node in _entries(nodes)]
    return next((name for entry, names in entries for name in names if name not in entry), "")


def _entries(found: object) -> list[Mapping[str, Any]]:
    return [entry if isinstance(entry, Mapping) else {} for entry in found] if isinstance(found, list) else []


def _joined(columns: Sequence[tuple[str, int, bool]], note: str) -> str:
    cells = [text.ljust(width) if left else text.rjust(width) for text, width, left in columns]
    return " ".join([*cells, note]).rstrip()


def rank_rows(picture: Picture) -> list[RankRow]:
    """Return the rows of all ranks, the worst first: ended, silent for long, behind, waited for; then by number.

    Raises:
        KeyError: the picture's status or a node lacks a field that `lack_of` names.
    """
    if picture.status is None:
        return []
    ranks = picture.status["ranks"]
    front = max((_done(rank) for rank in ranks), default=-1)
    places = {rank: node["place"] for node in picture.nodes for rank in node["ranks"]}
    order = {rank["rank"]: _badness(rank, front, picture.waited_for) for rank in ranks}
    return [
        RankRow(
            rank=rank["rank"],
            node=places.get(rank["rank"]),
            step=_step_text(rank),
            phase=rank["phase"] if rank["beat_age"] is not None else "-",
            beat="-" if rank["beat_age"] is None else duration(rank["beat_age"]),
            step_time=duration(rank["step_seconds"]) if rank["step_seconds"] else "-",
            memory=size(picture.memory[rank["rank"]]) if rank["rank"] in picture.memory else "-",
            pid=rank["pid"],
            note=_note(rank, front, picture.waited_for),
        )
        for rank in sorted(ranks, key=lambda rank: order[rank["rank"]])
    ]


def _done(rank: Mapping[str, Any]) -> int:
    """Return the newest completed step of a rank; without attach(), the number of optimizer steps seen."""
    return int(rank["step"] if rank["step"] >= 0 else rank.get("seen", 0) or -1)


def least_step(ranks: Sequence[Mapping[str, Any]]) -> int:
    """Return the newest step that all ranks have completed; -1 if a rank's step is unknown."""
    return min(map(_done, ranks), default=-1)


def _step_text(rank: Mapping[str, Any]) -> str:
    done = _done(rank)
    return "-" if done < 0 else str(done) if rank["step"] >= 0 else f"{done} seen"


def _quiet(rank: Mapping[str, Any]) -> float:
    """Return the seconds without a beat if the silence is remarkable; else 0."""
    age = rank["beat_age"] or 0.0
    return age if age > max(_QUIET_SECONDS, _QUIET_STEPS * (rank["step_seconds"] or 0.0)) else 0.0


def _behind(rank: Mapping[str, Any], front: int) -> int:
    """Return how many steps a rank is behind if that is remarkable; else 0. front: the newest step of any rank."""
    lag = front - _done(rank)
    return lag if rank["beat_age"] is not None and lag >= _MIN_LAG else 0


def _badness(rank: Mapping[str, Any], front: int, waited_for: frozenset[int]) -> tuple[Any, ...]:
    """Return a sort key; the least key is the worst rank.

    Ended ranks come first, then silent ones. Among these the one with the largest lag comes first, and then the one
    that has been silent for longest. front: the newest step of any rank.
    """
    quiet = _quiet(rank)
    number = rank["rank"]
    return rank["alive"], not quiet, -_behind(rank, front), -quiet, number not in waited_for, number


def _note(rank: Mapping[str, Any], front: int, waited_for: frozenset[int]) -> str:
    if not rank["alive"]:
        return "ended"
    behind = _behind(rank, front)
    remarks = (
        "no beat" if _quiet(rank) else "",
        f"{behind} behind" if behind else "",
        "waited for" if rank["rank"] in waited_for else "",
    )
    return ", ".join(filter(None, remarks))


# --- sentences ------------------------------------------------------------------------------------------------


def summary(picture: Picture) -> list[str]:
    """Return the lines about the whole job: up to four, and one more for a job of several nodes.

    Raises:
        KeyError: the picture's status or a node lacks a field that `lack_of` names.
    """
    status = picture.status
    if status is None:
        return [printable(f"job {picture.job_id}: {picture.ended or picture.silence}")]
    lines = [
        f"job {picture.job_id}: {status['state']}, attempt {status['attempt']}, "
        f"{status['restarts_left']} of {status['max_restarts']} restarts left",
        _steps(picture, status),
        _ranks(picture, status["ranks"]),
    ]
    if picture.past is not None:
        lines.append(_past(picture.past))
    if picture.nodes:
        lines.append(_nodes(picture.nodes))
    return [printable(line) for line in lines]


def _past(past: JobPast) -> str:
    goodput = "" if past.goodput is None else f"; goodput {past.goodput:.1%}"
    return (
        f"running for {duration(past.seconds)}; {past.incidents or 'no'} incident{'s' * (past.incidents != 1)}{goodput}"
    )


def _steps(picture: Picture, status: Mapping[str, Any]) -> str:
    least = least_step(status["ranks"])
    pace = "" if picture.pace is None else f", {_rate(picture.pace)}"
    kept = f"in memory: {_saved(status['in_memory'])}; on storage: {_saved(status['committed'])}"
    return f"step {_saved(least)}{pace}; {kept}"


def _rate(pace: float) -> str:
    """Format a pace: `3.21 steps/s`, or `4.2 s a step` for less than one step per second.

    Args:
        pace: steps per second, above 0.
    """
    return f"{pace:.3g} steps/s" if pace >= 1 else f"{duration(1 / pace)} a step"


def _saved(step: int) -> str:
    return str(step) if step >= 0 else "-"


def _ranks(picture: Picture, ranks: Sequence[Mapping[str, Any]]) -> str:
    phases = Counter(
        "ended" if not rank["alive"] else rank["phase"] if rank["beat_age"] is not None else "starting"
        for rank in ranks
    )
    counted = ", ".join(f"{count} {phase}" for phase, count in phases.most_common())
    line = "no ranks run" if not ranks else f"{len(ranks)} rank{'s' if len(ranks) > 1 else ''}: {counted}"
    if picture.memory:
        line += f"; memory {size(sum(picture.memory.values()))}, {size(picture.free)} free here"
    return line


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> str:
    placed = [node for node in nodes if node["place"] is not None]
    others = len(nodes) - len(placed)
    line = f"{len(placed)} nodes with ranks" + (f", {others} without" if others else "")
    silent = max(nodes, key=lambda node: float(node["silent_for"]))
    place = "a node without ranks" if silent["place"] is None else f"node {silent['place']}"
    return f"{line}; longest unheard: {place} ({silent['host']}), {duration(silent['silent_for'])}"

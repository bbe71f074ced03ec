"""A job at a moment as `ftctl top` shows it: a few sentences, and its ranks, the worst first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.common.formatting import duration, printable, size
from ftlaunch.views.top.news import News

_QUIET = 2.0  # seconds without a beat that are never remarkable
_QUIET_STEPS = 3.0  # steps without a beat that are not
_BEHIND = 2  # steps: ranks that train together are a step apart now and then


@dataclass(frozen=True)
class JobPast:
    """What the journal adds up to."""

    seconds: float
    """since this run of the supervisor began"""
    incidents: int
    """of all runs"""
    goodput: float | None
    """share of the wall time of all runs that made steps which count; None: not known yet"""


@dataclass(frozen=True)
class Picture:
    """What is known of the job at a moment."""

    job_id: str
    status: Mapping[str, Any] | None = None
    """the supervisor's answer; None while it gives none"""
    silence: str = ""
    """why it gives none"""
    ended: str = ""
    """how the job has ended; empty: it has not"""
    nodes: Sequence[Mapping[str, Any]] = ()
    """of a job of several nodes"""
    here: Mapping[int, int] = field(default_factory=dict)
    """rank -> pid, of the living ranks on this machine"""
    memory: Mapping[int, int] = field(default_factory=dict)
    """resident bytes of the processes of ranks, of those on this machine"""
    free: int = 0
    """bytes of memory that this machine has left"""
    pace: float | None = None
    """steps a second; None where that is not known"""
    waited_for: frozenset[int] = frozenset()
    """ranks that the others wait for at every step"""
    past: JobPast | None = None
    """None where the journal does not say when the job began"""
    news: Sequence[News] = ()
    """what the journal has told since the last picture"""


@dataclass(frozen=True)
class RankRow:
    """A rank, as one line shows it."""

    rank: int
    node: int | None
    step: str
    phase: str
    beat: str
    step_time: str
    memory: str
    pid: int
    note: str
    """what is remarkable about it; empty: nothing"""


# title, whether it is flush left, and the cell of a row
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
_GIVE_WAY = ("pid", "memory", "step time", "phase")  # in this order, where the longest note has no room
_LEAST = {"rank": 5, "step": 7, "phase": 10, "last beat": 9, "step time": 9, "memory": 9, "pid": 7}  # so that few jump


class RankLayout:
    """Which columns the lines of ranks have, and how wide they are; the note takes what is left of a line."""

    def __init__(self, rows: Sequence[RankRow], *, several: bool, width: int | None) -> None:
        """several: the job has several nodes. width: characters that a line may have; None: any number."""
        self._columns = [
            (title, max(len(title), _LEAST.get(title, 0), *(len(cell(row)) for row in rows)), left, cell)
            for title, left, cell in _COLUMNS
            if rows and (several or title != "node")
        ]
        note = max((len(row.note) for row in rows), default=0)
        for title in _GIVE_WAY if width is not None else ():
            if sum(wide + 1 for _, wide, _, _ in self._columns) + note > (width or 0):
                self._columns = [column for column in self._columns if column[0] != title]

    def head(self) -> str:
        """The titles above the lines; empty where there are no ranks."""
        return _joined([(title, width, left) for title, width, left, _ in self._columns], "note")

    def line(self, row: RankRow) -> str:
        """A rank's line."""
        return printable(_joined([(cell(row), width, left) for _, width, left, cell in self._columns], row.note))


_STATUS = ("state", "attempt", "restarts_left", "max_restarts", "in_memory", "committed", "ranks")
_RANK = ("rank", "pid", "alive", "phase", "step", "beat_age", "step_seconds")
_NODE = ("place", "host", "address", "ranks", "isolated", "ready", "here_for", "failures", "silent_for")


def lack_of(status: Mapping[str, Any], nodes: object) -> str:
    """The first thing that answers lack of what is shown here; empty: nothing."""
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
    """All ranks, the worst first: ended, silent for long, behind, waited for; then by number."""
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
    """Steps completed; of a rank that has not attached, those of its optimizers that were seen."""
    return int(rank["step"] if rank["step"] >= 0 else rank.get("seen", 0) or -1)


def least_step(ranks: Sequence[Mapping[str, Any]]) -> int:
    """The newest step that all ranks have completed; -1 while one does not know."""
    return min(map(_done, ranks), default=-1)


def _step_text(rank: Mapping[str, Any]) -> str:
    done = _done(rank)
    return "-" if done < 0 else str(done) if rank["step"] >= 0 else f"{done} seen"


def _quiet(rank: Mapping[str, Any]) -> float:
    """Seconds without a beat, where that is remarkable; else 0."""
    age = rank["beat_age"] or 0.0
    return age if age > max(_QUIET, _QUIET_STEPS * (rank["step_seconds"] or 0.0)) else 0.0


def _behind(rank: Mapping[str, Any], front: int) -> int:
    """Steps behind the first rank, where that is remarkable; else 0."""
    lag = front - _done(rank)
    return lag if rank["beat_age"] is not None and lag >= _BEHIND else 0


def _badness(rank: Mapping[str, Any], front: int, waited_for: frozenset[int]) -> tuple[Any, ...]:
    quiet, number = _quiet(rank), rank["rank"]
    return rank["alive"], not quiet, -_behind(rank, front), -quiet, number not in waited_for, number


def _note(rank: Mapping[str, Any], front: int, waited_for: frozenset[int]) -> str:
    if not rank["alive"]:
        return "ended"
    behind = _behind(rank, front)
    told = ("no beat" if _quiet(rank) else "", f"{behind} behind" if behind else "")
    return ", ".join(filter(None, (*told, "waited for" if rank["rank"] in waited_for else "")))


# --- sentences ------------------------------------------------------------------------------------------------


def summary(picture: Picture) -> list[str]:
    """What is said of the whole job; four lines, and one more for a job of several nodes."""
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
    """`3.21 steps/s`, or `4.2 s a step` where there is less than one a second."""
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

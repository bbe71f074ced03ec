"""What people are told of an event: a title and a few sentences. Pure.

They answer: what has happened, since when, what was done about it, what it has cost, and where more stands.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from ftlaunch.common.formatting import duration, printable

Line = Mapping[str, Any]
"""an event as the journal has it"""
_LONGEST = 600  # characters of one sentence: an error message of a rank may be a page long


@dataclass(frozen=True)
class Telling:
    """What a chat, a mail or a pager shows."""

    title: str
    text: str


@dataclass(frozen=True)
class SoFar:
    """What this run of the supervisor has told of the job before the event."""

    began: float | None = None
    """monotonic seconds"""
    incident: Line | None = None
    """the first since the job last made progress; None: there is none"""
    incidents: int = 0
    """since then, that one included"""
    restarts: int = 0
    """after incidents, of all of this run"""
    lost: int | None = 0
    """steps that were made again because of them; None: not known"""
    source: str | None = None
    """where the last resume has taken its state from"""
    resumed: int | None = None
    """the step of the last resume"""
    down: float = 0.0
    """seconds from failures to the first new steps, of all incidents that are over"""
    lost_in_all: int = 0
    """steps, of all incidents that are over"""
    saved: int | None = None
    """the newest step on storage; None: none was saved in this run"""


def heard(so_far: SoFar, line: Line) -> SoFar:
    """What is known once `line` was journalled, too."""
    event = line["event"]
    if event == "job_started":
        return replace(so_far, began=line.get("mono"))
    if event == "incident":
        first = line if so_far.incident is None else so_far.incident
        restarts = so_far.restarts + (line.get("verdict") == "restart")
        return replace(so_far, incident=first, incidents=so_far.incidents + 1, restarts=restarts)
    if event == "resumed" and so_far.incident is not None:
        lost = None if so_far.lost is None or line.get("steps_lost") is None else so_far.lost + line["steps_lost"]
        return replace(so_far, lost=lost, source=line.get("source"), resumed=line.get("step"))
    if event == "recovered":
        down, lost_in_all = so_far.down + line.get("seconds", 0.0), so_far.lost_in_all + (so_far.lost or 0)
        return replace(so_far, incident=None, incidents=0, lost=0, down=down, lost_in_all=lost_in_all)
    if event == "checkpoint_committed":
        return replace(so_far, saved=line.get("step"))
    return so_far


def telling(kind: str, job: Mapping[str, str], line: Line, so_far: SoFar, link: str = "", page: str = "") -> Telling:
    """What to tell people of `line`, an event of this kind (see notification.KIND_OF).

    job: job_id, run_dir and host of the supervisor. so_far: before the event. link: a template, see NotifyTarget. page:
    where the report for a browser is written at the end, which is told where there is no link; empty: nowhere.
    """
    title, sentences = _TOLD[kind](line, so_far)
    report = f"The report for a browser is written to {page}." if page and not link and kind in _ENDS else ""
    told = [*filter(None, [*sentences, report]), _more(job, link)]
    return Telling(printable(f"{job['job_id']}: {title}"), "\n".join(printable(_clip(one)) for one in told))


_Told = tuple[str, list[str]]


def _incident(line: Line, so_far: SoFar) -> _Told:
    restarts = line.get("verdict") == "restart"
    kind, rank, host = line.get("kind") or "failure", line.get("rank"), line.get("host")
    where = f" on {host}" if host else ""
    begun = so_far.incident is not None
    done = _restart(line.get("delay") or 0.0) if restarts else "The job is not restarted any more."
    return (
        f"rank {rank}{where} failed ({kind}), {'restarting' if restarts else 'not restarting'}",
        [
            _sentence(line.get("sentence") or line.get("cause") or "a failure"),
            f"The rank ran on {host}." if host else "",
            _since(line),
            "The job had not made a new step since the failure before." if begun else "",
            done,
            "What this has cost is known once the first new step is made." if restarts else "",
            f"The autopsy is in {line['autopsy']}." if line.get("autopsy") else "",
        ],
    )


def _since(line: Line) -> str:
    """When the job last made progress."""
    ago, step = line.get("since_progress"), line.get("step")
    if ago is None or step is None or step <= 0:
        return ""
    return f"Step {step} was the last that all ranks had made, {duration(ago)} before the failure was seen."


def _restart(delay: float) -> str:
    when = "now" if delay == 0 else f"in {duration(delay)}"
    return f"All ranks start again {when}, from the newest step that all of them have."


def _recovered(line: Line, so_far: SoFar) -> _Told:
    step, took = line.get("step"), duration(line.get("seconds", 0.0))
    lost = "" if so_far.lost is None else f", {_count(so_far.lost, 'step')} lost"
    before = so_far.incident
    what = "" if before is None else _ended(before.get("cause") or before.get("sentence") or "")
    again = f"{so_far.incidents} failures had followed each other; this was the first: " if so_far.incidents > 1 else ""
    source = f"from {so_far.source}" if so_far.source else "from nothing that was saved"
    return (
        f"back at step {step} after {took}{lost}",
        [
            f"The job trains again: step {step} is made, {took} after the failure was seen.",
            f"{again}{what}" if again else what and f"The failure was: {what}",
            "" if so_far.resumed is None else f"The ranks resumed at step {so_far.resumed} {source}.",
            "How many steps were lost is not known." if so_far.lost is None else _made_again(so_far.lost),
        ],
    )


def _made_again(lost: int) -> str:
    if lost == 0:
        return "No step was lost."
    return f"{_count(lost, 'step')} {'was' if lost == 1 else 'were'} lost and had to be made again."


def _done(line: Line, so_far: SoFar) -> _Told:
    restarts = line.get("restarts", 0)
    return (
        f"done; {_count(restarts, 'restart')} used",
        [f"The job is done{_ran(line, so_far)}.", _cost(restarts, so_far), _saved(so_far)],
    )


def _give_up(line: Line, so_far: SoFar) -> _Told:
    reason = line.get("sentence") or line.get("cause") or "the reason stands in the journal"
    saved = so_far.saved
    state = "This run has saved no step to storage." if saved is None else _saved(so_far)
    return (
        "given up",
        [
            f"The job is given up{_ran(line, so_far)}.",
            _sentence(reason),
            _cost(so_far.restarts, _with_open(so_far, line)),
            state,
            "ftlaunch does not restart it: when the cause is mended, run the same `ftlaunch` command again.",
        ],
    )


def _stopped(line: Line, so_far: SoFar) -> _Told:
    step = line.get("step")
    goes_on = step is not None and step >= 0
    return (
        f"stopped; it goes on from step {step}" if goes_on else "stopped; nothing was saved",
        [
            f"The job was asked to stop, and has stopped{_ran(line, so_far)}.",
            _cost(so_far.restarts, _with_open(so_far, line)),
            f"The same command goes on from step {step}." if goes_on else "The same command begins anew.",
        ],
    )


def _with_open(so_far: SoFar, line: Line) -> SoFar:
    """With the cost of an incident from which the job has not recovered when it ends."""
    seen, now = (so_far.incident or {}).get("mono"), line.get("mono")
    if seen is None or now is None:
        return so_far
    down = so_far.down + max(now - seen, 0.0)
    return replace(so_far, down=down, lost_in_all=so_far.lost_in_all + (so_far.lost or 0))


def _ran(line: Line, so_far: SoFar) -> str:
    now = line.get("mono")
    return "" if so_far.began is None or now is None else f"; this run has taken {duration(max(now - so_far.began, 0))}"


def _cost(restarts: int, so_far: SoFar) -> str:
    if not restarts:
        return "It was not restarted."
    lost = f", and {_count(so_far.lost_in_all, 'step')} had to be made again" if so_far.lost_in_all else ""
    took = f"; failures have cost {duration(so_far.down)} without new steps{lost}" if so_far.down else ""
    return f"It was restarted {_times(restarts)}{took}."


def _saved(so_far: SoFar) -> str:
    return "" if so_far.saved is None else f"The newest step on storage is {so_far.saved}."


def _slow(line: Line, _: SoFar) -> _Told:
    return (
        f"rank {line.get('rank')} is slow",
        [_sentence(line.get("sentence") or ""), "The job goes on. With `on_slow: restart` an incident follows."],
    )


def _differs(line: Line, _: SoFar) -> _Told:
    goes_on = "The job goes on. With `on_difference: stop` it ends there."
    return (
        f"the resumed run differs from step {line.get('step')} on",
        [
            _sentence(line.get("sentence") or "A step that was made again is another one than before the resume."),
            goes_on if line.get("act") != "stop" else "The job is ended (`on_difference: stop`).",
        ],
    )


def _hang_suspected(line: Line, _: SoFar) -> _Told:
    rank, step = line.get("rank"), line.get("step")
    age, limit = duration(line.get("age", 0.0)), duration(line.get("limit", 0.0))
    last = f" Its last step is {step}." if step is not None and step >= 0 else ""
    return (
        f"rank {rank} has made no progress for {age}",
        [
            f"Rank {rank} has made no progress for {age}; at {limit} it counts as hung.{last}",
            "Nothing was done yet. At the limit the stacks of all ranks are collected, and that counts as a failure.",
        ],
    )


_ENDS = frozenset({"done", "give_up", "stopped"})
_TOLD = {
    "incident": _incident,
    "recovered": _recovered,
    "done": _done,
    "give_up": _give_up,
    "stopped": _stopped,
    "slow": _slow,
    "differs": _differs,
    "hang_suspected": _hang_suspected,
}


def _more(job: Mapping[str, str], link: str) -> str:
    command = f"ftctl report {shlex.quote(job['run_dir'])}  (on {job['host']})"
    if not link:
        return f"More: {command}"
    filled = link.replace("{job_id}", quote(job["job_id"], safe="")).replace("{run_dir}", quote(job["run_dir"]))
    return f"More: {filled} or {command}"


def _sentence(text: str) -> str:
    text = text.strip()
    return _ended(f"{text[:1].upper()}{text[1:]}")


def _ended(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _clip(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")

"""Words the notices for people: a title and a few sentences for each kind of event. Pure.

The sentences say what has happened, since when, what was done, what the event has cost, and where to read more.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from ftlaunch.common.formatting import counted, duration, printable, times

Line = Mapping[str, Any]
"""an event as the journal has it"""
_LONGEST = 600  # characters of one sentence; an error message of a rank may be a page long


@dataclass(frozen=True)
class Telling:
    """The text that a chat, a mail or a pager shows."""

    title: str
    text: str


@dataclass(frozen=True)
class SoFar:
    """What the journal of this run of the supervisor says of the job before an event."""

    began: float | None = None
    """time at which the job started, in monotonic seconds"""
    incident: Line | None = None
    """first incident since the job last made progress; None if there is none"""
    incidents: int = 0
    """number of incidents since the job last made progress"""
    restarts: int = 0
    """number of restarts after incidents in this run"""
    lost: int | None = 0
    """steps repeated because of the incidents since the last progress; None if unknown"""
    source: str | None = None
    """source of the state at the last resume"""
    resumed: int | None = None
    """step of the last resume"""
    down: float = 0.0
    """seconds from failures to the first new steps, summed over the incidents that are over"""
    lost_in_all: int = 0
    """repeated steps, summed over the incidents that are over"""
    saved: int | None = None
    """newest step on storage; None if no step was saved in this run"""


def apply_event(so_far: SoFar, line: Line) -> SoFar:
    """Return `so_far` updated by an event that was journalled."""
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
        down = so_far.down + line.get("seconds", 0.0)
        lost_in_all = so_far.lost_in_all + (so_far.lost or 0)
        return replace(so_far, incident=None, incidents=0, lost=0, down=down, lost_in_all=lost_in_all)
    if event == "checkpoint_committed":
        return replace(so_far, saved=line.get("step"))
    return so_far


def telling(kind: str, job: Mapping[str, str], line: Line, so_far: SoFar, link: str = "", page: str = "") -> Telling:
    """Word the notice of an event.

    Args:
        kind: kind of the event, a value of `notification.KIND_OF`.
        job: job_id, run_dir and host of the supervisor.
        line: the event.
        so_far: what was known before the event.
        link: template of an address with {job_id} and {run_dir}, as `NotifyTarget.link` describes; empty for none.
        page: file to which the report for a browser is written at the end of the job, which is mentioned if there is
            no link; empty for none.
    """
    title, sentences = _WORDINGS[kind](line, so_far)
    if page and not link and kind in _ENDS:
        sentences = [*sentences, f"The report for a browser is written to {page}."]
    lines = [sentence for sentence in sentences if sentence]
    lines.append(_where_to_read_more(job, link))
    text = "\n".join(printable(_clip(sentence)) for sentence in lines)
    return Telling(printable(f"{job['job_id']}: {title}"), text)


_Wording = tuple[str, list[str]]
"""a title, and sentences, of which empty ones are left out"""


def _incident(line: Line, so_far: SoFar) -> _Wording:
    restarts = line.get("verdict") == "restart"
    kind = line.get("kind") or "failure"
    rank = line.get("rank")
    host = line.get("host")
    where = f" on {host}" if host else ""
    follows_another = so_far.incident is not None
    action = _describe_restart(line.get("delay") or 0.0) if restarts else "The job is not restarted any more."
    return (
        f"rank {rank}{where} failed ({kind}), {'restarting' if restarts else 'not restarting'}",
        [
            _sentence(line.get("sentence") or line.get("cause") or "a failure"),
            f"The rank ran on {host}." if host else "",
            _last_progress(line),
            "The job had not made a new step since the failure before." if follows_another else "",
            action,
            "What this has cost is known once the first new step is made." if restarts else "",
            f"The autopsy is in {line['autopsy']}." if line.get("autopsy") else "",
        ],
    )


def _last_progress(line: Line) -> str:
    """Say when the job last made progress."""
    seconds = line.get("since_progress")
    step = line.get("step")
    if seconds is None or step is None or step <= 0:
        return ""
    return f"Step {step} was the last that all ranks had made, {duration(seconds)} before the failure was seen."


def _describe_restart(delay: float) -> str:
    """Say when the ranks start again, which is in `delay` seconds."""
    when = "now" if delay == 0 else f"in {duration(delay)}"
    return f"All ranks start again {when}, from the newest step that all of them have."


def _recovered(line: Line, so_far: SoFar) -> _Wording:
    step = line.get("step")
    took = duration(line.get("seconds", 0.0))
    lost = "" if so_far.lost is None else f", {counted(so_far.lost, 'step')} lost"
    source = f"from {so_far.source}" if so_far.source else "from nothing that was saved"
    return (
        f"back at step {step} after {took}{lost}",
        [
            f"The job trains again: step {step} is made, {took} after the failure was seen.",
            _first_failure(so_far),
            "" if so_far.resumed is None else f"The ranks resumed at step {so_far.resumed} {source}.",
            "How many steps were lost is not known." if so_far.lost is None else _describe_lost(so_far.lost),
        ],
    )


def _first_failure(so_far: SoFar) -> str:
    """Name the failure from which the job has recovered; of several, the first one."""
    first = so_far.incident
    cause = "" if first is None else _with_full_stop(first.get("cause") or first.get("sentence") or "")
    if so_far.incidents > 1:
        return f"{so_far.incidents} failures had followed each other; this was the first: {cause}"
    return f"The failure was: {cause}" if cause else ""


def _describe_lost(lost: int) -> str:
    """Say how many steps were lost."""
    if lost == 0:
        return "No step was lost."
    return f"{counted(lost, 'step')} {'was' if lost == 1 else 'were'} lost and had to be made again."


def _done(line: Line, so_far: SoFar) -> _Wording:
    restarts = line.get("restarts", 0)
    return (
        f"done; {counted(restarts, 'restart')} used",
        [f"The job is done{_run_time(line, so_far)}.", _cost(restarts, so_far), _newest_saved(so_far)],
    )


def _give_up(line: Line, so_far: SoFar) -> _Wording:
    reason = line.get("sentence") or line.get("cause") or "the reason stands in the journal"
    state = "This run has saved no step to storage." if so_far.saved is None else _newest_saved(so_far)
    return (
        "given up",
        [
            f"The job is given up{_run_time(line, so_far)}.",
            _sentence(reason),
            _cost(so_far.restarts, _with_open_incident(so_far, line)),
            state,
            "ftlaunch does not restart it: when the cause is mended, run the same `ftlaunch` command again.",
        ],
    )


def _stopped(line: Line, so_far: SoFar) -> _Wording:
    step = line.get("step")
    goes_on = step is not None and step >= 0
    return (
        f"stopped; it goes on from step {step}" if goes_on else "stopped; nothing was saved",
        [
            f"The job was asked to stop, and has stopped{_run_time(line, so_far)}.",
            _cost(so_far.restarts, _with_open_incident(so_far, line)),
            f"The same command goes on from step {step}." if goes_on else "The same command begins anew.",
        ],
    )


def _with_open_incident(so_far: SoFar, line: Line) -> SoFar:
    """Return `so_far` with the cost of an incident from which the job has not recovered when it ends with `line`."""
    began = (so_far.incident or {}).get("mono")
    now = line.get("mono")
    if began is None or now is None:
        return so_far
    down = so_far.down + max(now - began, 0.0)
    return replace(so_far, down=down, lost_in_all=so_far.lost_in_all + (so_far.lost or 0))


def _run_time(line: Line, so_far: SoFar) -> str:
    """Say how long this run has taken, as the end of a sentence."""
    now = line.get("mono")
    return "" if so_far.began is None or now is None else f"; this run has taken {duration(max(now - so_far.began, 0))}"


def _cost(restarts: int, so_far: SoFar) -> str:
    """Say how often the job was restarted, and what the failures have cost."""
    if not restarts:
        return "It was not restarted."
    lost = f", and {counted(so_far.lost_in_all, 'step')} had to be made again" if so_far.lost_in_all else ""
    took = f"; failures have cost {duration(so_far.down)} without new steps{lost}" if so_far.down else ""
    return f"It was restarted {times(restarts)}{took}."


def _newest_saved(so_far: SoFar) -> str:
    return "" if so_far.saved is None else f"The newest step on storage is {so_far.saved}."


def _slow(line: Line, _: SoFar) -> _Wording:
    return (
        f"rank {line.get('rank')} is slow",
        [_sentence(line.get("sentence") or ""), "The job goes on. With `on_slow: restart` an incident follows."],
    )


def _differs(line: Line, _: SoFar) -> _Wording:
    goes_on = "The job goes on. With `on_difference: stop` it ends there."
    return (
        f"the resumed run differs from step {line.get('step')} on",
        [
            _sentence(line.get("sentence") or "A step that was made again is another one than before the resume."),
            goes_on if line.get("act") != "stop" else "The job is ended (`on_difference: stop`).",
        ],
    )


def _hang_suspected(line: Line, _: SoFar) -> _Wording:
    rank = line.get("rank")
    step = line.get("step")
    age = duration(line.get("age", 0.0))
    limit = duration(line.get("limit", 0.0))
    last = f" Its last step is {step}." if step is not None and step >= 0 else ""
    return (
        f"rank {rank} has made no progress for {age}",
        [
            f"Rank {rank} has made no progress for {age}; at {limit} it counts as hung.{last}",
            "Nothing was done yet. At the limit the stacks of all ranks are collected, and that counts as a failure.",
        ],
    )


_ENDS = frozenset({"done", "give_up", "stopped"})
_WORDINGS = {
    "incident": _incident,
    "recovered": _recovered,
    "done": _done,
    "give_up": _give_up,
    "stopped": _stopped,
    "slow": _slow,
    "differs": _differs,
    "hang_suspected": _hang_suspected,
}


def _where_to_read_more(job: Mapping[str, str], link: str) -> str:
    """Name the command that shows a report, and the address made from the template `link`, if there is one."""
    command = f"ftctl report {shlex.quote(job['run_dir'])}  (on {job['host']})"
    if not link:
        return f"More: {command}"
    filled = link.replace("{job_id}", quote(job["job_id"], safe="")).replace("{run_dir}", quote(job["run_dir"]))
    return f"More: {filled} or {command}"


def _sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning and a full stop at its end."""
    text = text.strip()
    return _with_full_stop(f"{text[:1].upper()}{text[1:]}")


def _with_full_stop(text: str) -> str:
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _clip(text: str) -> str:
    """Cut the end of a text that is too long for a sentence."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

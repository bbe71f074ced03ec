"""Turns events of the journal into sentences for people. Events that tell people nothing have no sentence. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import duration, lost_steps, printable, size
from ftlaunch.history.report_view import ending

Event = Mapping[str, Any]
_GRAVE = frozenset(
    {"incident", "unsound", "resume_differs", "job_failed", "hang_seen", "checkpoint_failed", "checkpoint_rejected",
     "files_silent", "saver_died", "saver_missing", "storage_silent"}
)  # fmt: skip


@dataclass(frozen=True)
class News:
    """A sentence about an event."""

    at: str
    """time of day in UTC, HH:MM:SS"""
    sentence: str
    grave: bool
    """whether something is wrong"""


def news_of(event: Event) -> News | None:
    """Return what an event tells people; None if it tells nothing. A malformed event has a sentence that says so."""
    name = str(event["event"])
    make_sentence = _SENTENCES.get(name)
    try:
        sentence = make_sentence(event) if make_sentence is not None else ""
    except (KeyError, TypeError, ValueError):  # an event of another version
        sentence = f"{name} (its line in the journal cannot be understood)"
    if not sentence:
        return None
    at = str(event.get("t", ""))[11:19]
    return News(printable(at), printable(" ".join(sentence.split())), name in _GRAVE)


def _incident(event: Event) -> str:
    sentence = event["sentence"] or event["cause"]
    return f"incident: {sentence}" + (f"; autopsy in {event['autopsy']}" if event["autopsy"] else "")


def _exited(event: Event) -> str:
    """Return no sentence for a rank that ended well."""
    if not event["code"] and not event["signal"]:
        return ""
    how = f"by {event['signal']}" if event["signal"] else f"with exit code {event['code']}"
    return f"rank {event['rank']} has ended {how}"


def _resumed(event: Event) -> str:
    lost = event["steps_lost"]
    source = f"step {event['step']} from {event['source']}" if event["source"] else "a fresh start"
    return f"all ranks have their state: {source}" + (f", {lost_steps(lost, event['step'])}" if lost else "")


def _committed(event: Event) -> str:
    """Return no sentence for periodic checkpoints: they would fill the screen, and the newest is always shown."""
    if event.get("why") == "interval":
        return ""
    return f"step {event['step']} is on storage: {size(event['bytes'])} in {duration(event['seconds'])}"


def _rejected(event: Event) -> str:
    return f"the checkpoint of step {event['step']} was refused: {event['why']}; it is now {event['to']}"


def _left(event: Event) -> str:
    node = f"node {event['place']}" if event["place"] >= 0 else "a node without ranks"
    return f"{node} has left the job: {event['why']}"


_SENTENCES: Mapping[str, Callable[[Event], str]] = {
    "job_started": lambda event: f"a supervisor has taken up the job (pid {event['pid']})",
    "stop_requested": lambda event: f"asked to stop: {event['by']}",
    "stop_announced": lambda event: f"all ranks stop at step {event['step']}",
    "job_finished": lambda event: f"the job has ended: {ending(event)}",
    "job_stopped": lambda event: f"the job has ended: {ending(event)}",
    "job_failed": lambda event: f"the job has ended: {ending(event)}",
    "attempt_started": lambda event: f"attempt {event['attempt']} has begun",
    "attempt_adopted": lambda event: f"another head has taken up the ranks of attempt {event['attempt']}",
    "node_joined": lambda event: f"a node has joined: {event['host']} ({event['address']})",
    "node_placed": lambda event: (
        f"a node has taken place {event['place']}" if event["place"] >= 0 else "a node stands by from now on"
    ),
    "node_left": _left,
    "rank_restarted": lambda event: f"rank {event['rank']} was started again",
    "rank_dying": lambda event: f"{event['signal']} ends rank {event['rank']}",
    "rank_exited": _exited,
    "resumed": _resumed,
    "resume_verified": lambda event: str(event["sentence"]),
    "resume_unverified": lambda event: str(event["sentence"]),
    "resume_differs": lambda event: str(event["sentence"]),
    "recovered": lambda event: f"step {event['step']} is made: recovered after {duration(event['seconds'])}",
    "hang_suspected": lambda event: (
        f"rank {event['rank']} is silent for {duration(event['age'])}; it hangs at {duration(event['limit'])}"
    ),
    "hang_seen": lambda event: f"rank {event['rank']} hangs: silent for {duration(event['age'])}; its autopsy begins",
    "rank_slow": lambda event: str(event["sentence"]),
    "rank_slow_over": lambda event: str(event["sentence"]),
    "incident": _incident,
    "unsound": lambda event: str(event["sentence"]),
    "rolled_back": lambda event: f"going back to {'the beginning' if event['step'] is None else event['step']}",
    "checkpoint_committed": _committed,
    "checkpoint_failed": lambda event: f"step {event['step']} could not be saved: {event['error']}",
    "checkpoint_rejected": _rejected,
    "saver_died": lambda event: "the saver has ended by itself, and was started again",
    "saver_missing": lambda event: f"there is no saver: {event['why']}",
    "storage_silent": lambda event: f"storage has not answered the saver for {duration(event['seconds'])}",
    "files_silent": lambda event: (
        f"the file system of {event['place']} has not answered for {duration(event['seconds'])}"
    ),
    "files_answer": lambda event: f"{event['place']} answers again, after {duration(event['seconds'])}",
    "storage_answers": lambda event: f"storage answers again, after {duration(event['seconds'])}",
    "memory_reduced": lambda event: f"memory has less room for snapshots than was asked for: {event['slots']} slots",
}
NEWS_EVENTS = frozenset(_SENTENCES)
"""names of the events that can have a sentence"""

"""Formats a story for `ftctl report`, as text or as data for JSON. Pure, but for the local time zone."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ftlaunch.common.formatting import counted, duration, lost_steps, size
from ftlaunch.history import story as classes
from ftlaunch.history.story import HistoryEntry, Incident, Story

_WIDTH = 96  # characters of a line
# The meaning of each class of time, in the order of the ledger.
LEDGER = {
    classes.USEFUL: "steps that count",
    classes.LOST: "steps that had to be made again",
    classes.DETECTING: "last completed step to incident, with the one under way",
    classes.RESTARTING: "incident to the first new step of all ranks",
    classes.STARTING: "start of the supervisor until all ranks have their state",
    classes.STOPPING: "stop request, or the ranks' end, until all is saved",
    classes.DOWN: "no supervisor was running",
    classes.UNKNOWN: "ranks ran; they do not say their steps",
}

_ASKED = {
    "stop_requested": "told to stop",
    "save_requested": "asked for a checkpoint",
    "drain_requested": "asked to let a node leave, node ",
}


_SAYS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "resume_differs": lambda fields: str(fields.get("sentence") or "the resumed run differs"),
    "saver_died": lambda fields: f"the saver died (exit status {fields.get('status')})",
    "saver_missing": lambda fields: f"no saver can be started: {fields.get('why')}",
    "storage_silent": lambda fields: f"storage has not answered for {duration(fields.get('seconds', 0.0))}",
    "files_silent": lambda fields: (
        f"the file system of {fields.get('place')} has not answered for {duration(fields.get('seconds', 0.0))}"
    ),
}


def report_data(story: Story) -> dict[str, Any]:
    """Return the story as `ftctl report --json` prints it: durations in seconds, times in seconds of the epoch."""
    history = [
        {"what": "incident", **asdict(entry)} if isinstance(entry, Incident) else asdict(entry)
        for entry in story.entries
    ]
    data = asdict(story) | {"entries": history, "incidents": [asdict(entry) for entry in story.incidents]}
    return data | {"wall_seconds": story.end - story.begin, "effective": story.effective}


def report_lines(story: Story) -> list[str]:
    """Return the story as `ftctl report` prints it, line by line."""
    runs = counted(story.runs, "run") + " of the supervisor"
    zone = datetime.fromtimestamp(story.begin).astimezone().strftime("%Z")
    runs += f", {counted(story.heads_replaced + 1, 'head')}" if story.heads_replaced else ""
    lines = [
        f"job {story.job_id}: {counted(story.ranks, 'rank')}, {runs}, {counted(story.attempts, 'attempt')}, "
        f"{counted(len(story.incidents), 'incident')}",
        f"{_when(story.begin)} to {_when(story.end)} ({zone}), {duration(story.end - story.begin)}",
        "",
    ]
    day = ""
    for entry in story.entries:
        when = _when(entry.at)
        stamp = when if when[:10] != day else when[11:]
        day = when[:10]
        sentences = _incident(entry) if isinstance(entry, Incident) else entry_sentences(entry)
        for number, sentence in enumerate(sentences):
            lines += _wrapped(sentence, f"{stamp:>19}  " if number == 0 else " " * 21)
    if not story.ended:
        lines += _wrapped("the journal ends here: the job is running, or its supervisor was killed", " " * 21)
    return [*lines, "", *_ledger(story)]


# --- the history ------------------------------------------------------------------------------------------


def _incident(incident: Incident) -> Iterator[str]:
    """Yield sentences on an incident and its cost."""
    yield f"incident in attempt {incident.attempt}: {incident.sentence}"
    parts = []
    if incident.seen_after is not None:
        parts.append(f"seen {duration(incident.seen_after)} after the last completed step")
    if incident.resumed_after is not None:
        source = f"from {incident.source}" if incident.source else "from nothing"
        parts.append(f"resumed at step {incident.resumed_step} {source} after {duration(incident.resumed_after)}")
    if incident.recovered_after is not None:
        parts.append(f"first new step after {duration(incident.recovered_after)}")
    if incident.steps_lost is not None:
        parts.append(lost_steps(incident.steps_lost, incident.resumed_step or 0))
    if parts:
        yield "; ".join(parts)
    if incident.proof:
        yield incident.proof
    if incident.autopsy:
        yield f"autopsy: {incident.autopsy}"


def entry_sentences(entry: HistoryEntry) -> Iterator[str]:
    """Yield sentences on an entry other than an incident."""
    fields = entry.fields
    if entry.what == "started":
        yield from filter(None, (_started(fields), str(fields.get("proof") or "")))
    elif entry.what == "killed":
        yield "the supervisor ended without a word (killed?)" + ("" if fields["known"] else "; when is not known")
    elif entry.what == "head_replaced":
        yield "the head of the job was gone: another one has taken up its ranks, which have run on"
    elif entry.what in _ASKED:
        yield f"{_ASKED[entry.what]}{fields.get('node', '')}: {fields.get('by')}"
    elif entry.what == "checkpoint_committed":
        took = duration(fields.get("seconds", 0.0))
        amount = size(fields.get("bytes", 0))
        yield f"saved step {fields.get('step')} ({fields.get('why')}): {amount} in {took}"
    elif entry.what == "checkpoint_failed":
        yield f"cannot save step {fields.get('step')}: {fields.get('error')}"
    elif entry.what == "checkpoint_rejected":
        cost = fields.get("steps_lost")
        older = "" if cost is None else f"; the next usable one is {counted(cost, 'step')} older"
        yield f"checkpoint of step {fields.get('step')} refused: {fields.get('why')}{older}"
    elif entry.what == "loaded":
        what = "weights of step" if fields.get("weights_only") else "step"
        yield f"begun with {what} {fields.get('step')} from {fields.get('path')}"
    elif (say := _SAYS.get(entry.what)) is not None:
        yield say(fields)
    else:
        yield ending(fields)


def _started(fields: Mapping[str, Any]) -> str:
    """Describe the start of a run of the supervisor."""
    text = "started" if not fields.get("down") else f"started again, {duration(fields['down'])} later"
    if fields.get("source"):
        text += f"; resumed at step {fields.get('resumed')} from {fields['source']}"
        if fields.get("steps_lost") is not None:
            text += f", {lost_steps(fields['steps_lost'], fields.get('resumed') or 0)}"
    if fields.get("jobset_restart"):
        text += f"; JobSet has started the pods again ({counted(int(fields['jobset_restart']), 'restart')})"
    return text


def ending(event: Mapping[str, Any] | None) -> str:
    """Describe how a run of the supervisor ended.

    Args:
        event: the event that ended the run; None if there is none.
    """
    if event is None:
        return "its supervisor ended without a word (killed?)"
    code = f"(exit code {event.get('code')})"
    if event["event"] == "job_finished":
        return f"done {code}"
    if event["event"] == "job_stopped":
        step = event.get("step", -1)
        if not isinstance(step, int):
            return f"stopped {code}; the journal does not say which step is saved"
        return f"stopped {code}, " + (f"step {step} is saved" if step >= 0 else "there was nothing to save")
    return f"failed {code}: {event.get('sentence')}"


# --- the ledger -------------------------------------------------------------------------------------------


def _ledger(story: Story) -> Iterator[str]:
    """Yield the lines on where the wall time went."""
    total = story.end - story.begin
    yield f"{'where the wall time went':<58}{duration(total):>14}"
    for name, meaning in LEDGER.items():
        seconds = story.seconds[name]
        if seconds > 0 or name in (classes.USEFUL, classes.LOST):
            share = seconds / total if total else 0.0
            yield f"  {name:<11}{duration(seconds):>14} {share:>8.2%}   {meaning}"
    yield ""
    effective = "not known" if story.effective is None else f"{story.effective:.2%}"
    yield f"effective training time: {effective}{_without_down(story, total)}"
    if story.step_seconds is not None:
        yield (
            f"steps timed: {story.steps_made}, {duration(story.step_seconds)} each in the mean;"
            f" lost: {story.steps_lost}, their time is estimated with it"
        )
    elif story.steps_lost:
        yield f"steps lost: {story.steps_lost}; their time is not known and stands under `{classes.USEFUL}`"
    yield f"checkpoints: {story.checkpoints}"


def _without_down(story: Story, total: float) -> str:
    """Say which share of the time with a supervisor was effective; empty if there always was one."""
    up = total - story.seconds[classes.DOWN]
    if story.effective is None or up <= 0 or up == total:
        return ""
    return f" ({story.seconds[classes.USEFUL] / up:.2%} of the time it was up)"


def _when(seconds: float) -> str:
    """Format seconds of the epoch as local time."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _wrapped(text: str, first: str) -> list[str]:
    """Break a text into lines, of which the first begins with `first`, and the others are indented."""
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=" " * 21, break_on_hyphens=False)

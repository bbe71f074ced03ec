"""Makes the JSON object that a target receives for an event, without secrets. Pure.

Texts are masked by the names of secrets, in addresses, and by the values that the job was given under a secret's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.common.masking import masked_text
from ftlaunch.notify.message import SoFar, telling

# The kind of a notice, as `on:` in the spec calls it, by the name of the event in the journal.
KIND_OF = {
    "incident": "incident",
    "recovered": "recovered",
    "job_failed": "give_up",
    "job_finished": "done",
    "job_stopped": "stopped",
    "rank_slow": "slow",
    "resume_differs": "differs",
    "hang_suspected": "hang_suspected",
}
_LONGEST = 8000  # characters of one text; of a longer text the end is sent, which holds the error of a traceback


def payload(
    job: Mapping[str, str],
    line: Mapping[str, Any],
    secrets: Collection[str],
    so_far: SoFar,
    link: str = "",
    page: str = "",
) -> dict[str, Any]:
    """Return the JSON object for a journalled event of a kind in KIND_OF.

    The event's own fields keep their names. `text` is one sentence; `title` and `message` say the same with all that
    a person asks next.

    Args:
        job: job_id, run_dir and host.
        line: the event.
        secrets: values that no text may contain.
        so_far: what was known before the event.
        link: template of an address, empty for none; passed to `message.telling`.
        page: file of the report for a browser, empty for none; passed to `message.telling`.
    """
    kind = KIND_OF[line["event"]]
    text = f"{job['job_id']}: {_sentence(kind, line)}"
    people = telling(kind=kind, job=job, line=line, so_far=so_far, link=link, page=page)
    words = {"notify": kind, "text": text, "title": people.title, "message": people.text}
    masked: dict[str, Any] = _mask({**words, **job, **line}, secrets)
    return masked


def _sentence(kind: str, line: Mapping[str, Any]) -> str:
    """Describe an event in one sentence without a full stop."""
    if kind == "done":
        return f"done; {line.get('restarts', 0)} restarts used"
    if kind == "give_up":
        return f"given up: {line.get('sentence') or line.get('cause') or 'see the journal'}"
    if kind == "stopped":
        step = line.get("step", -1)
        return f"stopped; the same command goes on from step {step}" if step >= 0 else "stopped; nothing was saved"
    if kind == "hang_suspected":
        age = duration(line.get("age", 0.0))
        limit = duration(line.get("limit", 0.0))
        return f"rank {line.get('rank')} has made no progress for {age}; at {limit} it counts as hung"
    if kind == "recovered":
        return f"back at step {line.get('step')} after {duration(line.get('seconds', 0.0))}"
    return str(line.get("sentence") or line.get("cause") or kind)


def _mask(value: Any, secrets: Collection[str]) -> Any:
    """Return a copy of nested mappings and lists whose texts are masked, and cut to _LONGEST characters."""
    if isinstance(value, str):
        return masked_text(value, secrets)[-_LONGEST:]
    if isinstance(value, Mapping):
        return {name: _mask(item, secrets) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item, secrets) for item in value]
    return value

"""Which events are told to targets, and in which words. Pure.

Nothing that looks like a secret is sent: texts are masked by name and address, and by the values that the job was
given under a secret's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.common.masking import masked_text
from ftlaunch.notify.message import SoFar, telling

# name in the journal -> what `on:` calls it
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
_LONGEST = 8000  # characters of one text: of a longer one the end is sent, where a traceback has its error


def payload(
    job: Mapping[str, str],
    line: Mapping[str, Any],
    secrets: Collection[str],
    so_far: SoFar,
    link: str = "",
    page: str = "",
) -> dict[str, Any]:
    """What is sent for a journalled event of a kind in KIND_OF.

    job: job_id, run_dir and host. so_far, link, page: see message.telling. The event's own fields keep their names;
    `text` is one sentence, `title` and `message` are the same with all that a person asks next.
    """
    kind = KIND_OF[line["event"]]
    text = f"{job['job_id']}: {_sentence(kind, line)}"
    people = telling(kind, job, line, so_far, link, page)
    words = {"notify": kind, "text": text, "title": people.title, "message": people.text}
    told: dict[str, Any] = _clean({**words, **job, **line}, secrets)
    return told


def _sentence(kind: str, line: Mapping[str, Any]) -> str:
    if kind == "done":
        return f"done; {line.get('restarts', 0)} restarts used"
    if kind == "give_up":
        return f"given up: {line.get('sentence') or line.get('cause') or 'see the journal'}"
    if kind == "stopped":
        step = line.get("step", -1)
        return f"stopped; the same command goes on from step {step}" if step >= 0 else "stopped; nothing was saved"
    if kind == "hang_suspected":
        age, limit = duration(line.get("age", 0.0)), duration(line.get("limit", 0.0))
        return f"rank {line.get('rank')} has made no progress for {age}; at {limit} it counts as hung"
    if kind == "recovered":
        return f"back at step {line.get('step')} after {duration(line.get('seconds', 0.0))}"
    return str(line.get("sentence") or line.get("cause") or kind)


def _clean(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return masked_text(value, secrets)[-_LONGEST:]
    if isinstance(value, Mapping):
        return {name: _clean(item, secrets) for name, item in value.items()}
    return [_clean(item, secrets) for item in value] if isinstance(value, list | tuple) else value

"""Run dirs with made-up journals, for readers of journals: timed events, and jobs of any length."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BEGIN = 1_790_000_000  # when the job begins, in seconds since 1970
Timed = tuple[float, str, dict[str, Any]]
"""an event: seconds after the beginning, name, fields"""


def at(when: float, event: str, **fields: Any) -> Timed:
    return when, event, fields


def started(ranks: int = 2, **more: Any) -> list[Timed]:
    """Return the events of a job that begins, and trains from the tenth second on."""
    fields = {"job_id": "j", "ranks": ranks, "command": ["train.py"], "host": "here", "killed_at": None, **more}
    resumed = at(10, "resumed", step=0, source=None, steps_lost=None, seconds=None)
    return [at(0, "job_started", **fields), at(1, "attempt_started", pids=None, port=1), resumed]


def failed(when: float, step: int, rank: int = 1, lost: int = 0, **more: Any) -> list[Timed]:
    """Return the events of a rank's failure, after which the job trains again ten seconds later."""
    cause = {
        "cause": f"rank {rank} was killed",
        "kind": "killed",
        "sentence": f"rank {rank} was killed; restarting now",
        "verdict": "restart",
        "since_progress": 0.5,
        "trace": "",
        "autopsy": None,
    }
    return [
        at(when, "incident", rank=rank, step=step, **(cause | more)),
        at(when + 1, "attempt_started", pids=None, port=1),
        at(when + 8, "resumed", step=step - lost, source="memory", steps_lost=lost, seconds=8.0),
        at(when + 10, "recovered", step=step - lost + 1, seconds=10.0),
    ]


def lines(events: Iterable[Timed]) -> Iterator[str]:
    """Yield the journal's lines; each attempt_started but the first begins the next attempt."""
    attempt = -1
    for when, event, fields in events:
        attempt = fields.get("attempt", attempt + (event == "attempt_started"))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(BEGIN + when))
        yield json.dumps({"t": stamp, "mono": when, "attempt": max(attempt, 0), "event": event, **fields})


def run_dir(home: Path, events: Iterable[Timed], *more: str) -> Path:
    """Make a run dir with a journal. more: lines to append as they are."""
    made = home / "run"
    made.mkdir(exist_ok=True)
    (made / "events.jsonl").write_text("".join(f"{line}\n" for line in lines(events)) + "\n".join(more))
    return made


def log(made: Path, attempt: int, rank: int, text: str) -> None:
    """Write the log of a rank."""
    folder = made / "logs" / f"attempt_{attempt}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank_{rank}.log").write_text(text)

"""What `ftctl status` prints."""

from __future__ import annotations

from ftlaunch.history.status_view import status_lines

ANSWER = {
    "job_id": "gpt", "state": "running", "attempt": 0, "restarts_left": 3, "max_restarts": 3, "in_memory": 4,
    "committed": -1, "ranks": [], "slow": [],
}  # fmt: skip


def test_calls_that_have_failed_are_told() -> None:
    assert not [line for line in status_lines(ANSWER) if "could not" in line]
    lines = status_lines({**ANSWER, "failed_calls": {"look at what the ranks' processes do": 1, "reap": 7}})
    assert lines[-2].startswith("could not look at what the ranks' processes do, once; the job has gone on")
    assert lines[-1].startswith("could not reap, 7 times; the job has gone on")

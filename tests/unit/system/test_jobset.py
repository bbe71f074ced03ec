"""What JobSet says of its restarts."""

from __future__ import annotations

import pytest

from ftlaunch.system.jobset import restart_attempt


@pytest.mark.parametrize(
    ("told", "known"),
    [(None, None), ("", None), ("0", 0), ("12", 12), ("-1", None), ("x", None), ("\u0663", None), ("9" * 40, None)],
)
def test_a_number_is_known_and_nothing_else(told: str | None, known: int | None) -> None:
    environ = {} if told is None else {"JOBSET_RESTART_ATTEMPT": told}
    assert restart_attempt(environ) == known

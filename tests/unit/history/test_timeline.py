"""Times of journal lines."""

from __future__ import annotations

import pytest

from ftlaunch.history.timeline import epoch_seconds


@pytest.mark.parametrize("stamp", [None, 1.5, 20260101, [], {}, "", "yesterday"])
def test_what_is_no_time_is_refused_whatever_it_is(stamp: object) -> None:
    """`ftctl logs` and `ftctl status` pass over a line that is refused so. Taken out: they end with AttributeError."""
    with pytest.raises(ValueError, match=r"is no time|isoformat"):
        epoch_seconds(stamp)


def test_a_time_is_one_in_seconds() -> None:
    assert epoch_seconds("1970-01-01T00:00:01.5Z") == 1.5

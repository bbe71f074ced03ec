"""What a script asks for about saving, and what holds in its place."""

from __future__ import annotations

import pytest

from ftlaunch_contract.saving_request import SavingRequest, read_given, write_given

ASKED = SavingRequest(memory_steps=1, steps=5, keep=2)


@pytest.mark.parametrize(
    ("given", "left", "dropped"),
    [
        ({}, ASKED, {}),
        ({"keep": "7"}, SavingRequest(memory_steps=1, steps=5), {"keep": "7"}),
        ({"storage_interval": "off"}, SavingRequest(memory_steps=1, keep=2), {"storage_interval": "off"}),
        ({"memory_interval": "0"}, SavingRequest(steps=5, keep=2), {"memory_interval": "0"}),
    ],
)
def test_what_was_given_holds(given: dict[str, str], left: SavingRequest, dropped: dict[str, str]) -> None:
    assert ASKED.against(given) == (left, dropped)
    assert SavingRequest().against(given) == (SavingRequest(), {})


def test_ranks_are_told_what_was_given() -> None:
    said = write_given({"keep": "7", "storage_interval": "10m"})
    assert read_given({"FTLAUNCH_GIVEN": said, "FTLAUNCH_KEEP": "9"}) == {
        "keep": "--keep 7",
        "storage_interval": "--storage-interval 10m",
    }
    assert read_given({"FTLAUNCH_GIVEN": ""}) == {}


def test_without_a_supervisor_the_variables_are_what_was_given() -> None:
    assert read_given({"FTLAUNCH_KEEP": "9", "HOME": "/"}) == {"keep": "FTLAUNCH_KEEP=9"}


def test_a_request_in_words() -> None:
    assert str(ASKED) == "checkpoints every 5 steps and 2 checkpoints to keep"
    assert str(SavingRequest()) == "nothing"

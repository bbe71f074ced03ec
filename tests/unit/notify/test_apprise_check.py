"""Without the package that an address of Apprise's needs, a job is refused; others ask for nothing."""

from __future__ import annotations

import sys

import pytest

from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.notify_targets.apprise import AppriseAddress
from ftlaunch.spec.notify_targets.command import ProgramTarget
from ftlaunch.spec.notify_targets.notify_target import NotifyTarget, check_targets
from ftlaunch.spec.notify_targets.webhook import Webhook


@pytest.fixture(autouse=True)
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)


def refusal(*targets: NotifyTarget) -> str:
    """Return the sentence that refuses a job with these targets; empty where nothing does."""
    try:
        check_targets(targets)
    except SpecError as error:
        return str(error)
    return ""


def test_the_missing_package_is_named_and_the_address_is_not() -> None:
    assert refusal(NotifyTarget(AppriseAddress("slack://hunter2"))) == (
        "cannot use `notify.apprise`: the package apprise is not installed; install it with "
        "`pip install 'ftlaunch[apprise]'`, or tell a `url` or a `command`"
    )


def test_a_job_without_such_an_address_needs_no_package() -> None:
    assert refusal(NotifyTarget(ProgramTarget(shell="cat")), NotifyTarget(Webhook("https://h"))) == ""

"""Without the package that an address of Apprise's needs, a job is refused; others ask for nothing."""

from __future__ import annotations

import sys

import pytest

from ftlaunch.notify import apprise_check
from ftlaunch.spec.errors import SpecError
from ftlaunch.spec.parsing.notify_targets import NotifyTarget


@pytest.fixture(autouse=True)
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)


def test_the_missing_package_is_named_and_the_address_is_not() -> None:
    with pytest.raises(SpecError) as refused:
        apprise_check.check([NotifyTarget(shell="cat"), NotifyTarget(apprise="slack://hunter2")])
    assert str(refused.value) == (
        "cannot use `notify.apprise`: the package apprise is not installed; install it with "
        "`pip install 'ftlaunch[apprise]'`, or tell a `url` or a `command`"
    )


def test_a_job_without_such_an_address_needs_no_package() -> None:
    apprise_check.check([NotifyTarget(shell="cat"), NotifyTarget(url="https://h")])

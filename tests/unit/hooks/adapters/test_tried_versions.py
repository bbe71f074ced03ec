"""What is said of a framework that is newer than any that was tried, and of snapshots of an earlier adapter."""

from __future__ import annotations

import sys
import time
from importlib import metadata
from types import ModuleType

import pytest

from ftlaunch_hooks.adapters import tried_versions
from ftlaunch_hooks.adapters.refusal import check_saved
from ftlaunch_hooks.job.restore import AttachError


@pytest.mark.parametrize(
    ("installed", "is_new"),
    [("1.15.0", False), ("1.15.9", False), ("1.16.0.dev1", True), ("2.0", True), ("0.99", False), ("", False)],
)
def test_another_major_or_minor_number_is_newer(installed: str, is_new: bool) -> None:
    sentence = tried_versions.untried("Accelerate", (1, 15), installed)
    assert (sentence is not None) is is_new
    assert sentence is None or sentence.startswith(f"not tried with Accelerate {installed}: the newest")


def test_it_is_said_once_of_what_the_script_has_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    new, absent = f"new_{time.monotonic_ns()}", f"absent_{time.monotonic_ns()}"  # nothing was said of them before
    tried = {new: ("Newer", (1, 15)), absent: ("Absent", (1, 15))}
    monkeypatch.setattr(tried_versions, "TRIED", tried)
    monkeypatch.setattr(metadata, "version", lambda _: "99.1")
    monkeypatch.setitem(sys.modules, new, ModuleType(new))
    monkeypatch.setenv("RANK", "0")
    tried_versions.say_if_newer()
    tried_versions.say_if_newer()
    said = capsys.readouterr().err
    assert said.count("not tried with Newer 99.1") == 1
    assert "Absent" not in said


def test_a_snapshot_of_an_earlier_adapter_is_refused_in_words() -> None:
    check_saved({"ranks": 2, "loaders": []}, "ranks loaders", "Accelerate")
    with pytest.raises(
        AttachError, match=r"written by an earlier version .* Accelerate .it has no `held`.; give --fresh"
    ):
        check_saved({"seeds": []}, "seeds held", "Accelerate")

"""The page of one job, kept up to date."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_dirs import at, failed, log, run_dir, started

from ftlaunch.views.dashboard import live_run
from ftlaunch.views.dashboard.live_run import LiveRun
from ftlaunch.views.dashboard.runs_shown import KEPT, RunsShown
from ftlaunch.views.report_page.data import data_of


def state_of(told: Mapping[str, Any]) -> tuple[str, str]:
    return told["live"]["state"], told["live"]["sentence"]


def test_only_what_is_new_makes_a_page_and_nothing_is_missed(tmp_path: Path) -> None:
    made = run_dir(tmp_path, started())
    run = LiveRun(made, listed=False)
    assert run.update()["incidents"] == []
    assert run.update().keys() == {"live"}
    run_dir(tmp_path, [*started(), *failed(50, 40)])
    assert len(run.update()["incidents"]) == 1


def test_an_empty_run_dir_is_no_trouble_and_becomes_a_page(tmp_path: Path) -> None:
    run = LiveRun(tmp_path, listed=False)
    assert state_of(run.update())[0] == "unreadable"
    (tmp_path / "events.jsonl").write_text('{"event": "job_sta')
    assert state_of(run.update()) == ("empty", "the journal has no whole event yet")
    assert run.data is None
    made = run_dir(tmp_path, started())
    assert "job" in LiveRun(made, listed=False).update()


def test_what_cannot_be_read_is_not_called_gone(tmp_path: Path) -> None:
    """Taken out: every error of a file was headed `the run dir is gone`."""
    made = run_dir(tmp_path, started())
    run = LiveRun(made, listed=False)
    newest = run.update()["live"]["newest"]
    (made / "events.jsonl").unlink()
    os.mkfifo(made / "events.jsonl")
    assert state_of(run.update()) == ("unreadable", f"cannot read the journal in {made}: it is no regular file")
    assert run.update()["live"]["newest"] == newest
    shutil.rmtree(made)
    assert state_of(run.update())[0] == "gone"


def test_a_page_that_could_not_be_made_is_made_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Taken out: the lines were read, no page was made of them, and the next look said `live` with the old page."""
    made = run_dir(tmp_path, started())
    run = LiveRun(made, listed=False)
    run.update()
    run_dir(tmp_path, [*started(), *failed(50, 40)])

    def broken(*_: Any) -> dict[str, Any]:
        raise ArithmeticError("planted")

    monkeypatch.setattr(live_run, "data_of", broken)
    for _ in range(2):
        assert state_of(run.update()) == ("unreadable", f"cannot read the journal in {made}: ArithmeticError: planted")
    assert caplog.text.count("cannot be made") == 1, "looks are many"
    monkeypatch.setattr(live_run, "data_of", data_of)
    told = run.update()
    assert (len(told["incidents"]), told["live"]["state"]) == (1, "unknown")


def test_links_in_a_run_dir_show_nothing_of_their_aims(tmp_path: Path) -> None:
    """Taken out: a private key stood on the page."""
    (tmp_path / "id_ed25519").write_text("PRIVATE")
    hang = {"kind": "hang", "cause": "PRIVATE", "autopsy": "/r/autopsy/attempt_0"}
    made = run_dir(tmp_path, [*started(log_dir=str(tmp_path / "elsewhere")), *failed(50, 40, **hang)])
    log(made, 0, 1, "")
    for link in (made / "logs/attempt_0/rank_1.log", made / "autopsy/attempt_0/verdict.txt"):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(tmp_path / "id_ed25519")
    (incident,) = LiveRun(made, listed=False).update()["incidents"]
    assert (incident["log"]["lines"], incident["log"]["note"]) == ([], "cannot read it: it is a symbolic link")
    assert (incident["autopsy"]["verdict"], incident["autopsy"]["groups"]) == ("", [])
    assert incident["autopsy"]["note"].startswith("cannot read it: it is a symbolic link")


def test_a_log_that_grows_is_read_again_on_a_page_that_goes_on(tmp_path: Path) -> None:
    events = [*started(), *failed(50, 40)[:1]]
    made = run_dir(tmp_path, events)
    log(made, 0, 1, "one\n")
    run = LiveRun(made, listed=False)
    assert run.update()["incidents"][0]["log"]["lines"] == ["one"]
    log(made, 0, 1, "one\ntwo\n")
    run_dir(tmp_path, [*events, at(60, "progress", step=41)])
    assert run.update()["incidents"][0]["log"]["lines"] == ["one", "two"]


def test_of_pages_that_nobody_looks_at_some_are_kept(tmp_path: Path) -> None:
    """Taken out: every page that was ever opened stayed in memory."""
    shown = RunsShown(tmp_path, every=True)
    first = shown.watched("0", tmp_path / "0")
    for number in range(KEPT):
        shown.watched(str(number), tmp_path / str(number))
    assert shown.watched("0", tmp_path / "0") == first
    shown.watched("new", tmp_path / "new")
    assert shown.watched("0", tmp_path / "0") == first, "the one that was opened last"
    assert shown.find("1") is None

"""What stands in the place of a file is found before anybody opens it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftlaunch.engine.strange_files import find_strange_file

OURS = (
    "events.jsonl", "report.html", "report.json", "recovery.json", "limits.json", "seed.json", "plan.json", "token",
    "failures.json", "lock", ".shared", "bug.txt", "terminal.log", "terminal.log.3", "terminal.host.7.log",
    "logs/warm.log", "logs/warm.host.7.log", "logs/attempt_0/rank_0.log", "logs/attempt_12/rank_7.error.json",
    "logs/attempt_1/marks.0.jsonl", "checkpoints/latest_checkpointed_iteration.txt", "checkpoints/skipped.json",
    "checkpoints/seed.json", "checkpoints/loaded.json", "checkpoints/.ftlaunch.lock", "checkpoints/.shared",
    "checkpoints/fingerprints/rank_3",
)  # fmt: skip


def found(run_dir: Path) -> tuple[Path, str] | None:
    return find_strange_file(run_dir, run_dir / "logs", run_dir / "checkpoints")


@pytest.mark.parametrize("name", OURS)
def test_a_fifo_is_found_under_each_name_of_a_job(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    assert found(tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert found(tmp_path) == (path, "a FIFO")


def test_a_link_counts_as_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("")
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "journal")
    (tmp_path / "lock").symlink_to(tmp_path / "nowhere")
    assert found(tmp_path) is None
    (tmp_path / "token").symlink_to("/dev/null")
    assert found(tmp_path) == (tmp_path / "token", "a device")


def test_what_others_keep_there_is_theirs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "my.fifo")
    assert found(tmp_path) is None
    assert found(tmp_path / "nowhere") is None

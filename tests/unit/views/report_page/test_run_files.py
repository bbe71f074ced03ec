"""Files of a run dir that somebody else has laid out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftlaunch.views.report_page.run_files import RunFiles, open_journal_without_links

MOST = 1000
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away: run as root")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A run dir; beside it lies what is not to be shown."""
    run_dir = tmp_path / "run"
    (run_dir / "logs/attempt_0").mkdir(parents=True)
    (run_dir / "events.jsonl").write_text("{}\n")
    (run_dir / "logs/attempt_0/rank_0.log").write_text("hello")
    (tmp_path / "home/attempt_0").mkdir(parents=True)
    (tmp_path / "home/attempt_0/rank_0.log").write_text("private")
    (tmp_path / "home/key").write_text("private")
    return run_dir


def test_a_file_of_the_run_dir_is_read(made: Path) -> None:
    assert RunFiles(made).text(made / "logs/attempt_0/rank_0.log", 3) == "hel"


@pytest.mark.parametrize("link", ["logs/attempt_0/rank_0.log", "logs/attempt_0", "logs"])
def test_no_link_is_followed_in_the_run_dir(made: Path, tmp_path: Path, link: str) -> None:
    """Taken out (the files opened by their path): the page showed a private key."""
    (made / "logs").rename(made / "away")
    (made / link).parent.mkdir(parents=True, exist_ok=True)
    aim = {"logs": "home", "logs/attempt_0": "home/attempt_0"}.get(link, "home/key")
    (made / link).symlink_to(tmp_path / aim)
    with pytest.raises(OSError, match=r"symbolic link|Not a directory"):
        RunFiles(made).text(made / "logs/attempt_0/rank_0.log", MOST)


def test_no_path_leads_out_of_the_run_dir(made: Path, tmp_path: Path) -> None:
    for path in (made / "../home/key", made / "logs/../../home/key"):
        with pytest.raises(OSError, match="may lie outside"):
            RunFiles(made).text(path, MOST)


@pytest.mark.parametrize("name", ["rank_0.log", "events.jsonl"])
def test_a_fifo_keeps_nobody_waiting(made: Path, name: str) -> None:
    """Taken out (O_NONBLOCK): this test, the index and the page never ended."""
    path = made / ("events.jsonl" if name == "events.jsonl" else "logs/attempt_0/rank_0.log")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(OSError, match="no regular file"):
        open_journal_without_links(made) if name == "events.jsonl" else RunFiles(made).text(path, MOST)


def test_a_journal_is_no_link(made: Path, tmp_path: Path) -> None:
    (made / "events.jsonl").unlink()
    (made / "events.jsonl").symlink_to(tmp_path / "home/key")
    with pytest.raises(OSError, match="symbolic link"):
        open_journal_without_links(made)


@needs_root
def test_a_file_of_another_user_than_the_journals_is_not_shown(made: Path, tmp_path: Path) -> None:
    """A log_dir of the journal may be anywhere; a hard link needs no right to read. Taken out: both were shown."""
    os.chown(made / "events.jsonl", 4321, -1)
    os.link(tmp_path / "home/key", made / "logs/attempt_0/rank_1.log")
    for path in (tmp_path / "home/attempt_0/rank_0.log", made / "logs/attempt_0/rank_1.log"):
        with pytest.raises(OSError, match="another user than the journal"):
            RunFiles(made).text(path, MOST)
        os.chown(path, 4321, -1)
        assert RunFiles(made).text(path, MOST) == "private"


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000])
def test_a_name_that_no_file_can_have_is_an_error_of_a_file(made: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"."):
        RunFiles(made).text(made / name, MOST)


def test_what_is_made_of_a_file_is_made_again_when_it_has_changed(made: Path) -> None:
    files, path, texts = RunFiles(made), made / "logs/attempt_0/rank_0.log", list[str]()

    def made_of(text: str) -> int:
        texts.append(text)
        return len(text)

    assert [files.made_of(path, made_of, 3, end=True) for _ in range(3)] == [3, 3, 3]
    assert texts == ["llo"]
    path.write_text("hello, world")
    assert files.made_of(path, made_of, MOST) == 12
    assert len(texts) == 2

"""What a memory directory holds is not taken for nothing where it cannot be listed: it would be deleted."""

from __future__ import annotations

import errno
import pathlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ftlaunch.memory.cleanup import clean_job
from ftlaunch.memory.directory import COPIES, COPY_NOTE, count_pages, first_page, forget_snapshots, remove_memory
from ftlaunch.memory.pages import Pages
from ftlaunch_contract.files.dirlock import LOCK
from ftlaunch_contract.pages.page import page_path


@pytest.fixture
def unlistable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No directory can be listed."""

    def refuse(path: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    monkeypatch.setattr("os.listdir", refuse)
    if hasattr(pathlib, "_NormalAccessor"):  # before Python 3.11 pathlib keeps them
        monkeypatch.setattr(pathlib._NormalAccessor, "scandir", staticmethod(refuse))
        monkeypatch.setattr(pathlib._NormalAccessor, "listdir", staticmethod(refuse))


def test_pages_are_counted_and_the_first_is_found(tmp_path: Path) -> None:
    Pages(tmp_path, 2, first=4).close()
    assert (count_pages(tmp_path), first_page(tmp_path)) == (2, 4)
    assert count_pages(tmp_path / "nowhere") == 0


def test_pages_of_other_ranks_are_deleted(tmp_path: Path) -> None:
    Pages(tmp_path, 2).close()
    Pages(tmp_path, 2, first=2).close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["page_00002", "page_00003"]


def test_a_directory_that_cannot_be_listed_is_not_empty(tmp_path: Path, unlistable: None) -> None:
    """Taken out (Path.glob): a node that may not list its memory for a moment deletes it at its end."""
    with pytest.raises(PermissionError):
        count_pages(tmp_path)
    with pytest.raises(PermissionError):
        Pages(tmp_path, 2)


def test_snapshots_stay_where_their_pages_cannot_be_listed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    Pages(tmp_path, 2).close()
    request.getfixturevalue("unlistable")
    with pytest.raises(PermissionError):
        Pages(tmp_path, 2)
    assert page_path(tmp_path, 1).exists()


def test_a_page_that_cannot_be_opened_is_not_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out: a supervisor that is out of descriptors as it starts forgets what a rank has in memory."""
    with_steps = Pages(tmp_path, 2)
    with_steps[1].set_slot(0, 7)
    with_steps.close()

    def refuse(path: object, *_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as context:
        context.setattr("os.open", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            Pages(tmp_path, 2)
    again = Pages(tmp_path, 2)
    assert again[1].slot_steps()[0] == 7
    again.close()


@pytest.mark.parametrize(
    "remove", [remove_memory, forget_snapshots, lambda directory: clean_job(directory, force=True)]
)
def test_a_removal_that_is_broken_off_leaves_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remove: Callable[[Path], object]
) -> None:
    """Taken out (slots first): the page of a slot without files stays, and the next run of the job is refused."""
    Pages(tmp_path, 1).close()
    (tmp_path / LOCK).touch(0o600)
    copy = tmp_path / COPIES / "7" / "0"
    for directory in (tmp_path / "slot_00000_0", copy):
        directory.mkdir(parents=True)
        (directory / "model.safetensors").touch()
    (copy / COPY_NOTE).touch()
    tried = []

    def refuse(path: Path, **_: object) -> None:
        tried.append(path)
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        remove(tmp_path)
    assert tried, "nothing was broken off"
    assert count_pages(tmp_path) == 0
    assert not (copy / COPY_NOTE).exists()

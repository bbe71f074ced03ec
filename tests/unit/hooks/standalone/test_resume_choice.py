"""Memory or storage: the newer step of the two, and never both."""

from __future__ import annotations

from pathlib import Path

from tests.support.checkpoints import empty

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.standalone.resume_choice import choose_beside


def test_nothing_in_memory_leaves_the_choice_to_storage(tmp_path: Path) -> None:
    assert choose_beside(NONE, tmp_path, print) is None


def test_memory_counts_where_storage_has_nothing_newer(tmp_path: Path) -> None:
    assert choose_beside(7, tmp_path, print) == (Resume.MEMORY, 7)
    empty(tmp_path, 7)
    assert choose_beside(7, tmp_path, print) == (Resume.MEMORY, 7)


def test_a_newer_checkpoint_that_does_not_verify_leaves_memory(tmp_path: Path) -> None:
    said: list[str] = []
    empty(tmp_path, 9)
    assert choose_beside(7, tmp_path, said.append) == (Resume.MEMORY, 7)
    assert "checkpoint of step 9 refused" in said[0]

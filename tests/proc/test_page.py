"""Two processes see each other's words on a memory page."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.protocol import Flag, Resume

OTHER = """\
import sys
from pathlib import Path
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Flag
page = Page(Path(sys.argv[1]))
page.begin(2, 10, 20)
page.beat(-7, 2**62)
page.raise_flag(Flag.ATTACHED)
print("ready", flush=True)
sys.stdin.readline()
print(page.stop_at, page.resume[1], flush=True)
"""


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    create_page(page_path(tmp_path, 0))
    page = Page(page_path(tmp_path, 0))
    yield page
    page.close()


def test_two_processes_see_each_others_words(page: Page) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(page.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert (page.attempt, page.step, page.beat_ns, page.flags) == (2, -7, 2**62, Flag.ATTACHED)
        page.stop_at = 123
        page.decide_resume(Resume.MEMORY, 2**40)
        out, _ = other.communicate("\n", timeout=60)
    assert out.split() == ["123", str(2**40)]
    assert page.step == -7  # the last word of a process outlives it

"""Where a rank's log lies, and its last bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ftlaunch.ranks.log_files import log_path, tail
from ftlaunch_contract.files.regular_file import file_size


def test_tail(tmp_path: Path) -> None:
    log = log_path(tmp_path / "logs", 2, 13)
    assert log == tmp_path / "logs" / "attempt_2" / "rank_13.log"
    assert tail(log) == ""
    log.parent.mkdir(parents=True)
    log.write_bytes(b"a" * 100_000 + b"end\xff")
    assert tail(log) == "a" * (65536 - 4) + "end\ufffd"
    assert tail(log, 100_001) == "nd\ufffd"
    assert tail(log, 1 << 40) == ""


def test_only_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    """Taken out (any error counts as none): an attempt would be judged by what an earlier run has left in its log."""
    log = tmp_path / "log"
    assert file_size(log) == 0
    log.write_text("twelve bytes")
    assert file_size(log) == 12
    with pytest.raises(NotADirectoryError):
        file_size(log / "below")

"""The targets that run the tests on other Pythons, and on the newest torch: what they find, and what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts/setup"))

import newest_torch
import pythons

ROOT = Path(__file__).parents[2]
HERE = "{}.{}".format(*sys.version_info)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose Pythons lie in one folder: on PATH, in pyenv's, and in uv's."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin:/usr/bin")
    monkeypatch.setenv("PYENV_ROOT", f"{tmp_path}/pyenv")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", f"{tmp_path}/uv")
    return tmp_path


def put_python(path: Path, version: str, code: int = 0) -> None:
    """Put a program that answers as a Python of a version does, or that fails as a shim of pyenv's."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho {version}\nexit {code}\n")
    path.chmod(0o755)


def test_pythons_are_found_where_they_lie_and_only_those_that_work(machine: Path) -> None:
    put_python(machine / "bin/python3.21", "3.21")
    put_python(machine / "pyenv/versions/3.22.1/bin/python3.22", "3.22")
    put_python(machine / "uv/cpython-3.23.0-linux-x86_64-gnu/bin/python3.23", "3.23")
    put_python(machine / "pyenv/versions/3.24.1/bin/python3.24", "3.24", code=127)
    put_python(machine / "pyenv/versions/3.25.1/bin/python3.25", "3.2")
    found = pythons.find_pythons([HERE, "3.21", "3.22", "3.23", "3.24", "3.25", "3.26"])
    assert [python.version for python in found] == [HERE, "3.21", "3.22", "3.23"]
    assert found[0].path == sys.executable


def test_where_there_is_none_that_is_said(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pythons.run("all", ["3.97", "3.98"]) == 2
    assert capsys.readouterr().out == "cannot test other Pythons: this machine has none of 3.97, 3.98\n"


def test_what_the_part_names_is_there() -> None:
    assert [name for name in pythons.PART if not (ROOT / name.partition("::")[0]).exists()] == []


@pytest.mark.parametrize(
    ("answer", "newest"),
    [
        ("torch (2.15.0)\nAvailable versions: 2.15.0, 2.14.1\n  INSTALLED: 2.13.0+cpu\n", "2.15.0"),
        ("torch (2.13.0+cpu)\nAvailable versions: 2.13.0+cpu\n", "2.13.0"),
        ("", ""),
    ],
)
def test_the_index_says_which_is_the_newest(answer: str, newest: str) -> None:
    assert newest_torch.newest_of_answer(answer) == newest


@pytest.mark.parametrize(
    ("available", "said"),
    [
        ("2.10.1", "torch 2.10.1 is there, and docs/guide/install.md tells of none newer than 2.9.1: try it with"),
        ("2.9.1", "the newest torch is 2.9.1, and the tests were run with 2.9.1"),
        ("2.8.0", "the newest torch is 2.8.0, and the tests were run with 2.9.1"),
        ("", "cannot tell whether there is a newer torch than 2.9.1: pip's index does not answer"),
    ],
)
def test_a_newer_one_is_told_of(available: str, said: str) -> None:
    assert newest_torch.sentence("2.9.1", available).startswith(said)


def test_the_table_of_the_guide_is_read() -> None:
    table = "| 3.11.7 | 2.9.1+cpu | 2026 | x |\n| 3.13.0 | 2.10.0+cu130 | 2026 | x |\n"
    assert newest_torch.newest_of_table(table) == "2.10.0"
    page = (ROOT / newest_torch.PAGE).read_text(encoding="utf-8")
    assert "make test-newest-torch" in newest_torch.sentence(newest_torch.newest_of_table(page), "999.0")

"""How ftlaunch is shipped: what the wheel and the sdist must hold, and what continuous integration says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))

import check_dist

ROOT = Path(__file__).parents[2]
WHEEL = [*check_dist.INSTALLED, "ftlaunch-0.1.0.dist-info/METADATA", "ftlaunch-0.1.0.dist-info/licenses/LICENSE"]


@pytest.mark.parametrize(
    ("less", "more", "faults"),
    [
        ("", [], []),
        ("ftlaunch_hooks/py.typed", [], ["ftlaunch_hooks/py.typed is missing"]),
        ("ftlaunch/fault_rules.yaml", [], ["ftlaunch/fault_rules.yaml is missing"]),
        ("ftlaunch-0.1.0.dist-info/licenses/LICENSE", [], ["LICENSE is missing"]),
        ("", ["tests/conftest.py", "tests/harness.py"], ["tests does not belong there"]),
    ],
)
def test_what_a_wheel_must_hold_and_must_not(less: str, more: list[str], faults: list[str]) -> None:
    assert check_dist.installed_faults([*(name for name in WHEEL if name != less), *more]) == faults


@pytest.mark.parametrize(
    ("less", "more", "faults"),
    [
        ("", [], []),
        ("docs/architecture.md", [], ["docs/architecture.md is missing"]),
        ("tests/new.py", [], ["tests/new.py is missing"]),
        ("", [".venv/bin/pip"], [".venv/bin/pip does not belong there"]),
        ("", ["tests/__pycache__/a.pyc"], ["tests/__pycache__/a.pyc does not belong there"]),
    ],
)
def test_what_an_sdist_must_hold_and_must_not(less: str, more: list[str], faults: list[str]) -> None:
    names = [name for name in (*check_dist.SOURCES, "tests/new.py") if name != less]
    assert check_dist.sdist_faults([*names, *more], tracked=["tests/new.py"]) == faults


def run_checks(programs: Path) -> subprocess.CompletedProcess[str]:
    """.ci/run on a machine that has the programs of one folder, and no others."""
    command = [shutil.which("bash") or "bash", str(ROOT / ".ci/run")]
    return subprocess.run(command, env={"PATH": str(programs)}, capture_output=True, text=True, check=False, timeout=60)


def put_programs(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).symlink_to(shutil.which(name) or name)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        (["dirname"], "cannot run the checks: make is not installed\n"),
        (["dirname", "make"], "cannot run the checks: there is no program called python3; set PYTHON to a Python of "
                              "version 3.10 or newer\n"),
    ],
)  # fmt: skip
def test_the_checks_say_what_they_lack(tmp_path: Path, programs: list[str], said: str) -> None:
    put_programs(tmp_path, *programs)
    done = run_checks(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_the_first_check_that_fails_ends_them(tmp_path: Path) -> None:
    """With a `make` that makes nothing, and cannot make `test`."""
    put_programs(tmp_path, "dirname", "bash", "python3")
    (tmp_path / "make").write_text(f'#!{shutil.which("bash")}\n[ "$1" != test ] || exit 2\n')
    (tmp_path / "make").chmod(0o755)
    done = run_checks(tmp_path)
    assert done.returncode == 2
    debian, *told = [line.rsplit(" in ")[0] for line in done.stdout.splitlines()]
    assert debian == "ci: nothing is installed from Debian: not root, or no apt-get"
    passed = [
        f"ci: make {target}{end}" for target in ("setup", "lint", "docs", "check-pythons") for end in ("", " passed")
    ]
    assert told == [*passed, "ci: make test"]
    assert done.stderr.startswith("ci: make test failed with exit code 2 after ")


def test_what_is_said_of_the_checks_is_what_they_run() -> None:
    said = re.findall(r"^\.ci/run +(.*): what", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    runs = re.findall(
        r"^(?:step|for target in) ([a-z -]+)", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert said == [", ".join(word for words in runs for word in words.split())]

"""`ftctl completion`: real shells read it, and complete words with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.ctl import ftctl, journal, started

# What bash does when the tab key is pressed behind these words.
ASKS = """
eval "$(ftctl completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=()
_{program}_completion {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(words: str, cwd: Path) -> list[str]:
    """What bash makes of a line."""
    programs = cwd / "bin"
    programs.mkdir(exist_ok=True)
    for name, module in (("ftctl", "ftlaunch.cli.ctl"), ("ftlaunch", "ftlaunch")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    split = words.split(" ")
    script = ASKS.format(
        words=words.rstrip() + (' ""' if words.endswith(" ") else ""), last=len(split) - 1, program=split[0]
    )
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", script]
    done = subprocess.run(command, check=True, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_commands_runs_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journal(tmp_path / "runs" / "night-3", started())
    journal(tmp_path / "runs" / "night-4", started())
    assert completed("ftctl sta", tmp_path) == ["status"]
    assert completed("ftctl logs ", tmp_path) == ["night-3", "night-4"]
    assert completed("ftctl status night-4", tmp_path) == ["night-4"]
    assert completed("ftlaunch --max-rest", tmp_path) == ["--max-restarts"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_it(shell: str, tmp_path: Path) -> None:
    code, out, err = ftctl("completion", shell, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert "_FTLAUNCH_COMPLETE" in out
    assert "_FTCTL_COMPLETE" in out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], check=True, input=out, text=True, timeout=60)


def test_another_shell_is_refused(tmp_path: Path) -> None:
    code, _, err = ftctl("completion", "csh", cwd=tmp_path)
    assert code == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in err

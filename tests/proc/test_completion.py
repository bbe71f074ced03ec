"""`ftctl completion`: real shells read it, and complete words with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.ctl import ftctl, journal, started
from tests.support.terminals import Terminal

from ftlaunch.history import job_index

# What bash does when the tab key is pressed behind these words.
ASKS = """
eval "$(ftctl completion bash)"
COMP_WORDS=({words}) COMP_CWORD={last} COMPREPLY=()
_{program}_completion {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def environment(cwd: Path) -> dict[str, str]:
    """Variables with which a shell finds the programs of this tree."""
    programs = cwd / "bin"
    programs.mkdir(exist_ok=True)
    for name, module in (("ftctl", "ftlaunch.cli.ctl"), ("ftlaunch", "ftlaunch")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


def completed(words: str, cwd: Path) -> list[str]:
    """What bash makes of a line."""
    env = environment(cwd)
    split = words.split(" ")
    script = ASKS.format(
        words=words.rstrip() + (' ""' if words.endswith(" ") else ""), last=len(split) - 1, program=split[0]
    )
    command = ["bash", "--norc", "-c", script]
    done = subprocess.run(command, check=True, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed (Debian: bash)")
def test_bash_completes_commands_runs_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journal(tmp_path / "runs" / "night-3", started())
    journal(tmp_path / "runs" / "night-4", started())
    assert completed("ftctl sta", tmp_path) == ["status"]
    assert completed("ftctl logs ", tmp_path) == ["night-3", "night-4"]
    assert completed("ftctl status night-4", tmp_path) == ["night-4"]
    assert completed("ftlaunch --max-rest", tmp_path) == ["--max-restarts"]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed (Debian: bash)")
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ftlaunch --on-slow r", ["restart"]),
        ("ftlaunch --rdzv-backend c", ["c10d"]),
        ("ftlaunch --job-id n", ["night"]),
        ("ftctl checkpoints n", ["night"]),
        ("ftctl plan --run n", ["night"]),
        ("ftctl rehearse --max-rest", ["--max-restarts"]),
        ("ftctl rehearse --ste", ["--steps"]),
        ("ftctl rehearse --on-slow r", ["restart"]),
    ],
)
def test_bash_completes_values(line: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these was empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run_dir = journal(tmp_path / "runs" / "night", started("night"))
    subprocess.run([sys.executable, "-m", job_index.__name__, "night", str(run_dir)], check=True)
    assert completed(line, tmp_path) == found


@pytest.mark.long
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed (Debian: fish)")
def test_fish_completes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journal(tmp_path / "runs" / "night", started("night"))
    for line, found in (("ftctl sta", "status"), ("ftctl logs n", "night"), ("ftlaunch --on-slow r", "restart")):
        script = f"ftctl completion fish | source; complete -C '{line}'"
        command = ["fish", "--no-config", "-c", script]
        done = subprocess.run(command, check=True, cwd=tmp_path, env=environment(tmp_path) | {"HOME": str(tmp_path)},
                              capture_output=True, text=True, timeout=120)  # fmt: skip
        assert not done.stderr
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [found]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed (Debian: zsh)")
def test_zsh_completes_when_the_tab_key_is_pressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    journal(tmp_path / "runs" / "night", started("night"))
    (tmp_path / ".zshrc").write_text(
        'autoload -U compinit\ncompinit -u -D\neval "$(ftctl completion zsh)"\nPS1="ready> "\n'
    )
    env = environment(tmp_path) | {"HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    with Terminal(["zsh", "-d", "-i"], 24, 100, env, tmp_path) as shell:
        for typed, found in (("ftctl sta\t", "ftctl status"), ("ftctl logs n\t", "ftctl logs night")):
            shell.wait_for("ready>")
            shell.type(typed)
            assert f"ready> {found}" in shell.wait_for(found)
            shell.type("\x15")  # Ctrl-U: an empty line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_can_read_it(shell: str, tmp_path: Path) -> None:
    code, out, err = ftctl("completion", shell, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert "_FTLAUNCH_COMPLETE" in out
    assert "_FTCTL_COMPLETE" in out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (Debian: {shell})")
    subprocess.run([shell, "-n"], check=True, input=out, text=True, timeout=60)


def test_another_shell_is_refused(tmp_path: Path) -> None:
    code, _, err = ftctl("completion", "csh", cwd=tmp_path)
    assert code == 2
    assert "'csh' is not one of 'bash', 'zsh', 'fish'" in err


@pytest.mark.skipif(shutil.which("tcsh") is None, reason="tcsh is not installed (Debian: tcsh)")
def test_tcsh_reads_what_it_is_given(tmp_path: Path) -> None:
    command = [
        "tcsh", "-f", "-c", "ftlaunch --print-completion tcsh > made; source made; complete ftlaunch"
    ]  # fmt: skip
    done = subprocess.run(
        command, check=True, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert not done.stderr
    assert " max-restarts " in done.stdout
    assert "'n/*/f/'" in done.stdout

"""Many nodes ask for the token of a job at once: one makes it, all have the same, and no other user has it."""

from __future__ import annotations

import multiprocessing
import os
import stat
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from ftlaunch.system.helper_process import PIPE, HelperProcesses
from ftlaunch.system.job_token import TOKEN_VARIABLE, TokenRefused, read_or_make

_RACERS, _RACES = 8, 50


def _race(folder: Path, number: int, start: Barrier) -> None:
    for race in range(_RACES):
        start.wait(60)
        got = read_or_make(folder / f"token_{race}")
        (folder / f"got_{race}_{number}").write_bytes(got)


def test_all_racers_read_the_same(tmp_path: Path) -> None:
    """With the token written under its own name at once (O_EXCL, then a write) a racer reads an empty or half one."""
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(_RACERS)
    racers = [fork.Process(target=_race, args=(tmp_path, number, start)) for number in range(_RACERS)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(120)
    assert [racer.exitcode for racer in racers] == [0] * _RACERS
    for race in range(_RACES):
        tokens = {(tmp_path / f"got_{race}_{number}").read_bytes() for number in range(_RACERS)}
        assert tokens == {(tmp_path / f"token_{race}").read_bytes()}
    assert len({path.read_bytes() for path in tmp_path.glob("token_*")}) == _RACES
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_token_is_long_and_only_ours(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        token = read_or_make(tmp_path / "token")
    finally:
        os.umask(before)
    assert len(bytes.fromhex(token.decode())) == 32
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert read_or_make(tmp_path / "token") == token


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_token_that_others_may_open_is_refused(mode: int, tmp_path: Path) -> None:
    token = read_or_make(tmp_path / "token")
    (tmp_path / "token").chmod(mode)
    with pytest.raises(
        TokenRefused, match=rf"cannot use the token in .*: others may open it \(mode {mode:o}\)"
    ) as refused:
        read_or_make(tmp_path / "token")
    assert token.decode() not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away: run as root")
def test_a_token_of_another_user_is_refused(tmp_path: Path) -> None:
    read_or_make(tmp_path / "token")
    os.chown(tmp_path / "token", 12345, -1)
    with pytest.raises(TokenRefused, match="it belongs to user 12345, not to us"):
        read_or_make(tmp_path / "token")


def test_what_is_no_token_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content in (b"", b"abc", b"g" * 64, b"a" * 65):
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(TokenRefused, match="it is not 64 hexadecimal digits"):
            read_or_make(path)
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(TokenRefused, match="no regular file"):
        read_or_make(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenRefused):
        read_or_make(path)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_or_make(tmp_path / "none" / "token")


def test_a_helper_does_not_get_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "5ecret-of-the-job")
    for env in (None, dict(os.environ)):
        helper = HelperProcesses().start(["env"], stdout=PIPE, env=env)
        told, _ = helper.communicate(timeout=60)
        assert b"PATH=" in told
        assert b"5ecret" not in told

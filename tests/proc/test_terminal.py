"""The follower: what ranks write reaches the terminal whole, and a terminal that takes nothing holds up nobody."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from tests.support.waiting import wait_for

from ftlaunch.reporting.terminal import Terminal


class Screen:
    """A terminal on two files, and logs to follow."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.out, self.err = home / "out", home / "err"
        self.streams = self.out.open("w"), self.err.open("w")
        self.terminal = Terminal(*self.streams)

    def write(self, rank: int, data: bytes) -> None:
        with (self.home / f"rank_{rank}").open("ab") as file:
            file.write(data)

    def follow(self, *ranks: int) -> None:
        self.terminal.follow({rank: self.home / f"rank_{rank}" for rank in ranks})

    def assert_shows(self, text: str) -> None:
        """Assert that this, and nothing else, comes to stand on the terminal."""
        wait_for(lambda: self.out.read_text() == text, f"{text[-99:]!r}")


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path)
    yield screen
    screen.terminal.close()
    for stream in screen.streams:
        stream.close()


def test_lines_of_several_ranks_carry_their_rank(screen: Screen) -> None:
    screen.follow(0, 3)
    screen.write(0, b"one\ntwo\n")
    screen.assert_shows("[0] one\n[0] two\n")
    screen.write(3, b"three\n")
    screen.assert_shows("[0] one\n[0] two\n[3] three\n")


def test_a_line_is_shown_once_it_is_whole(screen: Screen) -> None:
    screen.follow(0, 1)
    screen.write(0, b"half")
    screen.write(1, b"whole\n")
    screen.assert_shows("[1] whole\n")
    screen.write(0, b" a line\nand")
    screen.assert_shows("[1] whole\n[0] half a line\n")


def test_what_was_begun_is_shown_at_the_end(screen: Screen) -> None:
    screen.follow(0, 1)
    screen.write(0, b"last words")
    screen.write(1, b"50 %\r100 %")
    screen.terminal.close()
    assert sorted(screen.out.read_text().splitlines()) == ["[0] last words", "[1] 100 %"]


def test_of_a_progress_bar_only_the_last_state_is_kept(screen: Screen) -> None:
    screen.follow(0)
    for percent in range(100):
        screen.write(0, b"\r%d %%" % percent)
    screen.write(0, b"\r100 %\nnext\n")
    screen.assert_shows("[0] 100 %\n[0] next\n")


def test_windows_line_ends_are_ends(screen: Screen) -> None:
    screen.follow(0)
    screen.write(0, b"one\r\ntwo\r\n")
    screen.assert_shows("[0] one\n[0] two\n")


def test_bytes_that_are_no_text_are_shown_as_such(screen: Screen) -> None:
    screen.follow(0)
    screen.write(0, b"caf\xc3\xa9 \xff\n")
    screen.assert_shows("[0] café \ufffd\n")


def test_a_new_attempt_is_followed_after_the_old_is_read_to_its_end(screen: Screen) -> None:
    screen.write(0, b"x\n" * 200_000 + b"end")
    screen.follow(0)
    screen.follow(1)
    screen.write(1, b"new\n")
    screen.assert_shows("[0] x\n" * 200_000 + "[0] end\n[1] new\n")


def test_nothing_after_the_cut_is_shown(screen: Screen) -> None:
    screen.follow(0)
    screen.write(0, b"before\n")
    screen.terminal.cut()
    screen.write(0, b"stacks\n")
    screen.terminal.close()
    assert screen.out.read_text() == "[0] before\n"


def test_a_log_that_does_not_exist_yet_is_waited_for(screen: Screen) -> None:
    screen.follow(0)
    screen.terminal.say("own")
    wait_for(lambda: screen.err.read_text() == "own\n", "the own line")
    screen.write(0, b"late\n")
    screen.assert_shows("[0] late\n")


def test_own_lines_keep_their_order_and_none_is_lost(screen: Screen) -> None:
    for number in range(500):
        screen.terminal.say(str(number))
    screen.terminal.close()
    assert screen.err.read_text().split() == [str(number) for number in range(500)]


def test_a_live_terminal_shows_the_bar_and_clears_it_for_other_lines(tmp_path: Path) -> None:
    main, secondary = os.openpty()
    os.set_blocking(main, False)
    log = tmp_path / "rank_0"
    log.write_bytes(b"\r10 %\r20 %")
    seen = b""

    def shows(text: bytes) -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(main, 1 << 16)
        return seen.replace(b"\r\n", b"\n") == text

    with open(secondary, "w", closefd=False) as out:
        terminal = Terminal(out, out)
        terminal.follow({0: log})
        wait_for(lambda: shows(b"\r\x1b[K[0] 20 %"), "the bar")
        terminal.say("hello")
        wait_for(lambda: shows(b"\r\x1b[K[0] 20 %\r\x1b[Khello\n"), "the own line")
        terminal.close()
        whole = b"\r\x1b[K[0] 20 %\r\x1b[Khello\n[0] 20 %\n"
        assert wait_for(lambda: shows(whole), "the bar's last state, as a line")
    os.close(main)
    os.close(secondary)


def test_a_bar_whose_states_end_in_a_carriage_return_is_overwritten(tmp_path: Path) -> None:
    """As `print(..., end="\\r")` writes it. Taken out: each state was shown behind all those before it."""
    main, secondary = os.openpty()
    os.set_blocking(main, False)
    log = tmp_path / "rank_0"
    seen = b""

    def shows(text: bytes) -> bool:
        nonlocal seen
        with contextlib.suppress(BlockingIOError):
            seen += os.read(main, 1 << 16)
        return seen == text

    with open(secondary, "w", closefd=False) as out, log.open("wb", buffering=0) as file:
        terminal = Terminal(out, out)
        terminal.follow({0: log})
        shown = b""
        for percent in (10, 20, 30):
            file.write(b"%d %%\r" % percent)
            shown += b"\r\x1b[K[0] %d %%" % percent
            wait_for(lambda shown=shown: shows(shown), f"the bar at {percent} %")
        terminal.close()
    assert shows(shown + b"\r\x1b[K[0] 30 %\r\n")
    os.close(main)
    os.close(secondary)


# --- terminals that take nothing --------------------------------------------------------------------------


def pipe() -> tuple[int, TextIO]:
    read, write = os.pipe()
    return read, open(write, "w")


def terminal_command(log: Path, what: str) -> list[str]:
    code = (
        "import sys; from pathlib import Path; from ftlaunch.reporting.terminal import Terminal\n"
        f"t = Terminal(); t.follow({{0: Path(sys.argv[1])}}); t.{what}; sys.exit(75)"
    )
    return [sys.executable, "-c", code, str(log)]


def run_terminal(log: Path, out: int, what: str) -> subprocess.Popen[bytes]:
    """A program that shows a log on `out`, with Python's ordinary buffers, and exits with 75."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(terminal_command(log, what), stdout=out, stderr=out, env=buffered)


def test_a_blocked_pipe_blocks_neither_say_nor_the_end(tmp_path: Path) -> None:
    read, out = pipe()
    log = tmp_path / "rank_0"
    log.write_bytes(b"x" * 1023 + b"\n" + b"y" * 1_000_000)
    err = (tmp_path / "err").open("w")
    before = set(threading.enumerate())
    terminal = Terminal(out, err)
    terminal.follow({0: log})
    wait_for(lambda: log.write_bytes(log.read_bytes()[:2000] + b"\n" * 300_000) and True, "more")
    for _ in range(5000):  # one that blocked would not return: nobody reads
        terminal.say("z" * 1000)
    terminal.follow({1: log})
    terminal.close(timeout=0.1)
    os.close(read)  # the thread gets EPIPE, and ends
    terminal.close()
    assert set(threading.enumerate()) <= before, "its thread has ended"
    out.close()


def test_a_closed_pipe_raises_nothing_and_own_lines_still_come(tmp_path: Path) -> None:
    read, out = pipe()
    os.close(read)
    err = (tmp_path / "err").open("w")
    log = tmp_path / "rank_0"
    log.write_bytes(b"x\n" * 100_000)
    before = set(threading.enumerate())
    terminal = Terminal(out, err)
    terminal.follow({0: log})
    terminal.say("the job has failed")
    terminal.close()
    assert set(threading.enumerate()) <= before, "its thread has ended"
    assert (tmp_path / "err").read_text() == "the job has failed\n"
    out.close()


def test_at_exit_nobody_waits_for_a_blocked_pipe(tmp_path: Path) -> None:
    """With buffered streams the interpreter would wait for the thread's, or abort over it."""
    (tmp_path / "log").write_bytes(b"y\n" * 500_000)
    read, out = pipe()
    program = run_terminal(tmp_path / "log", out.fileno(), "say('x'); t.close(0.1)")
    assert program.wait(60) == 75
    os.close(read)
    out.close()


def test_a_stream_closed_from_the_start_is_nowhere(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"y\n" * 100)
    command = f"{shlex.join(terminal_command(tmp_path / 'log', 'close()'))} >&- 2>&-"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 75


def test_with_everything_closed_a_program_still_ends_with_its_own_exit_code(tmp_path: Path) -> None:
    """Python's own last flush of stdout would fail, and the code would become 120."""
    (tmp_path / "log").write_bytes(b"y\n" * 100)
    read, out = pipe()
    os.close(read)
    assert run_terminal(tmp_path / "log", out.fileno(), "say('x'); t.close()").wait(60) == 75
    out.close()


def test_of_a_line_of_megabytes_the_beginning_is_shown_once(tmp_path: Path) -> None:
    """Taken out (a long line is broken into several): 20 MB of an error's message on the terminal."""
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_bytes(b"first\n" + b"ValueError: " + b"x" * 20_000_000 + b"\nlast\n" + b"y" * 200_000)
    with out.open("w") as file:
        terminal = Terminal(out=file, err=file)
        terminal.follow({0: log})
        wait_for(lambda: b"[0] yyy" in out.read_bytes(), "a line that is not ended")
        terminal.close()
    first, cut, last, endless = out.read_text().splitlines()
    assert (first, last) == ("[0] first", "[0] last")
    assert cut.startswith("[0] ValueError: xxx")
    assert cut.endswith("x ... (cut here: the log has the whole line)")
    assert len(cut) < 70_000
    assert endless.endswith("y ... (cut here: the log has the whole line)")

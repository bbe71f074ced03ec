"""Runs the console blocks of a documentation page in an empty directory, and compares the output with the page."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.history.journal import read_events
from tests.support.console_blocks import ROOT, Block, Command, blocks, joined, pattern
from tests.support.leftovers import carriers
from tests.support.waiting import wait_for

LONGEST = 600.0  # seconds for one command; on an idle machine each needs less than a tenth
_INTERRUPTED = 130  # exit code


@dataclass
class Shell:
    """A running command of a page, with all output that the page shows so far."""

    place: str
    command: Command
    process: subprocess.Popen[bytes]
    log: Path
    shown: list[str] = field(default_factory=list)

    def show(self, text: str) -> None:
        """Wait until the output begins with everything that the page shows up to `text`."""
        self.shown.append(text)

        def there() -> bool:
            if pattern("\n".join(self.shown)).match(self.output):
                return True
            assert self.process.poll() is None, self._failure("has ended without showing what the page shows")
            return False

        wait_for(there, self._failure("to show it"), LONGEST)

    def interrupt(self) -> None:
        """Press Ctrl-C, which must end the command."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(LONGEST) in (0, _INTERRUPTED), self._failure("has not ended by Ctrl-C")

    def end(self) -> None:
        """Wait for exit code 0, and for the output that the page shows."""
        try:
            code = self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            raise AssertionError(self._failure("does not end")) from None
        shown = "\n".join(self.shown)
        assert code == 0, self._failure(f"has ended with exit code {code}")
        assert not shown.strip() or pattern(shown).fullmatch(self.output), self._failure("shows something else")

    @property
    def output(self) -> str:
        return joined(self.log.read_text(errors="replace"))

    def _failure(self, what: str) -> str:
        page = "\n".join(self.shown)
        return f"{self.place}: `{self.command.line}` {what}\n--- page\n{page}\n--- output\n{self.log.read_text()}"


class Console:
    """The terminals of a reader who does what a page says, with an own home and an own list of jobs."""

    def __init__(
        self, directory: Path, tag: str, binaries: Path = Path(sys.executable).parent,
        environ: Mapping[str, str] = os.environ,
    ) -> None:  # fmt: skip
        """Make the directories of the reader.

        Args:
            directory: an empty directory.
            tag: NAME=VALUE, an environment variable by which processes that are left are found.
            binaries: the directory of the commands.
            environ: the variables with which the terminals begin.
        """
        self.directory = directory
        self.tag = tag
        self.work = directory / "work"
        home = directory / "home"
        self.work.mkdir()
        home.mkdir()
        name, _, value = tag.partition("=")
        path = f"{binaries}{os.pathsep}{environ['PATH']}"
        self._environment = {
            **environ,
            "PATH": path,
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            name: value,
        }
        self._shells: list[Shell] = []
        self._first: Shell | None = None

    def follow(self, page: Path) -> int:
        """Do what the page says, block by block; return the number of console blocks."""
        todo = [block for block in blocks(page) if not block.reason]
        for block, after in zip(todo, [*todo[1:], None], strict=True):
            self._follow(block, after is not None and "second terminal" in after.comments)
        self._end_first()
        return sum(block.kind == "console" for block in todo)

    def _follow(self, block: Block, left_running: bool) -> None:
        if "file" in block.comments:
            (self.work / block.comments["file"]).write_text(block.text)
            return
        if "with" in block.comments:
            for file in block.comments["with"].split(", "):
                name, source = file.split(" = ")
                self._bring(name, source)
        if "second terminal" in block.comments:
            for command in block.commands:
                self._run(block, command)
            return
        if block.more:
            assert self._first is not None, f"{block.place}: no command goes on in the first terminal"
            self._first.show(block.more)
        for n, command in enumerate(block.commands, 1):
            self._end_first()
            if left_running and n == len(block.commands):
                self._first = self._start(block, command)
                self._first.show(command.shown)
            else:
                self._run(block, command)

    def _run(self, block: Block, command: Command) -> None:
        shell = self._start(block, command)
        if "until Ctrl-C" in block.comments:
            shell.show(command.shown)
            shell.interrupt()
            return
        shell.shown.append(command.shown)
        shell.end()

    def _start(self, block: Block, command: Command) -> Shell:
        log = self.directory / f"output_{len(self._shells)}"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", command.line], cwd=self.work, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=self._environment,
            )  # fmt: skip
        self._shells.append(Shell(block.place, command, process, log))
        return self._shells[-1]

    def _end_first(self) -> None:
        if self._first is not None:
            self._first.end()
            self._first = None

    def _bring(self, name: str, source: str) -> None:
        """Put a file of the repository, or a file that another page contains, into the working directory.

        Args:
            name: the path of the file in the working directory.
            source: the path of the file, or of the page, in the repository.
        """
        path = ROOT / source
        place = self.work / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            place.write_text(next(block.text for block in blocks(path) if block.comments.get("file") == name))
        else:
            shutil.copy(path, place)

    def dispose(self) -> None:
        """Kill all processes and delete all memory that the page has left."""
        for pid in carriers(self.tag):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for shell in self._shells:
            shell.process.wait()
        for run_dir in self.run_dirs:
            for event in read_events(run_dir):
                if event["event"] == "job_started":
                    shutil.rmtree(event["memory_dir"], ignore_errors=True)

    @property
    def run_dirs(self) -> list[Path]:
        """The run dirs of all jobs that the page has started."""
        return sorted(journal.parent for journal in self.work.glob("runs/*/events.jsonl"))

"""Makes docs/terminal.svg: a real job in a real terminal, killed, frozen, stopped and started again.

    python scripts/docs/terminal_svg.py

The command runs under a pseudo terminal, in a directory that is removed afterwards. rich, which import-linter brings,
draws only what the command writes there. The commands after `$` and the notes after `#` are this script's own: they say
what was done to the job.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ftlaunch.history.journal import read_events
from ftlaunch.system.control_socket import SOCKET, ask

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs/terminal.svg"
_ERASE = "\r\x1b[K"  # takes a line back before another one is written in its place
COLUMNS = 118
STEPS = 240
ARGUMENTS = ["--nproc-per-node", "2", "--hang-timeout", "3s", "scripts/train_gpt.py", "--steps", str(STEPS)]


class Session:
    """A terminal on which commands run one after another."""

    def __init__(self, home: Path) -> None:
        """Open the terminal. home: the working directory, which gets the job's directories."""
        self.home = home
        self.text = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._master = -1

    def start(self) -> subprocess.Popen[bytes]:
        """Start the job on a pseudo terminal of its own."""
        self.text += f"$ ftlaunch {' '.join(ARGUMENTS)}\n"
        self._master, slave = pty.openpty()
        command = [sys.executable, "-m", "ftlaunch", *ARGUMENTS]
        self._process = subprocess.Popen(command, cwd=self.home, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        return self._process

    def note(self, what: str) -> None:
        """Add a note about what is done to the job."""
        self.text += f"{_ERASE}# {what}\n"

    def until(self, ready: Callable[[], object], seconds: float = 120.0) -> None:
        """Read what the command writes until `ready()` or its end. Raises SystemExit after `seconds`."""
        deadline = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > deadline:
                raise SystemExit(f"waited {seconds:.0f} s in vain; so far:\n{self.text}")
            if select.select([self._master], [], [], 0.02)[0]:
                try:
                    self.text += os.read(self._master, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
                except OSError:  # the last process on this terminal has closed it
                    return

    def finish(self) -> int:
        """Read the rest of what the command writes; return its exit code."""
        assert self._process is not None
        self.until(lambda: False)
        os.close(self._master)
        return self._process.wait()

    def events(self, name: str) -> list[dict[str, object]]:
        """Return the journal's events of one name."""
        runs = list(self.home.glob("runs/*/events.jsonl"))
        return [event for event in read_events(runs[0].parent) if event["event"] == name] if runs else []

    def pid_at(self, rank: int, step: int) -> int:
        """Wait until all ranks have made `step` steps; return the pid of `rank`."""
        found: list[int] = []

        def reached() -> bool:
            try:
                status = ask(Path(str(self.events("job_started")[-1]["memory_dir"])) / SOCKET, {"do": "status"})
            except (OSError, ValueError, IndexError):
                return False
            ranks = status["ranks"]
            if status["state"] == "running" and len(ranks) == 2 and all(each["step"] >= step for each in ranks):
                found.append(ranks[rank]["pid"])
            return bool(found)

        self.until(reached)
        return found[0]


def session(home: Path) -> str:
    """Return what the terminal shows. Raises SystemExit if the job does not do what the picture promises."""
    terminal = Session(home)
    job = terminal.start()
    pid = terminal.pid_at(1, STEPS // 4)
    terminal.note(f"kill -KILL {pid}, which is rank 1")
    os.kill(pid, signal.SIGKILL)
    terminal.until(lambda: len(terminal.events("recovered")) == 1)
    pid = terminal.pid_at(0, STEPS // 2)
    terminal.note(f"kill -STOP {pid}, which is rank 0")
    os.kill(pid, signal.SIGSTOP)
    terminal.until(lambda: len(terminal.events("recovered")) == 2)
    terminal.pid_at(0, STEPS * 3 // 4)
    terminal.note(f"kill -TERM {job.pid}, the supervisor")
    job.send_signal(signal.SIGTERM)
    if terminal.finish() != 75:
        raise SystemExit(f"the job did not stop with a checkpoint:\n{terminal.text}")
    terminal.start()
    if terminal.finish() != 0:
        raise SystemExit(f"the job did not end well:\n{terminal.text}")
    return terminal.text.replace(f"{home}/", "")


def shown(text: str) -> list[str]:
    """Return the lines that stay on a terminal; a progress bar, which overwrites itself, leaves its last state."""
    lines = [line.split("\r")[-1].replace("\x1b[K", "").rstrip() for line in text.split("\n")]
    return [line for line in lines if line]


def draw(text: str) -> str:
    """Return the session as SVG: commands bold, notes grey, the supervisor's lines in colour."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        for line in shown(text):
            console.print(Text(line, style=_style(line)))
        svg = console.export_svg(title="ftlaunch")
    # The fonts of the reader's machine will do: a document must not download any.
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def _style(line: str) -> str:
    if line.startswith("$ "):
        return "bold"
    if line.startswith("# "):
        return "bright_black italic"
    if not line.startswith("ftlaunch: "):
        return "white"
    return "bold #ffd866" if re.search(r"was killed|is hung|stopping", line) else "#7ee787"


def main() -> None:
    """Run the job, and draw it."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "scripts").mkdir()
        shutil.copy(ROOT / "scripts/train_gpt.py", Path(home) / "scripts")
        text = session(Path(home))
    OUT.write_text(draw(text), encoding="utf-8")
    print("\n".join(shown(text)))
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()

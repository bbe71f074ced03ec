"""Parses the ```console blocks of a page: what is typed, what is shown, and what a comment above the block says.

A comment stands directly above a block:

    <!-- file: NAME -->             a block of text: this file is there before the next command
    <!-- with: NAME = PATH, ... --> these files of the repository, or the block `file: NAME` of a page, are there
    <!-- not run: REASON -->        the block cannot run here
    <!-- second terminal -->        typed while the last command of the block before goes on
    <!-- until Ctrl-C -->           each command shows this output and goes on until Ctrl-C is pressed

A block without a command, behind a block of a second terminal, is what the first terminal goes on to show.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?P<comments>(?:^ *<!--(?:(?!-->).)*-->\n+)*)^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_COMMENT = re.compile(r"<!-- (file|with|not run|second terminal|until Ctrl-C)(?:: (.*?))? -->", re.DOTALL)
_UNIT = r"(?: (?:us|ms|s|min|h|d|[KMGT]iB|bytes)\b)"
_NUMBER = re.compile(rf"\d[\d,]*(?:\.\d+)?{_UNIT}?(?: \d+{_UNIT})*")


@dataclass(frozen=True)
class Command:
    """A typed line, with its continuation lines, and the output that the page shows for it."""

    line: str
    shown: str


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    page: Path
    number: int
    """the line of the page on which the text begins"""
    kind: str
    commands: tuple[Command, ...]
    more: str
    """what is shown before the first command, by a command that goes on in the first terminal"""
    comments: dict[str, str]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.number}"

    @property
    def reason(self) -> str:
        """Why the block cannot run here; empty if it can."""
        return " ".join(self.comments.get("not run", "").split())


def blocks(page: Path) -> list[Block]:
    """Return the console blocks and the file blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        comments = {name: value or "" for name, value in _COMMENT.findall(match["comments"])}
        if match["kind"] == "console" or "file" in comments:
            indent = len(match["indent"])
            lines = [line[indent:] for line in match["text"].splitlines()]
            more, commands = _commands(lines) if match["kind"] == "console" else ("", ())
            number = text.count("\n", 0, match.start("text")) + 1
            inside = "\n".join(lines) + "\n"
            found.append(
                Block(
                    page=page,
                    number=number,
                    kind=match["kind"],
                    commands=tuple(commands),
                    more=more,
                    comments=comments,
                    text=inside,
                )
            )
    return found


def _commands(lines: list[str]) -> tuple[str, tuple[Command, ...]]:
    """Return what is shown before the first command, and the commands."""
    more: list[str] = []
    typed: list[tuple[list[str], list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            typed.append(([line[2:]], []))
        elif typed and not typed[-1][1] and typed[-1][0][-1].endswith("\\"):
            typed[-1][0].append(line)
        else:
            (typed[-1][1] if typed else more).append(line)
    return "\n".join(more), tuple(Command("\n".join(words), "\n".join(shown)) for words, shown in typed)


def pattern(shown: str) -> re.Pattern[str]:
    """Return the pattern of an output that a page shows as `shown`: `...` matches anything, a number any other number.

    A number includes its unit: 278 ms may be 1.3 s another time. The pattern is for text from `joined()`, because line
    breaks do not matter.
    """
    parts = [part.strip() for part in joined(shown).split("...")]
    return re.compile(".*?".join(_NUMBER.pattern.join(map(re.escape, _NUMBER.split(part))) for part in parts))


def joined(output: str) -> str:
    """Return output in one line, with one space between words."""
    return " ".join(output.split())

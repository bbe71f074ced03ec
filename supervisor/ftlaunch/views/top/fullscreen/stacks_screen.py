"""The screen of a rank's stacks in `ftctl top`.

The screen shows the rank's answer, or what /proc shows, or, after the user agreed, what the rank wrote on a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType

from ftlaunch.common.formatting import printable
from ftlaunch.views.top.fullscreen.dialogs import AnswerScreen, Question
from ftlaunch.views.top.rank_stacks import NoStacks, RankStacks

_OFFER = (
    "s again: the rank is interrupted by a signal and writes its stacks itself, as for an autopsy; you are asked before"
)


class StacksScreen(AnswerScreen):
    """The stacks of one rank."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "repeat", "Again"),
    ]

    def __init__(self, stacks: RankStacks) -> None:
        super().__init__(f"stacks of rank {stacks.rank}", f"asking rank {stacks.rank} ...")
        self._stacks = stacks
        self._answered = True  # whether the worker server gave the last answer

    def answer(self) -> Iterable[str]:
        """Return the rank's stacks; without an answer what /proc shows, and what the user can do."""
        lines = self._tried(self._stacks.ask)
        self._answered = not isinstance(lines, str)
        if not isinstance(lines, str):
            return lines
        offer = [_OFFER] if self._stacks.interruptible else []
        return [lines, *offer, "", *self._stacks.seen()]

    def action_repeat(self) -> None:
        """Ask once more; a rank that gave no answer is interrupted after the user agreed."""
        if self._answered or not self._stacks.interruptible:
            self.ask(self.answer)
            return
        question = (
            f"Interrupt rank {self._stacks.rank}? A signal interrupts its main thread, in a system call, too; Python"
            " goes on as if nothing had been. y: interrupt it; n: leave it alone"
        )
        self.app.push_screen(Question(question), self._on_answer)

    def _on_answer(self, yes: bool | None) -> None:
        if yes:
            self.ask(self._interrupted)

    def _interrupted(self) -> Iterable[str]:
        lines = self._tried(self._stacks.interrupt)
        return [lines] if isinstance(lines, str) else ["it was interrupted, and wrote:", "", *lines]

    @staticmethod
    def _tried(question: Callable[[], list[str]]) -> list[str] | str:
        """Return the answer, or a sentence why there is none."""
        try:
            return question()
        except NoStacks as refusal:
            return printable(str(refusal))

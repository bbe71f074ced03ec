"""What `ftctl top` shows in front of the job: lines to read, and the question before a stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer, Vertical
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Log, RichLog, Static

_LINES = 20_000  # that are kept to scroll back to


class LinesScreen(Screen[None]):
    """Lines under a title, a log for example. They are read in a thread, again and again: each time what has come."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, read: Callable[[], Iterable[str]], every: float) -> None:
        """read: what has come since it was called before. every: seconds between calls."""
        super().__init__()
        self._heading, self._read, self._every = title, read, every

    def compose(self) -> ComposeResult:
        """See textual.screen."""
        yield Static(self._heading, classes="title", markup=False)
        yield Log(max_lines=_LINES)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read."""
        self.query_one(Log).focus()
        self._load()
        self.set_interval(self._every, self._load)

    @work(thread=True, group="lines", exclusive=True)
    def _load(self) -> None:
        lines = list(self._read())
        if lines and self.is_attached:
            self.app.call_from_thread(self._add, lines)

    def _add(self, lines: list[str]) -> None:
        if self.is_attached:
            self.query_one(Log).write_lines(lines)


class LiveScreen(Screen[None]):
    """A few lines as they are now: looked at again and again, without a thread."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, look: Callable[[], Iterable[str]], every: float) -> None:
        """look: all lines as they are now. every: seconds between looks."""
        super().__init__()
        self._heading, self._look, self._every = title, look, every

    def compose(self) -> ComposeResult:
        """See textual.screen."""
        yield Static(self._heading, classes="title", markup=False)
        with ScrollableContainer():
            yield Static(id="lines", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one(ScrollableContainer).focus()
        self._show()
        self.set_interval(self._every, self._show)

    def _show(self) -> None:
        self.query_one("#lines", Static).update(Text("\n".join(self._look()), no_wrap=True))


class AnswerScreen(Screen[None]):
    """The answer to a question that takes a while: wrapped lines, which another answer takes the place of."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, asking: str) -> None:
        """asking: what is said while there is no answer yet."""
        super().__init__()
        self._heading, self._asking = title, asking

    def compose(self) -> ComposeResult:
        """See textual.screen."""
        yield Static(self._heading, classes="title", markup=False)
        yield RichLog(wrap=True, markup=False, min_width=1, max_lines=_LINES, auto_scroll=False)
        yield Footer()

    def on_mount(self) -> None:
        """Ask."""
        self.query_one(RichLog).focus()
        self.ask(self.answer)

    def answer(self) -> Iterable[str]:
        """What is shown at first; called in a thread."""
        raise NotImplementedError

    def ask(self, question: Callable[[], Iterable[str]]) -> None:
        """Show what a question gives; it is asked in a thread."""
        self._show([self._asking])
        self._load(question)

    @work(thread=True, group="lines", exclusive=True)
    def _load(self, question: Callable[[], Iterable[str]]) -> None:
        lines = list(question())
        if self.is_attached:
            self.app.call_from_thread(self._show, lines)

    def _show(self, lines: Iterable[str]) -> None:
        if self.is_attached:
            log = self.query_one(RichLog)
            log.clear()
            for line in lines:
                log.write(line)


class Question(ModalScreen[bool]):
    """Yes or no; everything but `y` is no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q,enter", "dismiss(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """See textual.screen."""
        with Vertical(id="question"):
            yield Static(self._text, markup=False)
        yield Footer()

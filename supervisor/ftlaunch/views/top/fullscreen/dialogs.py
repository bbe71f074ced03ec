"""The screens that cover the job in `ftctl top`: lines to read, answers that take a while, and yes-or-no questions."""

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

_MAX_LINES = 20_000  # kept for scrolling back


class LinesScreen(Screen[None]):
    """Growing lines under a title, such as a log. A worker thread reads the new lines at an interval."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, read: Callable[[], Iterable[str]], interval_seconds: float) -> None:
        """Create the screen.

        Args:
            title: the title.
            read: returns the lines since its last call; runs on a worker thread.
            interval_seconds: time between calls.
        """
        super().__init__()
        self._heading = title
        self._read = read
        self._interval_seconds = interval_seconds

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(self._heading, classes="title", markup=False)
        yield Log(max_lines=_MAX_LINES)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to read at intervals."""
        self.query_one(Log).focus()
        self._load()
        self.set_interval(self._interval_seconds, self._load)

    @work(thread=True, group="lines", exclusive=True)
    def _load(self) -> None:
        lines = list(self._read())
        if lines and self.is_attached:
            self.app.call_from_thread(self._add, lines)

    def _add(self, lines: list[str]) -> None:
        if self.is_attached:
            self.query_one(Log).write_lines(lines)


class LiveScreen(Screen[None]):
    """A few changing lines under a title, replaced at an interval, without a thread."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, read_lines: Callable[[], Iterable[str]], interval_seconds: float) -> None:
        """Create the screen.

        Args:
            title: the title.
            read_lines: returns all lines as of now; must be fast.
            interval_seconds: time between calls.
        """
        super().__init__()
        self._heading = title
        self._read_lines = read_lines
        self._interval_seconds = interval_seconds

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(self._heading, classes="title", markup=False)
        with ScrollableContainer():
            yield Static(id="lines", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Show the lines, and replace them at intervals from now on."""
        self.query_one(ScrollableContainer).focus()
        self._show()
        self.set_interval(self._interval_seconds, self._show)

    def _show(self) -> None:
        self.query_one("#lines", Static).update(Text("\n".join(self._read_lines()), no_wrap=True))


class AnswerScreen(Screen[None]):
    """The answer to a question that takes a while, as wrapped lines. A later answer replaces the lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss", "Back"),
    ]

    def __init__(self, title: str, asking: str) -> None:
        """Create the screen. asking: the text while there is no answer yet."""
        super().__init__()
        self._heading = title
        self._asking = asking

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(self._heading, classes="title", markup=False)
        yield RichLog(wrap=True, markup=False, min_width=1, max_lines=_MAX_LINES, auto_scroll=False)
        yield Footer()

    def on_mount(self) -> None:
        """Ask the first question, `answer`."""
        self.query_one(RichLog).focus()
        self.ask(self.answer)

    def answer(self) -> Iterable[str]:
        """Return the first lines to show; runs on a worker thread. Subclasses define this."""
        raise NotImplementedError

    def ask(self, question: Callable[[], Iterable[str]]) -> None:
        """Ask a question on a worker thread, and show the lines that it returns."""
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
    """A yes-or-no question. The result is True for `y`, and False for every other way to leave."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "dismiss(True)", "Yes"),
        Binding("n,escape,q,enter", "dismiss(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        with Vertical(id="question"):
            yield Static(self._text, markup=False)
        yield Footer()

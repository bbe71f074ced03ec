"""A scrolling list of ranks that renders only visible lines, so that a thousand ranks cost as much as twenty."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ftlaunch.views.top.view import RankLayout, RankRow

_MARGIN = 2  # columns for the mark of the chosen rank
_TITLE = Style(bold=True)
_CHOSEN = Style(reverse=True)
_NOTED = Style(bold=True)


class RankTable(ScrollView, can_focus=True):
    """A line for each rank below a line of titles. The chosen rank stays chosen wherever its line moves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Up", show=False),
        Binding("down", "move(1)", "Down", show=False),
        Binding("pageup", "move_page(-1)", "Page up", show=False),
        Binding("pagedown", "move_page(1)", "Page down", show=False),
        Binding("home", "move_to(0)", "First", show=False),
        Binding("end", "move_to(-1)", "Last", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._rows: Sequence[RankRow] = ()
        self._several = False
        self._layout = RankLayout((), several=False, width=None)
        self._place = 0
        self._moved = False  # whether the user has chosen a rank; until then the worst rank is chosen

    @property
    def chosen(self) -> int | None:
        """The chosen rank; None if there are no ranks."""
        return self._rows[self._place].rank if self._rows else None

    def show(self, rows: Sequence[RankRow], *, several: bool) -> None:
        """Show ranks. several: whether the job has several nodes."""
        chosen = self.chosen if self._moved else None
        self._rows = rows
        self._several = several
        self._lay_out()
        places = (place for place, row in enumerate(rows) if row.rank == chosen)
        self._place = next(places, min(self._place, max(len(rows) - 1, 0)) if self._moved else 0)
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self._scroll_to_chosen()

    def on_resize(self) -> None:
        """Choose the columns again for the new width."""
        self._lay_out()

    def _lay_out(self) -> None:
        self._layout = RankLayout(self._rows, several=self._several, width=self.size.width - _MARGIN)

    def render_line(self, y: int) -> Strip:
        """Render the titles on line 0, and the visible ranks below."""
        place = y - 1 + self.scroll_offset.y
        width = self.size.width
        if not y and self._rows:
            return _strip(f"  {self._layout.head()}", width, _TITLE)
        if not self._rows or place >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row = self._rows[place]
        chosen = place == self._place
        text = f"{'>' if chosen else ' '} {self._layout.line(row)}"
        if chosen:
            return _strip(text, width, _CHOSEN)
        return _strip(text, width, _NOTED if row.note else Style())

    def action_move(self, lines: int) -> None:
        """Choose the rank `lines` lines below; above for a negative number."""
        self.action_move_to(min(max(self._place + lines, 0), len(self._rows) - 1))

    def action_move_page(self, pages: int) -> None:
        """Choose the rank `pages` pages below; above for a negative number."""
        self.action_move(pages * max(self.size.height - 1, 1))

    def action_move_to(self, place: int) -> None:
        """Choose the rank at a place of the list; -1 is the last."""
        if self._rows:
            self._place = place % len(self._rows)
            self._moved = True
            self._scroll_to_chosen()

    def _scroll_to_chosen(self) -> None:
        """Scroll so that a line chosen by the user is visible below the titles, and redraw."""
        shown = max(self.size.height - 1, 1)
        if self._moved:
            top = min(max(self.scroll_offset.y, self._place - shown + 1), self._place)
            self.scroll_to(y=top, animate=False)
        self.refresh(Region(0, 0, self.size.width, self.size.height))


def _strip(text: str, width: int, style: Style) -> Strip:
    return Strip([Segment(text, style)]).adjust_cell_length(width, style).crop(0, width)

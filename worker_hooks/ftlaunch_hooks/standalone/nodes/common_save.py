"""A save of all nodes, word by word: there is room; every node has written; it is committed.

The first node prepares the directory and commits; each word is waited for by all. A node that fails says so in the
place of its next word, so no node waits for a word that never comes.
"""

from __future__ import annotations

from ftlaunch_contract.pages.page import NONE
from ftlaunch_hooks.standalone.nodes.leader_group import LeaderGroup
from ftlaunch_hooks.standalone.settings import AloneError


class CommonSave:
    """One save after another, in the saver's thread of the first rank of each node."""

    def __init__(self, group: LeaderGroup, *, first: bool) -> None:
        """first: whether this is the first node."""
        self._group, self._first = group, first
        self._writing = self._over = NONE  # steps
        self._lost = ""  # why the nodes cannot speak any more

    def prepared(self, step: int, made: bool) -> bool:
        """Whether the first node has made room for `step`; it says whether it has. Raises AloneError."""
        there = self._heard(made)
        self._writing, self._over = (step, self._over) if there else (NONE, step)
        return there

    def written(self, step: int, done: bool) -> bool:
        """Whether all nodes have written their shards of `step`. Raises AloneError."""
        self._check()
        try:
            everywhere = self._group.all_say_yes(done)
        except AloneError as error:
            self._lost = str(error)
            raise
        if not everywhere:
            self._over = step
        return everywhere

    def committed(self, step: int, done: bool) -> bool:
        """Whether the first node has committed `step`; it says whether it has. Raises AloneError."""
        self._over = step
        return self._heard(done)

    def give_up(self, step: int) -> None:
        """This node has failed: say so in the place of the words of `step` that are missing. Raises AloneError."""
        if self._over == step:
            return
        if self._writing == step or self.prepared(step, made=False):
            self.written(step, done=False)

    def _heard(self, word: bool) -> bool:
        self._check()
        try:
            return self._group.hear_first([word])[0] == [1]
        except AloneError as error:
            self._lost = str(error)
            raise

    def _check(self) -> None:
        if self._lost:
            raise AloneError(self._lost)

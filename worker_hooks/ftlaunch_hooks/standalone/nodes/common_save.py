"""Takes all nodes through a save in three exchanges: the directory is made, every node has written, it is committed.

The first node makes the directory and commits. All nodes wait for each exchange. A node that fails says so in its next
exchange (`CommonSave.give_up`), so that no node waits for an exchange that never comes.
"""

from __future__ import annotations

from ftlaunch_contract.pages.page import NONE
from ftlaunch_hooks.standalone.nodes.leader_group import LeaderGroup
from ftlaunch_hooks.standalone.settings import AloneError


class CommonSave:
    """The exchanges of one save after another. Runs in the saver thread of the first rank of each node."""

    def __init__(self, group: LeaderGroup, *, first: bool) -> None:
        """Prepare.

        Args:
            group: the group of all nodes' first ranks, used by this object only.
            first: whether this is the first node.
        """
        self._group = group
        self._first = first
        self._writing = NONE  # step for which the directory was made
        self._over = NONE  # last step whose exchanges are over
        self._lost = ""  # why the nodes cannot talk any more

    def prepared(self, step: int, made: bool) -> bool:
        """Exchange whether the directory for `step` was made.

        Args:
            step: the step to save.
            made: whether the first node has made the directory; counts on the first node only.

        Returns:
            Whether the first node has made the directory.

        Raises:
            AloneError: another node is gone, or was gone at an earlier exchange.
        """
        is_made, _ = self._broadcast_first(made)
        self._note_begun(step, is_made)
        return is_made

    def begun(self, step: int, folder: str) -> str:
        """Exchange where in a checkpoint store the nodes save `step`, in the place of `prepared`.

        Args:
            step: the step to save.
            folder: the folder that the first node has named; empty if it cannot. Counts on the first node only.

        Returns:
            The first node's folder; empty if there is none.

        Raises:
            AloneError: another node is gone, or was gone at an earlier exchange.
        """
        is_named, folder = self._broadcast_first(bool(folder), folder)
        self._note_begun(step, is_named)
        return folder

    def _note_begun(self, step: int, is_begun: bool) -> None:
        self._writing = step if is_begun else NONE
        if not is_begun:
            self._over = step

    def written(self, step: int, done: bool) -> bool:
        """Exchange whether the shards of `step` were written.

        Args:
            step: the step to save.
            done: whether all ranks of this node have written their shards.

        Returns:
            Whether all ranks of all nodes have.

        Raises:
            AloneError: another node is gone, or was gone at an earlier exchange.
        """
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
        """Exchange whether `step` was committed.

        Args:
            step: the step to save.
            done: whether the first node has committed; counts on the first node only.

        Returns:
            Whether the first node has committed.

        Raises:
            AloneError: another node is gone, or was gone at an earlier exchange.
        """
        self._over = step
        return self._broadcast_first(done)[0]

    def give_up(self, step: int) -> None:
        """Report this node's failure in the exchanges of `step` that are still due. Raises AloneError."""
        if self._over == step:
            return
        if self._writing == step or self.prepared(step, made=False):
            self.written(step, done=False)

    def _broadcast_first(self, answer: bool, text: str = "") -> tuple[bool, str]:
        """Return the first node's answer and text."""
        self._check()
        try:
            [number], text = self._group.broadcast_first([answer], text)
        except AloneError as error:
            self._lost = str(error)
            raise
        return number == 1, text

    def _check(self) -> None:
        if self._lost:
            raise AloneError(self._lost)

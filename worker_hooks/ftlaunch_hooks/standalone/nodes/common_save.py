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
        is_made = self._broadcast_first(made)
        if is_made:
            self._writing = step
        else:
            self._writing = NONE
            self._over = step
        return is_made

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
        return self._broadcast_first(done)

    def give_up(self, step: int) -> None:
        """Report this node's failure in the exchanges of `step` that are still due. Raises AloneError."""
        if self._over == step:
            return
        if self._writing == step or self.prepared(step, made=False):
            self.written(step, done=False)

    def _broadcast_first(self, answer: bool) -> bool:
        """Return the first node's answer."""
        self._check()
        try:
            return self._group.broadcast_first([answer])[0] == [1]
        except AloneError as error:
            self._lost = str(error)
            raise

    def _check(self) -> None:
        if self._lost:
            raise AloneError(self._lost)

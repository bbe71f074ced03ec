"""Sentences for the user about variables, and a writer that writes each name once."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ftlaunch_hooks.observe.reachable.walk import shown
from ftlaunch_hooks.process.say import say

_NAMES_IN_LINE = 6

ALSO_KEPT = (
    "also kept: {names} (changed by the training loop; saved with each snapshot, and put back at a resume;"
    " attach(keep=False) turns that off)"
)
NOT_SAVED = (
    "what the training loop keeps from step to step in {names} is not saved: after a resume it begins anew, and the run"
    " is not exact where training uses it; attach what has a state_dict(), and put the rest into an object that has"
    " one, or take it from the number of the step (attach(ignore=[...]) says that it does not matter)"
)
DIFFERS = (
    "this process lacks what an earlier attempt had in {names}: it is not saved, and the run is not exact where"
    " training uses it; attach what has a state_dict(), and put the rest into an object that has one, or take it from"
    " the number of the step (attach(ignore=[...]) says that it does not matter)"
)
OTHERWISE_MADE = (
    "{names} differs from the same in an earlier attempt, and training never changed it: the script has made it"
    " otherwise this time (from a set, a file or random numbers without a seed), and the run is not exact where"
    " training uses it; make it the same at each start, or attach it (attach(ignore=[...]) says that it does not"
    " matter)"
)


class SentenceWriter:
    """Writes sentences about names to the rank's log."""

    def __init__(self) -> None:
        self._written: set[tuple[str, str]] = set()

    def say(self, sentence: str, paths: Collection[str], rank: Callable[[str], tuple[int, str]]) -> None:
        """Write a sentence about the paths that are new for this sentence, in lines of a few names each.

        Args:
            sentence: a sentence with a place `{names}`.
            paths: paths of values.
            rank: key that sorts the paths.
        """
        names = list(dict.fromkeys(shown(path) for path in sorted(paths, key=rank)))
        new = [name for name in names if (sentence, name) not in self._written]
        self._written.update((sentence, name) for name in new)
        for first in range(0, len(new), _NAMES_IN_LINE):
            listed = ", ".join(f"`{name}`" for name in new[first : first + _NAMES_IN_LINE])
            say(sentence.format(names=listed))

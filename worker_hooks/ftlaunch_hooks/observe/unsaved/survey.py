"""What a process has that the attached objects do not save: saved with them where that works, and compared at a resume.

As the loop begins, and at each snapshot, everything that the loop can reach is fingerprinted. What differs from the
beginning is state of the training. Its values are saved and put back when the resumed loop comes to the same place.
What cannot be saved is named, in the life in which it is found and in the next one, where it differs.
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from ftlaunch_hooks.observe.reachable.attached import visit_attached
from ftlaunch_hooks.observe.reachable.fingerprints import is_time
from ftlaunch_hooks.observe.reachable.kinds import Category
from ftlaunch_hooks.observe.reachable.positions import is_lost_iterator
from ftlaunch_hooks.observe.reachable.put_back import put_back
from ftlaunch_hooks.observe.reachable.saved_elsewhere import SavedElsewhere
from ftlaunch_hooks.observe.reachable.scopes import is_loop_of_script, place_of, running_scopes, visit_scopes
from ftlaunch_hooks.observe.reachable.value_codec import Encoder
from ftlaunch_hooks.observe.reachable.walk import ATTACHED, KnownModule, LoopWalk, Reached
from ftlaunch_hooks.observe.unsaved.sentences import ALSO_KEPT, DIFFERS, NOT_SAVED, OTHERWISE_MADE, SentenceWriter
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.state.adapter import variables_kept_by
from ftlaunch_hooks.state.collector import Collector
from ftlaunch_hooks.state.loop_variables import NAME, RestoredVariables
from ftlaunch_hooks.state.random_numbers.rng import Buffers
from ftlaunch_hooks.state.state import Choices, RankState
from ftlaunch_hooks.tensors.json_codec import Json, StateError

_SMALL = 64 << 10  # bytes of a tensor that is copied, so that a snapshot's files keep their layout
_FEEDS = frozenset((Category.TENSOR, Category.ARRAY, Category.GENERATOR, Category.MODULE))
_SAID_OF_CONSTANTS = frozenset((Category.TENSOR, Category.ARRAY, Category.CONTAINER, Category.MODULE))
_NEVER_MATTERS = frozenset((Category.OPAQUE, Category.LOADER, Category.CLASS, Category.OPTIMIZER))
_HELD_BY_HALVES = frozenset((Category.OBJECT, Category.OPAQUE, Category.ITERATOR, Category.LOADER))


@dataclass
class _Known:
    """What is known of the variables over all lives of the job; kept with each snapshot."""

    begin: dict[str, str] = field(default_factory=dict)
    """path -> fingerprint as the loop began, in the newest life for what has not changed since"""
    changed: dict[str, None] = field(default_factory=dict)
    """paths that were something else than that at a snapshot, in order"""

    @classmethod
    def of(cls, tree: Mapping[str, Json]) -> _Known:
        """What an earlier life has saved."""
        return cls(dict(tree["begin"]), dict.fromkeys(tree["changed"]))


class Survey:
    """Of one training, on one rank."""

    def __init__(self, objects: Mapping[str, Any], choices: Choices, state: RankState) -> None:
        """objects: as attach() takes them, the frozen ones included. state: of the rank, restored."""
        self._objects, self._state = objects, state
        self._frozen = {
            name: one for name, one in objects.items() if name in choices.frozen and isinstance(one, nn.Module)
        }
        self.kept_by_objects = variables_kept_by(objects.values())
        self._keep, self._ignore = choices.keep, frozenset(choices.ignore) | self.kept_by_objects
        self._restored = state.restored_variables
        self._known = _Known() if self._restored is None else _Known.of(self._restored.tree)
        self._marks: dict[str, tuple[tuple[int, int], ...]] | None = None  # as the loop began in this life
        self._own_loop = self._is_over = False
        self._at_first_loop: tuple[list[Json], dict[str, Tensor]] | None = None
        self._buffers = Buffers()
        self._modules: dict[int, KnownModule] = {}
        self._newest: dict[str, Json] = {}  # what was collected last
        self._writer = SentenceWriter()
        self._kept_told = False

    def tell_lost(self, names: Collection[str]) -> None:
        """Say that what the loop keeps under these names is not saved; each name once."""
        lost = [name for name in names if name not in self._ignore]
        self._writer.say(NOT_SAVED, lost, lambda name: (0, name))

    # --- as the loop begins -----------------------------------------------------------------------------------

    def begin(self, frame: FrameType | None) -> None:
        """A loop begins, at a place to which it comes again between two steps.

        What an earlier life has saved at this place is put back and compared.
        """
        self._guarded(self._begin, frame)

    def pass_loop(self, frame: FrameType | None) -> None:
        """A loop is passed by that ended before the step at which the job goes on.

        Here the process is as an earlier life was when its first loop began. What the script does from here to the loop
        in which the job goes on is done once more, and is undone there.
        """
        self._guarded(self._pass_loop, frame)

    def first_step_made(self, frame: FrameType | None, *, own: bool) -> None:
        """The first step of this life is made. own: in a loop of the script's own, which never began here.

        What was not put back before is lost: those values are behind one more step already.
        """
        self._guarded(functools.partial(self._give_up_restored, frame, own=own))

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Nothing of the script's runs in here, and still: an error in a look shall not end a training."""
        if self._is_over:
            return None
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - training goes on without the look, and that is said
            self._is_over = True
            self._restored = None
            say(
                f"cannot look at the variables of the training loop: {error!r}: what is not saved is not told, and no"
                " variable is kept: a resumed run is not exact where training uses one"
            )
            return None

    def _begin(self, frame: FrameType | None) -> None:
        scopes = running_scopes(frame)
        if not is_loop_of_script(frame, scopes):
            self._give_up_restored(frame, own=True)  # a library may go on preparing behind this moment
            return
        if self._restored is not None:
            if place_of(scopes) != self._restored.tree["place"]:
                return
            self._put_back(frame, self._restored)
            self._drop_restored()
        if self._marks is None:
            self._note_beginning(self._walk(frame))
        else:
            self._note_new(self._walk(frame))

    def _note_new(self, walk: LoopWalk) -> None:
        """Take what a function has made before its loop, since the loop around that began, as it is now.

        A function that is called in each pass of the loop around makes that in each life by itself.
        """
        assert self._marks is not None
        for path, one in walk.reached.items():
            if path not in self._known.begin and path not in self._known.changed:
                self._known.begin[path] = one.text
                if one.marks:
                    self._marks[path] = one.marks

    def _pass_loop(self, frame: FrameType | None) -> None:
        if self._restored is None or self._at_first_loop is not None:
            return
        walk = self._walk(frame)
        self._tell_of_constants(walk)
        values: list[Json] = []
        tensors: dict[str, Tensor] = {}

        def copy(name: str, tensor: Tensor) -> str:
            if tensor.nbytes > _SMALL:
                raise StateError("too large to be held twice")
            tensors[f"{path}{name}"] = tensor.clone()
            return f"{path}{name}"

        encoder = Encoder(walk.first_paths, walk.is_saved.path_of)
        for path, one in walk.reached.items():
            is_small = one.category in (Category.SCALAR, Category.CONTAINER, Category.TENSOR) and one.text != ATTACHED
            if is_small and path not in self._known.changed and self._can_keep(path, one, ()):
                with contextlib.suppress(StateError):
                    tree = encoder.encode(one.value, path, copy)
                    values.append([one.text, [path, one.parent, one.how, one.key, tree]])
        self._at_first_loop = values, tensors

    def _undo(self, walk: LoopWalk) -> None:
        """Put back what the script has changed since the first loop that was passed by, and no earlier life had."""
        if self._at_first_loop is None:
            self._tell_of_constants(walk)
            return
        values, tensors = self._at_first_loop
        moved = [entry for text, entry in values if _text_at(walk, entry[0], walk.is_saved) != text]
        put_back(walk, moved, tensors, walk.is_saved)
        self._at_first_loop = None

    def _give_up_restored(self, frame: FrameType | None, *, own: bool) -> None:
        if self._marks is not None:
            return
        walk = self._walk(frame)
        if self._restored is not None:
            self._tell_of_constants(walk)
            if not own:
                self._tell_of_differences(walk, self._restored.tree)
            self._drop_restored()
        self._own_loop = own
        self._note_beginning(walk)

    def _drop_restored(self) -> None:
        self._restored = self._state.restored_variables = None

    def _note_beginning(self, walk: LoopWalk) -> None:
        self._marks = {path: one.marks for path, one in walk.reached.items() if one.marks}
        # What the script has made otherwise than in an earlier life is where this life begins from.
        new = {path: one.text for path, one in walk.reached.items() if path not in self._known.changed}
        self._known.begin = {**self._known.begin, **new}

    def _put_back(self, frame: FrameType | None, restored: RestoredVariables) -> None:
        before = self._walk(frame)
        self._undo(before)
        put_back(before, restored.tree["values"] if self._keep else (), restored.tensors, before.is_saved)
        self._tell_of_differences(self._walk(frame), restored.tree)

    def _tell_of_differences(self, walk: LoopWalk, tree: Mapping[str, Json]) -> None:
        """Name what is not as it was when it was saved."""
        unkept: Mapping[str, bool] = tree["unkept"]
        saved = walk.is_saved
        differs = [
            path
            for path, text in tree["now"].items()
            if _text_at(walk, path, saved) != text and unkept.get(path, True) and not walk.is_ignored(path)
        ]
        self._say(DIFFERS, differs, walk)

    def _tell_of_constants(self, walk: LoopWalk) -> None:
        """Name what did not change in an earlier life, and is something else now: the script has made it otherwise."""
        other = []
        for path, text in self._known.begin.items():
            now = walk.reached.get(path)
            if now is None or path in self._known.changed or now.text == text:
                continue
            if walk.is_saved.is_kept_by_loops(now.value):
                continue
            is_data = now.category in _SAID_OF_CONSTANTS if now.of_script else now.category in _FEEDS
            if is_data and _has_same_form(now.text, text) and not _is_made_by_library(walk, path):
                other.append(path)
        self._say(OTHERWISE_MADE, other, walk)

    # --- at a snapshot ----------------------------------------------------------------------------------------

    def collect(self, collector: Collector) -> Mapping[str, Json]:
        """See LoopVariables: what has changed since the loop began, and what is to be compared."""
        if self._restored is not None:
            return self._restored.collect(collector)
        if self._marks is None:
            return {}
        collected: Mapping[str, Json] | None = self._guarded(self._collect, sys._getframe(1), collector)
        return collected or {}

    def _collect(self, frame: FrameType, collector: Collector) -> Mapping[str, Json]:
        scopes = running_scopes(frame)
        walk = self._walk(frame)
        self._note_changes(walk)
        changed = {path: one for path, one in walk.reached.items() if path in self._known.changed}
        saved = walk.is_saved
        values, unkept = self._encode(changed, walk, collector, saved)
        lost = [path for path, matters in unkept.items() if matters]
        self._say(NOT_SAVED, lost, walk)
        self._tell_of_kept([path for path, *_ in values], walk)
        return {
            "place": place_of(scopes),
            "begin": self._known.begin,
            "changed": list(self._known.changed),
            "now": {path: _text_at(walk, path, saved) for path in changed},
            "values": values,
            "unkept": unkept,
        }

    def _note_changes(self, walk: LoopWalk) -> None:
        assert self._marks is not None
        begin, marks = self._known.begin, self._marks
        for path, one in walk.reached.items():
            if walk.is_saved.is_kept_by_loops(one.value):
                continue
            if begin.get(path) != one.text or (one.marks and marks.get(path, one.marks) != one.marks):
                self._known.changed[path] = None

    def _encode(
        self, changed: Mapping[str, Reached], walk: LoopWalk, collector: Collector, saved: SavedElsewhere
    ) -> tuple[list[Json], dict[str, bool]]:
        """The values that can be saved, and the paths of the others: whether each of them matters to the training."""
        encoder = Encoder(walk.first_paths, saved.path_of)
        values: list[Json] = []
        unkept: dict[str, bool] = {}
        halves = self._half_made(changed, walk)
        for path, one in changed.items():
            if one.text == ATTACHED and saved.path_of(one.value) is None:
                continue  # the attached object brings it back
            if one.parent in unkept or not self._can_keep(path, one, halves):
                unkept[path] = self._matters(one, saved, is_held_by_library=walk.named_holder(path) != path)
                continue
            tensors: list[tuple[str, Tensor]] = []

            def note(name: str, tensor: Tensor, path: str = path, found: list[Any] = tensors) -> str:
                found.append((f"{path}{name}", tensor))
                return f"{NAME}.{path}{name}".replace("@", "@@")

            try:
                tree = encoder.encode(one.value, path, note)
                for name, tensor in tensors:
                    collector.put((NAME, name), self._still(name, tensor))
            except StateError:
                unkept[path] = self._matters(one, saved, is_held_by_library=walk.named_holder(path) != path)
                continue
            values.append([path, one.parent, one.how, one.key, tree])
        return values, unkept

    def _can_keep(self, path: str, one: Reached, halves: Collection[str]) -> bool:
        if not self._keep or self._own_loop or one.how in ("attached", "hook") or one.parent in halves:
            return False
        if one.text.startswith("module ") and not self._known.begin.get(path, "").startswith("module "):
            return False  # nobody makes it again
        return not any(path == name or path.startswith(f"{name}.") for name in self._frozen)

    def _half_made(self, changed: Mapping[str, Reached], walk: LoopWalk) -> set[str]:
        """Objects that have got something since the loop began that cannot be saved: the rest of them is not put back.

        A flag that says that the thing is there, without the thing, would be worse than neither.
        """
        return {
            one.parent
            for path, one in changed.items()
            if one.how in ("attribute", "slot")
            and one.category in _HELD_BY_HALVES
            and self._known.begin.get(path, "None") == "None"
        }

    def _still(self, name: str, tensor: Tensor) -> Tensor:
        return self._buffers.keep(name, tensor) if tensor.nbytes <= _SMALL else tensor

    def _matters(self, one: Reached, saved: SavedElsewhere, *, is_held_by_library: bool) -> bool:
        """Whether training may use a value: of what installed packages hold, tensors and the like alone."""
        if one.text == ATTACHED:
            return True  # another attached object than at the beginning
        if one.category in _NEVER_MATTERS or one.how == "given":
            return False
        if one.category is Category.ITERATOR:
            # an iterator within a library's object is read by that library, and its loader is told of by itself
            return one.of_script and not is_held_by_library and is_lost_iterator(one.value, saved)
        if is_time(one.value):
            return False
        is_of_script = one.of_script and not (is_held_by_library and self._own_loop)
        return is_of_script or (one.category in _FEEDS and not self._own_loop)

    # --- looking and telling ----------------------------------------------------------------------------------

    def _walk(self, frame: FrameType | None) -> LoopWalk:
        walk = LoopWalk(self._saved_now(), self._ignore, self._modules)
        scopes = running_scopes(frame)
        if is_loop_of_script(frame, scopes):
            visit_scopes(walk, scopes)
        visit_attached(walk, self._objects, self._frozen)
        self._modules = walk.known_modules
        return walk

    def _saved_now(self) -> SavedElsewhere:
        generators = [*self._state.own_generators(), random._inst, torch.default_generator]
        found = {f"generator {number}": one for number, one in enumerate(generators)}
        return SavedElsewhere({**self._objects, **found})

    def _say(self, sentence: str, paths: Collection[str], walk: LoopWalk) -> None:
        """Say a sentence about values, by the names of what people can do something about."""
        order = _rank_in(walk)
        ranked: dict[str, tuple[int, str]] = {}
        for path in _outermost(paths):
            name = walk.named_holder(path)
            ranked[name] = min(order(path), ranked.get(name, order(path)))
        self._writer.say(sentence, _outermost(ranked), ranked.__getitem__)

    def _tell_of_kept(self, paths: Collection[str], walk: LoopWalk) -> None:
        if paths and not self._kept_told:
            self._kept_told = True
            self._say(ALSO_KEPT, paths, walk)


def _rank_in(walk: LoopWalk) -> Callable[[str], tuple[int, str]]:
    """What ranks names: what feeds training before what only counts."""

    def rank(path: str) -> tuple[int, str]:
        one = walk.reached.get(path)
        if one is None:
            return 1, path
        if one.category in _FEEDS:
            return 0, path
        return (2 if one.category is Category.CONTAINER else 4 if one.category is Category.SCALAR else 3), path

    return rank


def _is_made_by_library(walk: LoopWalk, path: str) -> bool:
    """Whether an object of an installed package holds a value, and is to make it: caches, gradients, iterators.

    What torch's data sets and samplers hold, the script has given them.
    """
    holder = walk.reached.get(walk.named_holder(path))
    if holder is None or walk.named_holder(path) == path:
        return False
    return not type(holder.value).__module__.startswith("torch.")


def _text_at(walk: LoopWalk, path: str, saved: SavedElsewhere) -> str | None:
    """The fingerprint of a value; of an attached object which one it is, where that can be said."""
    one = walk.reached.get(path)
    if one is None:
        return None
    return (saved.path_of(one.value) or one.text) if one.text == ATTACHED else one.text


def _outermost(paths: Collection[str]) -> list[str]:
    """Without those of which an owner is among the paths as well."""
    known = set(paths)
    return [path for path in paths if not any(owner in known for owner in _owners(path))]


def _owners(path: str) -> Iterable[str]:
    for at, sign in enumerate(path):
        if sign in ".[" and at:
            yield path[:at]


def _has_same_form(text: str, other: str) -> bool:
    """Whether two fingerprints are of values of one kind and length: a part of a list is no list made otherwise."""
    return text.rpartition(" ")[0] == other.rpartition(" ")[0] and " " in text

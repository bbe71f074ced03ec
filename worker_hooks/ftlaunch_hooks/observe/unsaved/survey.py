"""Saves the variables of the training loop that no attached object saves, and compares them at a resume.

When the loop begins, and at each snapshot, everything that the loop can reach is fingerprinted. A value whose
fingerprint has changed since the beginning is state of the training. The value is saved with the snapshot, and put back
when the resumed loop comes to the same place. A value that cannot be saved is named to the user, in the process that
finds the value and in the next process if the value differs there.

UnsavedState calls a Survey as loops begin, RankState at each snapshot, both in the thread that trains. No code of the
script's runs here. Words of this folder:

Life: one process of the rank in one attempt.
Path: the name of a value, the same in every life that runs the same script (`train.averages.x`).
Place: function and loop in which the script is (`scopes.place_of`), the same text in every life.
Fingerprint: a short text about a value (`fingerprints.py`). Lives can compare it. Of large tensors it samples numbers.
Mark: id and version counter of a tensor. It shows a change that the fingerprint's samples miss, but in one life only.
Kept: saved by the Survey itself, with each snapshot. Values that it cannot save are "unkept".
Saved (`walk.is_saved`, SavedElsewhere): held by an attached object, which saves the value.
Kept by loops: saved by job.batches().
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

_COPIED_BYTES = 64 << 10
"""largest tensor that is copied into a buffer of its own, so that a snapshot's files keep their layout"""
_FEEDS = frozenset((Category.TENSOR, Category.ARRAY, Category.GENERATOR, Category.MODULE))
"""categories of values that training computes with"""
_NAMED_CONSTANTS = frozenset((Category.TENSOR, Category.ARRAY, Category.CONTAINER, Category.MODULE))
"""categories of the script's values that are named where training never changed them, and a later life differs"""
_NEVER_MATTERS = frozenset((Category.OPAQUE, Category.LOADER, Category.CLASS, Category.OPTIMIZER))
_UNSAVED_PARTS = frozenset((Category.OBJECT, Category.OPAQUE, Category.ITERATOR, Category.LOADER))
"""categories of values that cannot be saved, and without which the object that holds them is not put back either"""


@dataclass
class _History:
    """The changes of variables over all lives of the job, as each snapshot saves them."""

    begin: dict[str, str] = field(default_factory=dict)
    """fingerprints at the beginning of the loop, by path; of the newest life for values that have not changed since"""
    changed: dict[str, None] = field(default_factory=dict)
    """paths of values that differed from `begin` at a snapshot, in order"""

    @classmethod
    def of(cls, tree: Mapping[str, Json]) -> _History:
        """Read the history that an earlier life has saved."""
        return cls(dict(tree["begin"]), dict.fromkeys(tree["changed"]))


class Survey:
    """The unsaved variables of one training on one rank. It is the LoopVariables of the rank's state."""

    def __init__(self, objects: Mapping[str, Any], choices: Choices, state: RankState) -> None:
        """Take over the variables that were restored, to be put back as the loop begins.

        Args:
            objects: attached objects by name, including the frozen ones.
            choices: the options of attach().
            state: the rank's state, restored.
        """
        self._objects = objects
        self._state = state
        self._frozen = {
            name: target for name, target in objects.items() if name in choices.frozen and isinstance(target, nn.Module)
        }
        self.kept_by_objects = variables_kept_by(objects.values())
        """names of variables that attached objects save themselves"""
        self._keep = choices.keep
        self._ignore = frozenset(choices.ignore) | self.kept_by_objects
        self._restored = state.restored_variables
        self._history = _History() if self._restored is None else _History.of(self._restored.tree)
        self._marks: dict[str, tuple[tuple[int, int], ...]] | None = None
        """marks of the tensors in values, by path, as the loop began in this life; None before that"""
        self._cannot_put_back = False
        """whether values are not kept, because no later life could put them back as this loop begins"""
        self._has_failed = False
        self._at_first_loop: tuple[list[Json], dict[str, Tensor]] | None = None
        """pairs of a fingerprint and an encoded value, as `collect` returns values, and the tensors of the values by
        key: small values at the first loop that was passed by in this life"""
        self._buffers = Buffers()
        self._modules: dict[int, KnownModule] = {}
        self._writer = SentenceWriter()
        self._are_kept_reported = False

    def report_lost(self, names: Collection[str]) -> None:
        """Tell the user that the values that the loop keeps under these names are not saved. Each name is told once."""
        lost = [name for name in names if name not in self._ignore]
        self._writer.say(NOT_SAVED, lost, lambda name: (0, name))

    # --- as the loop begins -----------------------------------------------------------------------------------

    def begin(self, frame: FrameType | None) -> None:
        """Put back and compare the values that an earlier life has saved at this place, as a loop begins.

        Nothing is put back in a loop of a library's, or at a place where the earlier life did not make its snapshot.

        Args:
            frame: a frame at the place to which the loop comes again between two steps.
        """
        self._guarded(self._begin, frame)

    def pass_loop(self, frame: FrameType | None) -> None:
        """Note the values at a loop that ended before the step at which the job resumes.

        At the first such loop, the values are as they were in an earlier life when its first loop began. From there to
        the loop in which the job resumes, the script runs code that the earlier life has run already, between steps
        that are not made again. `begin` therefore gives small values, where that code has changed them, the contents
        noted here before it puts back what the snapshot has.

        Args:
            frame: the frame of the loop that is passed by.
        """
        self._guarded(self._pass_loop, frame)

    def first_step_made(self, frame: FrameType | None, *, cannot_put_back: bool) -> None:
        """Give up the restored values that were not put back before the first step of this life was made.

        Those values belong before the step that is made now.

        Args:
            frame: the frame of the loop that has made the step.
            cannot_put_back: whether `begin` is never called for this loop, because it is the script's own, without
                steps(). Values are not kept then, and those that differ from an earlier life's are not told now.
        """
        self._guarded(functools.partial(self._give_up_restored, frame, cannot_put_back=cannot_put_back))

    def _guarded(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function. After its first exception, return None always: an error of ours must not end a training."""
        if self._has_failed:
            return None
        try:
            return call(*arguments)
        except Exception as error:  # noqa: BLE001 - training goes on without the survey, and the user is told
            self._has_failed = True
            self._restored = None
            say(
                f"cannot look at the variables of the training loop: {error!r}: what is not saved is not told, and no"
                " variable is kept: a resumed run is not exact where training uses one"
            )
            return None

    def _begin(self, frame: FrameType | None) -> None:
        scopes = running_scopes(frame)
        if not is_loop_of_script(frame, scopes):
            # A library makes the steps. It may still prepare its loop after this moment, and its adapter saves what it
            # needs.
            self._give_up_restored(frame, cannot_put_back=True)
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
        """Note values that are new since an outer loop began, as they are when an inner loop begins.

        A function that is called in each pass of the outer loop makes these values in every life by itself.
        """
        assert self._marks is not None
        for path, reached in walk.reached.items():
            if path not in self._history.begin and path not in self._history.changed:
                self._history.begin[path] = reached.text
                if reached.marks:
                    self._marks[path] = reached.marks

    def _pass_loop(self, frame: FrameType | None) -> None:
        if self._restored is None or self._at_first_loop is not None:
            return
        walk = self._walk(frame)
        self._report_constants(walk)
        values: list[Json] = []
        tensors: dict[str, Tensor] = {}

        def copy(name: str, tensor: Tensor) -> str:
            if tensor.nbytes > _COPIED_BYTES:
                raise StateError("too large to be held twice")
            tensors[f"{path}{name}"] = tensor.clone()
            return f"{path}{name}"

        encoder = Encoder(walk.first_paths, walk.is_saved.path_of)
        for path, reached in walk.reached.items():
            has_small_kind = reached.category in (Category.SCALAR, Category.CONTAINER, Category.TENSOR)
            is_small = has_small_kind and reached.text != ATTACHED
            if is_small and path not in self._history.changed and self._can_keep(path, reached, ()):
                with contextlib.suppress(StateError):
                    tree = encoder.encode(reached.value, path, copy)
                    values.append([reached.text, [path, reached.parent, reached.how, reached.key, tree]])
        self._at_first_loop = values, tensors

    def _undo(self, walk: LoopWalk) -> None:
        """Put back values that the script has changed since the first loop that was passed by."""
        if self._at_first_loop is None:
            self._report_constants(walk)
            return
        values, tensors = self._at_first_loop
        differing = [entry for text, entry in values if _fingerprint_at(walk, entry[0], walk.is_saved) != text]
        put_back(walk, differing, tensors=tensors, saved=walk.is_saved)
        self._at_first_loop = None

    def _give_up_restored(self, frame: FrameType | None, *, cannot_put_back: bool) -> None:
        """Drop the restored values, and take the values of this moment for the beginning. Later calls do nothing."""
        if self._marks is not None:
            return
        walk = self._walk(frame)
        if self._restored is not None:
            self._report_constants(walk)
            if not cannot_put_back:
                self._report_differences(walk, self._restored.tree)
            self._drop_restored()
        self._cannot_put_back = cannot_put_back
        self._note_beginning(walk)

    def _drop_restored(self) -> None:
        self._restored = self._state.restored_variables = None

    def _note_beginning(self, walk: LoopWalk) -> None:
        self._marks = {path: reached.marks for path, reached in walk.reached.items() if reached.marks}
        # A value that the script has made differently than an earlier life is the beginning for this life.
        new = {path: reached.text for path, reached in walk.reached.items() if path not in self._history.changed}
        self._history.begin = {**self._history.begin, **new}

    def _put_back(self, frame: FrameType | None, restored: RestoredVariables) -> None:
        walk = self._walk(frame)
        self._undo(walk)
        values = restored.tree["values"] if self._keep else ()
        put_back(walk, values, tensors=restored.tensors, saved=walk.is_saved)
        self._report_differences(self._walk(frame), restored.tree)

    def _report_differences(self, walk: LoopWalk, tree: Mapping[str, Json]) -> None:
        """Name the values that differ from an earlier life's at the snapshot, where they matter."""
        unkept: Mapping[str, bool] = tree["unkept"]
        saved = walk.is_saved
        differs = [
            path
            for path, text in tree["now"].items()
            if _fingerprint_at(walk, path, saved) != text and unkept.get(path, True) and not walk.is_ignored(path)
        ]
        self._say(DIFFERS, differs, walk)

    def _report_constants(self, walk: LoopWalk) -> None:
        """Name the values that training never changed, and that the script has made differently in this life."""
        made_differently = []
        for path, text in self._history.begin.items():
            now = walk.reached.get(path)
            if now is None or path in self._history.changed or now.text == text:
                continue
            if walk.is_saved.is_kept_by_loops(now.value):
                continue
            is_data = now.category in (_NAMED_CONSTANTS if now.of_script else _FEEDS)
            if is_data and _has_same_form(now.text, text) and not _is_made_by_library(walk, path):
                made_differently.append(path)
        self._say(OTHERWISE_MADE, made_differently, walk)

    # --- at a snapshot ----------------------------------------------------------------------------------------

    def collect(self, collector: Collector) -> Mapping[str, Json]:
        """Return the values that have changed since the loop began, and the fingerprints for the next life.

        Call in the thread that trains, from within the loop: the functions of the script are found by the frames from
        the caller outwards.

        Args:
            collector: gets the tensors of the values.

        Returns:
            A tree for JSON. It is the one that was restored as long as its values were neither put back nor given up.
            Otherwise it is empty before the loop has begun, and after an error of ours. Its keys:
            place: where the script is, a text.
            begin: fingerprints at the beginning of the loop, by path.
            changed: list of the paths of values that have changed since then in any life.
            now: fingerprints at this moment, by path, of the changed values that the loop can reach.
            values: list of [path, parent, how, key, tree], one for each value that is kept. `parent` is the path of the
                holder, `how` and `key` say how it holds the value (`walk.Reached`), `tree` is the encoded value.
            unkept: for each changed value that cannot be saved, by path, whether it matters to training.
        """
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
        changed = {path: reached for path, reached in walk.reached.items() if path in self._history.changed}
        saved = walk.is_saved
        values, unkept = self._encode(changed, walk, collector=collector, saved=saved)
        lost = [path for path, matters in unkept.items() if matters]
        self._say(NOT_SAVED, lost, walk)
        self._report_kept([path for path, *_ in values], walk)
        return {
            "place": place_of(scopes),
            "begin": self._history.begin,
            "changed": list(self._history.changed),
            "now": {path: _fingerprint_at(walk, path, saved) for path in changed},
            "values": values,
            "unkept": unkept,
        }

    def _note_changes(self, walk: LoopWalk) -> None:
        assert self._marks is not None
        begin = self._history.begin
        for path, reached in walk.reached.items():
            if walk.is_saved.is_kept_by_loops(reached.value):
                continue
            has_other_marks = reached.marks and self._marks.get(path, reached.marks) != reached.marks
            if begin.get(path) != reached.text or has_other_marks:
                self._history.changed[path] = None

    def _encode(
        self, changed: Mapping[str, Reached], walk: LoopWalk, collector: Collector, saved: SavedElsewhere
    ) -> tuple[list[Json], dict[str, bool]]:
        """Encode the values that can be saved.

        Returns:
            The encoded values, each as [path, parent, how, key, tree]; and, by path, whether each value that cannot be
            saved matters to training.
        """
        encoder = Encoder(walk.first_paths, saved.path_of)
        values: list[Json] = []
        unkept: dict[str, bool] = {}
        incomplete = self._incomplete_objects(changed)
        for path, reached in changed.items():
            if reached.text == ATTACHED and saved.path_of(reached.value) is None:
                continue  # the attached object brings the value back
            if reached.parent in unkept or not self._can_keep(path, reached, incomplete):
                unkept[path] = self._matters(reached, saved, is_held_by_library=walk.named_holder(path) != path)
                continue
            tensors: list[tuple[str, Tensor]] = []

            def note(name: str, tensor: Tensor, path: str = path, found: list[Any] = tensors) -> str:
                found.append((f"{path}{name}", tensor))
                return f"{NAME}.{path}{name}".replace("@", "@@")

            try:
                tree = encoder.encode(reached.value, path, note)
                for name, tensor in tensors:
                    collector.put((NAME, name), self._copy_if_small(name, tensor))
            except StateError:
                unkept[path] = self._matters(reached, saved, is_held_by_library=walk.named_holder(path) != path)
                continue
            values.append([path, reached.parent, reached.how, reached.key, tree])
        return values, unkept

    def _can_keep(self, path: str, reached: Reached, incomplete: Collection[str]) -> bool:
        """Return whether a value may be saved. incomplete: paths of objects whose attributes are not saved."""
        if (
            not self._keep
            or self._cannot_put_back
            or reached.how in ("attached", "hook")
            or reached.parent in incomplete
        ):
            return False
        if reached.text.startswith("module ") and not self._history.begin.get(path, "").startswith("module "):
            return False  # the next life does not make this module before the loop
        return not any(path == name or path.startswith(f"{name}.") for name in self._frozen)

    def _incomplete_objects(self, changed: Mapping[str, Reached]) -> set[str]:
        """Return the paths of objects that have got a part since the loop began that cannot be saved.

        The other attributes of such an object are not put back either. A flag that says that the part exists, without
        the part, would be worse than neither.
        """
        return {
            reached.parent
            for path, reached in changed.items()
            if reached.how in ("attribute", "slot")
            and reached.category in _UNSAVED_PARTS
            and self._history.begin.get(path, "None") == "None"
        }

    def _copy_if_small(self, name: str, tensor: Tensor) -> Tensor:
        return self._buffers.keep(name, tensor) if tensor.nbytes <= _COPIED_BYTES else tensor

    def _matters(self, reached: Reached, saved: SavedElsewhere, *, is_held_by_library: bool) -> bool:
        """Return whether training may use a value. Of values that installed packages hold, only `_FEEDS` matter."""
        if reached.text == ATTACHED:
            return True  # another attached object than at the beginning
        if reached.category in _NEVER_MATTERS or reached.how == "given":
            return False
        if reached.category is Category.ITERATOR:
            # A library reads the iterators within its objects, and DataOrder speaks of their loaders.
            return reached.of_script and not is_held_by_library and is_lost_iterator(reached.value, saved)
        if is_time(reached.value):
            return False
        # Where nothing is put back, what libraries hold is left to their adapters.
        is_of_script = reached.of_script and not (is_held_by_library and self._cannot_put_back)
        return is_of_script or (reached.category in _FEEDS and not self._cannot_put_back)

    # --- the walk, and sentences ------------------------------------------------------------------------------

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
        named = {f"generator {number}": generator for number, generator in enumerate(generators)}
        return SavedElsewhere({**self._objects, **named})

    def _say(self, sentence: str, paths: Collection[str], walk: LoopWalk) -> None:
        """Write a sentence about values to the log, under names that the user can do something about."""
        importance = _importance_in(walk)
        ranked: dict[str, tuple[int, str]] = {}
        for path in _outermost(paths):
            name = walk.named_holder(path)
            ranked[name] = min(importance(path), ranked.get(name, importance(path)))
        self._writer.say(sentence, _outermost(ranked), ranked.__getitem__)

    def _report_kept(self, paths: Collection[str], walk: LoopWalk) -> None:
        if paths and not self._are_kept_reported:
            self._are_kept_reported = True
            self._say(ALSO_KEPT, paths, walk)


def _importance_in(walk: LoopWalk) -> Callable[[str], tuple[int, str]]:
    """Return a key to sort paths by, the most important first.

    These are values that training computes with, then values that are gone, containers, all others, and numbers.
    """

    def importance(path: str) -> tuple[int, str]:
        reached = walk.reached.get(path)
        if reached is None:
            return 1, path
        if reached.category in _FEEDS:
            return 0, path
        if reached.category is Category.CONTAINER:
            return 2, path
        return (4 if reached.category is Category.SCALAR else 3), path

    return importance


def _is_made_by_library(walk: LoopWalk, path: str) -> bool:
    """Return whether an object of an installed package makes a value itself, as caches, gradients and iterators.

    The values in torch's data sets and samplers come from the script.
    """
    holder = walk.reached.get(walk.named_holder(path))
    if holder is None or walk.named_holder(path) == path:
        return False
    return not type(holder.value).__module__.startswith("torch.")


def _fingerprint_at(walk: LoopWalk, path: str, saved: SavedElsewhere) -> str | None:
    """Return the fingerprint of a value, or the name of an attached object if another process can find it by name."""
    reached = walk.reached.get(path)
    if reached is None:
        return None
    return (saved.path_of(reached.value) or reached.text) if reached.text == ATTACHED else reached.text


def _outermost(paths: Collection[str]) -> list[str]:
    """Return the paths none of whose owners is among the paths."""
    known = set(paths)
    return [path for path in paths if not any(owner in known for owner in _owners(path))]


def _owners(path: str) -> Iterable[str]:
    """Yield the paths of the objects that hold the value at a path."""
    for at, sign in enumerate(path):
        if sign in ".[" and at:
            yield path[:at]


def _has_same_form(text: str, other: str) -> bool:
    """Return whether two fingerprints are of values of one kind and length, made differently by a script."""
    return text.rpartition(" ")[0] == other.rpartition(" ")[0] and " " in text

"""One walk over everything that a training loop can reach.

The walk begins at the variables of the functions that are running, at those of the script's modules, and at what is
attached. It goes through attributes, closures, defaults, hooks and containers. What attached objects save is passed by.
Each value has a path, which is the same in another process that runs the same script: `train:self.best`. Attributes
are read from the instances' dicts and slots, and containers by the builtin methods: no property, no `__getattr__` and
no iterator of anybody's runs, and nothing is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from operator import is_
from types import CellType, MethodType, ModuleType
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.modules.module import Module

from ftlaunch_hooks.observe.reachable.fingerprints import (
    Marks,
    base_of_container,
    container_length,
    container_sample,
    digest,
    fingerprint,
    is_of_this_process,
    keys_text,
    scalar_text,
    tensors_fingerprint,
)
from ftlaunch_hooks.observe.reachable.kinds import (
    Category,
    instance_dict,
    is_library,
    is_script_module,
    is_torchs,
    is_wrapper,
    kind_of_type,
    own_class,
    text_of,
)
from ftlaunch_hooks.observe.reachable.positions import position_of
from ftlaunch_hooks.observe.reachable.saved_elsewhere import SavedElsewhere

ATTACHED = "attached"
"""the text of what an attached object holds"""
_MOST = 20_000  # values
_DEEP = 7  # holders in each other
_CHILDREN = 64  # elements of a container that are looked into
_OF_MODULES = frozenset(vars(Module()))
_HOOKS_OF_MODULES = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_NEVER_OTHERWISE = (bool, int, str, type(None), float)  # the values of torch's own modules are no times
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_HOLDERS = frozenset((Category.MODULE, Category.OBJECT, Category.LOADER, Category.FUNCTION, Category.METHOD))
_PRINTABLE = frozenset((Category.TENSOR, Category.ARRAY, Category.GENERATOR, Category.ENUM))
_IN_LOADERS = ("dataset", "sampler", "batch_sampler", "collate_fn")


class Reached(NamedTuple):
    """A value that the walk has come to."""

    value: Any
    """of a module: ModuleTensors"""
    text: str
    """the fingerprint"""
    marks: tuple[tuple[int, int], ...]
    parent: str
    """path of what holds the value"""
    how: str
    """how `parent` holds the value: "local", "given" (a local that no loop stores), "global", "attribute", "slot",
    "class", "cell", "defaults", "item", "hook" or "attached" """
    key: Any
    """the name, or the key in a container"""
    of_script: bool
    """not held by an object of an installed package"""
    category: Category


class _Way(NamedTuple):
    """How the walk comes to a value; see Reached."""

    parent: str
    how: str
    key: Any
    of_script: bool


class ModuleTensors(NamedTuple):
    """The parameters and buffers of a module that is attached nowhere, by name; without those that are saved."""

    module: nn.Module
    tensors: dict[str, Tensor]


class KnownModule(NamedTuple):
    """What was reached in a module whose plain attributes are immutable values, all of them."""

    module: nn.Module
    path: str
    attributes: tuple[Any, ...]
    reached: dict[str, Reached]


class LoopWalk:
    """What was reached at one moment."""

    def __init__(
        self,
        is_saved: SavedElsewhere,
        ignored: Collection[str] = (),
        known_modules: dict[int, KnownModule] | None = None,
    ) -> None:
        """is_saved: whether an attached object holds a value. ignored: names that are passed by, and what they hold.

        known_modules: of earlier walks with the same names ignored, by id.
        """
        self._known_modules = known_modules or {}
        self.known_modules: dict[int, KnownModule] = {}
        """for the next walk"""
        self.is_saved, self._ignored = is_saved, frozenset(ignored)
        self.reached: dict[str, Reached] = {}
        """by path, in the order in which the walk has come to them"""
        self.objects: dict[str, Any] = {}
        """what holds other values, by path: a frame, a dict of variables, an object, a function, a container"""
        self.first_paths: dict[int, str] = {}
        """id of an object -> the first path to it"""
        self.iterators: dict[str, Any] = {}
        self._classes: set[int] = set()
        self._modules_ahead: list[str] = []
        self._modules_seen: dict[int, str] = {}
        """by id of a module's variables: the name under which they were visited"""

    def visit_variables(self, scope: str, holder: Any, variables: Mapping[str, Any], how: str) -> None:
        """Go through the variables of a function or a module. holder: the frame, or the module's dict."""
        self.objects[scope] = holder
        for name, value in variables.items():
            self._visit(f"{scope}:{name}", value, _Way(scope, how, name, True), _DEEP)

    def visit_module(self, name: str, variables: dict[str, Any], wanted: Callable[[str], bool]) -> None:
        """Go through the variables of one of the script's modules, once.

        name: as it was imported. Two may have the same: a program that runs the script by runpy is `__main__`, too.
        """
        if id(variables) in self._modules_seen:
            return
        others = [one.partition("~")[0] for one in self._modules_seen.values()].count(name)
        named = f"{name}~{others}" if others else name
        self._modules_seen[id(variables)] = named
        chosen = {key: value for key, value in list(variables.items()) if key[:2] != "__" and wanted(key)}
        self.visit_variables(named, variables, chosen, "global")

    def visit_further_modules(self, dict_of: Callable[[str], dict[str, Any] | None]) -> None:
        """Go through the script's modules whose functions, classes or names were come to."""
        while self._modules_ahead:
            name = self._modules_ahead.pop(0)
            variables = dict_of(name)
            if variables is not None:
                self.visit_module(name, variables, lambda _: True)

    def visit_attached_module(self, name: str, root: nn.Module, passed_by: Collection[int]) -> None:
        """Go through plain attributes and hooks of an attached module and all in it.

        passed_by: ids of modules whose attributes somebody saves.
        """
        for path, module in modules_within(root, name):
            if id(module) not in passed_by:
                self._visit_attributes_of_module(path, module, _DEEP - 1)
            self._visit_hooks(path, module)

    def visit_beside(self, name: str, target: object, known: Collection[str]) -> None:
        """Go through attributes of an attached object other than the `known` ones."""
        self.objects[name] = target
        for key, value in list(instance_dict(target).items()):
            if key not in known:
                self._visit(f"{name}.{key}", value, _Way(name, "attribute", key, True), _DEEP - 1)

    def visit_tensors(self, name: str, module: nn.Module) -> None:
        """Look at the parameters and buffers of a module, whatever is saved of them."""
        tensors = dict(_tensors_within(module))
        marks: Marks = []
        text = f"module {type(module).__name__} {tensors_fingerprint(list(tensors.values()), marks)}"
        self.objects[name] = module
        way = _Way("", "attached", name, of_script=True)
        self._note(name, ModuleTensors(module, tensors), text, marks, way, Category.MODULE)

    def named_holder(self, path: str) -> str:
        """The path to name to people: what an object of an installed package holds is named as the object."""
        one = self.reached.get(path)
        while one is not None and one.how in ("attribute", "slot") and one.parent in self.reached:
            holder = self.reached[one.parent]
            kind = kind_of_type(type(holder.value))
            if holder.category is not Category.OBJECT or kind.is_of_script:
                break
            path, one = one.parent, holder
        return path

    def is_ignored(self, path: str) -> bool:
        """Whether the script has said that it knows of this value, or of what holds it."""
        name = shown(path)
        return any(name == one or name.startswith((f"{one}.", f"{one}[")) for one in self._ignored)

    # --- one value --------------------------------------------------------------------------------------------

    def _visit(self, path: str, value: Any, way: _Way, depth: int) -> None:
        if len(self.reached) >= _MOST or (self._ignored and self.is_ignored(path)):
            return
        category = kind_of_type(type(value)).category
        if category is Category.SCALAR:
            if not is_of_this_process(str(way.key), value):
                self._note(path, value, scalar_text(value), (), way, category)
        elif category is Category.METHOD:
            if type(value.__self__) is not MethodType:
                self._visit(path, value.__self__, way, depth)
        elif category is Category.PYTHON_MODULE:
            if type(value) is ModuleType and is_script_module(vars(value).get("__name__")):
                self._modules_ahead.append(vars(value)["__name__"])
        elif self.is_saved(value):
            self._note(path, value, ATTACHED, [(id(value), 0)], way, category)
        elif (first := self.first_paths.get(id(value))) is not None:
            self._note(path, value, f"same {first}", (), way, category)
        else:
            self.first_paths[id(value)] = path
            marks: Marks = []
            held, text = self._held_and_text(value, category, marks)
            self._note(path, held, text, marks, way, category)
            if depth:
                self._visit_within(path, value, category, way.of_script, depth - 1)

    def _note(
        self, path: str, value: Any, text: str, marks: Collection[tuple[int, int]], way: _Way, category: Category
    ) -> None:
        parent, how, key, of_script = way
        marked = tuple(marks) if marks else ()
        self.reached[path] = Reached(value, text, marked, parent, how, key, of_script, category)

    def _held_and_text(self, value: Any, category: Category, marks: Marks) -> tuple[Any, str]:
        """What is noted of a value, and its fingerprint."""
        name = kind_of_type(type(value)).name
        if category in _PRINTABLE:
            return value, fingerprint(value, marks, self.is_saved)
        if category is Category.CONTAINER:
            return value, self._text_of_container(value, marks, name)
        if category is Category.MODULE:
            tensors = {name: one for name, one in _tensors_within(value) if not self.is_saved(one)}
            text = f"module {name} {tensors_fingerprint(list(tensors.values()), marks)}"
            return ModuleTensors(value, tensors), text
        if category is Category.ITERATOR:
            return value, f"iterator {name} {position_of(value)}"
        if category is Category.FUNCTION:
            return value, f"function {value.__qualname__}"
        what = text_of(value, "__qualname__") if category is Category.CLASS else name
        return value, f"{category.name.lower()} {what}"

    def _text_of_container(self, value: Any, marks: Marks, name: str) -> str:
        if not self.holds_holders(value):
            return fingerprint(value, marks, self.is_saved)
        keys = keys_text(value) if _is_dict(value) else ""
        return f"{name} {container_length(value)} of objects {digest(keys)}"

    def holds_holders(self, value: Any, depth: int = 3) -> bool:
        """Whether objects with attributes are in a container: each is looked at by itself."""
        for element in _few_elements(value):
            category = kind_of_type(type(element)).category
            if category in _HOLDERS and not self.is_saved(element):
                return True
            if category is Category.CONTAINER and depth and self.holds_holders(element, depth - 1):
                return True
        return False

    # --- what a value holds -----------------------------------------------------------------------------------

    def _visit_within(self, path: str, value: Any, category: Category, of_script: bool, depth: int) -> None:
        if category is Category.OBJECT:
            self._visit_object(path, value, of_script, depth)
        elif category is Category.MODULE:
            self.objects[path] = value
            for inner, module in modules_within(value, path):
                self._visit_attributes_of_module(inner, module, depth)
                self._visit_hooks(inner, module)
        elif category is Category.CONTAINER:
            if self.holds_holders(value):
                self._visit_elements(path, value, of_script, depth)
        elif category is Category.FUNCTION:
            self._visit_function(path, value, depth)
        elif category is Category.CLASS:
            self._visit_class(path, value, depth)
        elif category is Category.LOADER:
            self.objects[path] = value
            held = instance_dict(value)
            for name in _IN_LOADERS:
                if held.get(name) is not None:
                    self._visit(f"{path}.{name}", held[name], _Way(path, "attribute", name, of_script), depth)
        elif category is Category.ITERATOR:
            self.iterators[path] = value

    def _visit_object(self, path: str, value: Any, of_script: bool, depth: int) -> None:
        self.objects[path] = value
        kind = kind_of_type(type(value))
        inside = of_script and (kind.is_of_script or kind.is_stateful)
        for name, held in list(instance_dict(value).items()):
            if type(name) is str and name[:2] != "__":
                self._visit(f"{path}.{name}", held, _Way(path, "attribute", name, inside), depth)
        for name, descriptor in kind.slots:
            try:
                held = descriptor.__get__(value)
            except AttributeError:
                continue  # it was never set
            self._visit(f"{path}.{name}", held, _Way(path, "slot", name, inside), depth)
        if kind.is_of_script:
            self._visit_class(type(value).__name__, type(value), depth)

    def _visit_elements(self, path: str, value: Any, of_script: bool, depth: int) -> None:
        self.objects[path] = value
        if _is_dict(value):
            pairs = [(key, one) for key, one in container_sample(value)[:_CHILDREN] if type(key) in (str, int)]
        elif base_of_container(value) in (set, frozenset):
            return
        else:
            pairs = list(enumerate(_few_elements(value)))
        for key, one in pairs:
            self._visit(f"{path}[{key!r}]", one, _Way(path, "item", key, of_script), depth)

    def _visit_function(self, path: str, function: Any, depth: int) -> None:
        if is_library(function.__code__.co_filename):
            return
        self.objects[path] = function
        self._modules_ahead.append(str(function.__globals__.get("__name__")))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for name, cell in cells:
            if cell != CellType():
                inner = f"{path}.{name}"
                self._visit(inner, cell.cell_contents, _Way(path, "cell", name, True), depth)
        for name, held in list(vars(function).items()):
            if name != "__wrapped__":
                self._visit(f"{path}.{name}", held, _Way(path, "attribute", name, True), depth)
        if function.__defaults__:
            where = f"{path}.defaults"
            self._visit(where, function.__defaults__, _Way(path, "defaults", "defaults", True), depth)

    def _visit_class(self, path: str, kind: type, depth: int) -> None:
        name = vars(kind).get("__module__")
        if id(kind) in self._classes or issubclass(kind, Enum) or not is_script_module(name):
            return
        self._classes.add(id(kind))
        self._modules_ahead.append(str(name))
        self.objects[path] = kind
        for key, held in list(vars(kind).items()):
            if key[:2] != "__" and _is_data(held):
                self._visit(f"{path}.{key}", held, _Way(path, "class", key, True), depth)

    def _visit_attributes_of_module(self, path: str, module: nn.Module, depth: int) -> None:
        """Without what torch gives every module, and what spectral_norm and weight_norm make anew before each pass."""
        self.objects[path] = module
        held = instance_dict(module)
        known = self._known_modules.get(id(module))
        if (
            known is not None
            and known.module is module
            and known.path == path
            and len(known.attributes) == len(held)
            and all(map(is_, known.attributes, held.values()))
        ):
            self.reached.update(known.reached)
            self.known_modules[id(module)] = known
            return
        kind: Any = own_class(module)
        if is_wrapper(module) or kind.get_extra_state is not nn.Module.get_extra_state:
            return  # the second says itself what is saved of it
        hooks = held.get("_forward_pre_hooks") or {}
        made = {instance_dict(hook).get("name") for hook in hooks.values()} if hooks else ()
        chosen = {name: value for name, value in held.items() if name not in _OF_MODULES and name not in made}
        for name, value in chosen.items():
            self._visit(f"{path}.{name}", value, _Way(path, "attribute", name, True), depth)
        if not is_torchs(kind):
            self._visit_class(kind.__name__, kind, depth)
        elif not hooks and all(type(value) in _NEVER_OTHERWISE for value in chosen.values()):
            names = [f"{path}.{name}" for name in chosen]
            reached = {name: self.reached[name] for name in names if name in self.reached}
            self.known_modules[id(module)] = KnownModule(module, path, tuple(held.values()), reached)

    def _visit_hooks(self, path: str, module: nn.Module) -> None:
        """Functions that run beside the training: what they enclose goes from step to step, too."""
        held = instance_dict(module)
        for kind in _HOOKS_OF_MODULES:
            for hook in list((held.get(kind) or {}).values()):
                self._visit_hook(path, hook)
        for name, parameter in list((held.get("_parameters") or {}).items()):
            for kind in _HOOKS_OF_TENSORS if type(parameter) in (Tensor, nn.Parameter) else ():
                for hook in list((getattr(parameter, kind, None) or {}).values()):
                    self._visit_hook(f"{path}.{name}", hook)

    def _visit_hook(self, path: str, hook: Any) -> None:
        kind = kind_of_type(type(hook))
        is_function = kind.category is Category.FUNCTION
        name = hook.__name__ if is_function else kind.name
        of_script = is_function or kind.is_of_script
        self._visit(f"{path}.{name}", hook, _Way(path, "hook", name, of_script), _DEEP - 2)


def shown(path: str) -> str:
    """The name of a value for people: without the function or the module in front."""
    return path.rpartition(":")[2] if "[" not in path else _shown_before_keys(path)


def _shown_before_keys(path: str) -> str:
    front, bracket, keys = path.partition("[")
    return front.rpartition(":")[2] + bracket + keys


def modules_within(root: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """A module and all in it, each once, by paths without what DistributedDataParallel and torch.compile put in."""
    ahead, seen = [(path, root)], set[int]()
    while ahead:
        here, module = ahead.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield here, module
        children = instance_dict(module).get("_modules")
        if not children or base_of_container(children) is not dict:
            continue
        hides = is_wrapper(module)
        for name, child in reversed(list(dict.items(children))):
            if child is not None:
                ahead.append((here if hides and name in ("module", "_orig_mod") else f"{here}.{name}", child))


def _tensors_within(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in modules_within(root, ""):
        held = instance_dict(module)
        for group in ("_parameters", "_buffers"):
            for name, tensor in list((held.get(group) or {}).items()):
                if tensor is not None:
                    yield f"{path}.{name}".lstrip("."), tensor


def _few_elements(value: Any) -> list[Any]:
    few = container_sample(value)[:_CHILDREN]
    return [element for _, element in few] if _is_dict(value) else list(few)


def _is_dict(value: Any) -> bool:
    return base_of_container(value) is dict


def _is_data(value: Any) -> bool:
    """Whether an attribute of a class is a value, and no method, property or other descriptor."""
    category = kind_of_type(type(value)).category
    if category in (Category.FUNCTION, Category.METHOD, Category.CLASS, Category.PYTHON_MODULE, Category.OPAQUE):
        return False
    return "__get__" not in vars(type(value))

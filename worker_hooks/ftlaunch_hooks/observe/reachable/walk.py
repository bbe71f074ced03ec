"""Walks over everything that a training loop can reach, once, at one moment.

The walk begins at the variables of the running functions, at the variables of the script's modules, and at the attached
objects. The walk goes through attributes, closures, defaults, hooks and containers, and passes by everything that
attached objects save. Each value has a path, which is the same in another process that runs the same script:
`train:self.best`. Attributes are read from the instances' dicts and slots, and containers by the builtin methods. No
property, no `__getattr__` and no iterator runs, and nothing is imported.

The Survey makes a walk as a loop begins and at each snapshot, in the thread that trains.
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
"""the fingerprint of a value that an attached object holds"""
_MAX_VALUES = 20_000
_MAX_DEPTH = 7
"""largest number of holders within each other"""
_MAX_ELEMENTS = 64
"""largest number of a container's elements that are visited"""
_MODULE_ATTRIBUTES = frozenset(vars(Module()))
"""attributes that torch gives every module"""
_HOOKS_OF_MODULES = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
_CONSTANTS_OF_TORCH = (bool, int, str, type(None), float)
"""types of values that torch's own modules never change in place; their floats are no times"""
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_HOLDERS = frozenset((Category.MODULE, Category.OBJECT, Category.LOADER, Category.FUNCTION, Category.METHOD))
_PRINTABLE = frozenset((Category.TENSOR, Category.ARRAY, Category.GENERATOR, Category.ENUM))
_IN_LOADERS = ("dataset", "sampler", "batch_sampler", "collate_fn")


class Reached(NamedTuple):
    """A value that the walk has come to."""

    value: Any
    """the value itself; ModuleTensors for a module"""
    text: str
    """the fingerprint"""
    marks: tuple[tuple[int, int], ...]
    """identities and versions of the value's tensors, as `fingerprints` describes them"""
    parent: str
    """path of the holder of the value"""
    how: str
    """how `parent` holds the value: "local", "given" (a local that no loop stores), "global", "attribute", "slot",
    "class", "cell", "defaults", "item", "hook" or "attached" """
    key: Any
    """the name, or the key in a container"""
    of_script: bool
    """whether no object of an installed package holds the value"""
    category: Category


class ModuleTensors(NamedTuple):
    """The unsaved parameters and buffers of a module, by name."""

    module: nn.Module
    tensors: dict[str, Tensor]


class KnownModule(NamedTuple):
    """The values reached in a module of torch's whose plain attributes are all immutable, for a later walk."""

    module: nn.Module
    path: str
    attributes: tuple[Any, ...]
    """the values of all attributes of the instance: the next walk compares them by identity"""
    reached: dict[str, Reached]


class LoopWalk:
    """The values that were reached at one moment."""

    def __init__(
        self,
        is_saved: SavedElsewhere,
        ignored: Collection[str] = (),
        known_modules: dict[int, KnownModule] | None = None,
    ) -> None:
        """Begin with nothing reached.

        Args:
            is_saved: tells whether an attached object holds a value.
            ignored: names of values that are passed by, with everything in them.
            known_modules: `known_modules` of an earlier walk with the same `ignored`.
        """
        self._known_modules = known_modules or {}
        self.known_modules: dict[int, KnownModule] = {}
        """modules for the next walk, by id"""
        self.is_saved = is_saved
        self._ignored = frozenset(ignored)
        self.reached: dict[str, Reached] = {}
        """values by path, in the order in which the walk has come to them"""
        self.objects: dict[str, Any] = {}
        """holders of values, by path: a frame, a dict of variables, an object, a function, a container"""
        self.first_paths: dict[int, str] = {}
        """the first path to an object, by the object's id"""
        self.iterators: dict[str, Any] = {}
        """iterators by path"""
        self._classes: set[int] = set()
        self._modules_ahead: list[str] = []
        self._modules_seen: dict[int, str] = {}
        """the name under which a module's variables were visited, by the id of the dict"""

    def visit_variables(self, scope: str, holder: Any, variables: Mapping[str, Any], how: str) -> None:
        """Visit the variables of a function or a module.

        Args:
            scope: path of the function or module.
            holder: the frame, or the module's dict.
            variables: the variables to visit, by name.
            how: `Reached.how` of the variables.
        """
        self.objects[scope] = holder
        for name, value in variables.items():
            self._visit(f"{scope}:{name}", value, parent=scope, how=how, key=name, of_script=True, depth=_MAX_DEPTH)

    def visit_module(self, name: str, variables: dict[str, Any], wanted: Callable[[str], bool]) -> None:
        """Visit the variables of one of the script's modules. A second visit does nothing.

        Args:
            name: name under which the module was imported. Two modules may have the same name: a program that runs the
                script by runpy is `__main__`, too.
            variables: the module's dict.
            wanted: tells for the name of a variable whether to visit it.
        """
        if id(variables) in self._modules_seen:
            return
        namesakes = [seen.partition("~")[0] for seen in self._modules_seen.values()].count(name)
        scope = f"{name}~{namesakes}" if namesakes else name
        self._modules_seen[id(variables)] = scope
        chosen = {key: value for key, value in list(variables.items()) if key[:2] != "__" and wanted(key)}
        self.visit_variables(scope, holder=variables, variables=chosen, how="global")

    def visit_further_modules(self, dict_of: Callable[[str], dict[str, Any] | None]) -> None:
        """Visit the script's modules whose functions, classes or names were reached.

        Args:
            dict_of: returns the variables of a module by its name; None for a module that is not the script's.
        """
        while self._modules_ahead:
            name = self._modules_ahead.pop(0)
            variables = dict_of(name)
            if variables is not None:
                self.visit_module(name, variables, lambda _: True)

    def visit_attached_module(self, name: str, root: nn.Module, passed_by: Collection[int]) -> None:
        """Visit plain attributes and hooks of an attached module and of all modules within.

        Args:
            name: name of the attached module.
            root: the module.
            passed_by: ids of modules whose attributes are saved elsewhere.
        """
        for path, module in modules_within(root, name):
            if id(module) not in passed_by:
                self._visit_attributes_of_module(path, module, depth=_MAX_DEPTH - 1)
            self._visit_hooks(path, module)

    def visit_beside(self, name: str, target: object, known: Collection[str]) -> None:
        """Visit attributes of an attached object other than those with a `known` name."""
        self.objects[name] = target
        for key, value in list(instance_dict(target).items()):
            if key not in known:
                self._visit(
                    f"{name}.{key}", value, parent=name, how="attribute", key=key, of_script=True, depth=_MAX_DEPTH - 1
                )

    def visit_tensors(self, name: str, module: nn.Module) -> None:
        """Visit the parameters and buffers of a module, saved or not."""
        tensors = dict(_tensors_within(module))
        marks: Marks = []
        text = f"module {type(module).__name__} {tensors_fingerprint(list(tensors.values()), marks)}"
        self.objects[name] = module
        self.reached[name] = Reached(
            value=ModuleTensors(module, tensors),
            text=text,
            marks=tuple(marks),
            parent="",
            how="attached",
            key=name,
            of_script=True,
            category=Category.MODULE,
        )

    def named_holder(self, path: str) -> str:
        """Return the path to name to the user: that of the library's object that holds the value, if there is such."""
        reached = self.reached.get(path)
        while reached is not None and reached.how in ("attribute", "slot") and reached.parent in self.reached:
            holder = self.reached[reached.parent]
            kind = kind_of_type(type(holder.value))
            if holder.category is not Category.OBJECT or kind.is_of_script:
                break
            path = reached.parent
            reached = holder
        return path

    def is_ignored(self, path: str) -> bool:
        """Return whether the script ignores a value, or the holder of the value."""
        name = shown(path)
        return any(name == ignored or name.startswith((f"{ignored}.", f"{ignored}[")) for ignored in self._ignored)

    # --- one value --------------------------------------------------------------------------------------------

    def _visit(self, path: str, value: Any, *, parent: str, how: str, key: Any, of_script: bool, depth: int) -> None:
        """Note a value, and visit the values within.

        Args:
            path: path of the value.
            value: the value.
            parent: `Reached.parent` of the value.
            how: `Reached.how` of the value.
            key: `Reached.key` of the value.
            of_script: `Reached.of_script` of the value.
            depth: number of holders that may be entered from here.
        """
        if len(self.reached) >= _MAX_VALUES or (self._ignored and self.is_ignored(path)):
            return
        category = kind_of_type(type(value)).category
        held = value
        marks: Marks = []
        is_first_visit = False
        if category is Category.SCALAR:
            if is_of_this_process(str(key), value):
                return
            text = scalar_text(value)
        elif category is Category.METHOD:
            if type(value.__self__) is not MethodType:
                self._visit(path, value.__self__, parent=parent, how=how, key=key, of_script=of_script, depth=depth)
            return
        elif category is Category.PYTHON_MODULE:
            if type(value) is ModuleType and is_script_module(vars(value).get("__name__")):
                self._modules_ahead.append(vars(value)["__name__"])
            return
        elif self.is_saved(value):
            text = ATTACHED
            marks.append((id(value), 0))
        elif (first := self.first_paths.get(id(value))) is not None:
            text = f"same {first}"
        else:
            self.first_paths[id(value)] = path
            held, text = self._held_and_text(value, category, marks)
            is_first_visit = True
        # This runs for each value at each snapshot. A named tuple takes twice as long to make from keywords, unlike a
        # function, and that would be a twentieth of the whole walk.
        self.reached[path] = Reached(held, text, tuple(marks), parent, how, key, of_script, category)
        if is_first_visit and depth:
            self._visit_within(path, value, category, of_script=of_script, depth=depth - 1)

    def _held_and_text(self, value: Any, category: Category, marks: Marks) -> tuple[Any, str]:
        """Return `Reached.value` and `Reached.text` of a value, and append the marks of its tensors to `marks`."""
        name = kind_of_type(type(value)).name
        if category in _PRINTABLE:
            return value, fingerprint(value, marks, self.is_saved)
        if category is Category.CONTAINER:
            return value, self._text_of_container(value, marks, name)
        if category is Category.MODULE:
            tensors = {key: tensor for key, tensor in _tensors_within(value) if not self.is_saved(tensor)}
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
        """Return whether a container has objects with attributes, each of which is visited by itself.

        Args:
            value: the container.
            depth: number of containers within each other that are searched.
        """
        for element in _first_elements(value):
            category = kind_of_type(type(element)).category
            if category in _HOLDERS and not self.is_saved(element):
                return True
            if category is Category.CONTAINER and depth and self.holds_holders(element, depth - 1):
                return True
        return False

    # --- the values within a value ----------------------------------------------------------------------------

    def _visit_within(self, path: str, value: Any, category: Category, *, of_script: bool, depth: int) -> None:
        if category is Category.OBJECT:
            self._visit_object(path, value, of_script=of_script, depth=depth)
        elif category is Category.MODULE:
            self.objects[path] = value
            for inner, module in modules_within(value, path):
                self._visit_attributes_of_module(inner, module, depth)
                self._visit_hooks(inner, module)
        elif category is Category.CONTAINER:
            if self.holds_holders(value):
                self._visit_elements(path, value, of_script=of_script, depth=depth)
        elif category is Category.FUNCTION:
            self._visit_function(path, value, depth)
        elif category is Category.CLASS:
            self._visit_class(path, value, depth)
        elif category is Category.LOADER:
            self.objects[path] = value
            held = instance_dict(value)
            for name in _IN_LOADERS:
                if held.get(name) is not None:
                    self._visit(
                        f"{path}.{name}",
                        held[name],
                        parent=path,
                        how="attribute",
                        key=name,
                        of_script=of_script,
                        depth=depth,
                    )
        elif category is Category.ITERATOR:
            self.iterators[path] = value

    def _visit_object(self, path: str, value: Any, *, of_script: bool, depth: int) -> None:
        self.objects[path] = value
        kind = kind_of_type(type(value))
        are_of_script = of_script and (kind.is_of_script or kind.is_stateful)
        for name, held in list(instance_dict(value).items()):
            if type(name) is str and name[:2] != "__":
                self._visit(
                    f"{path}.{name}", held, parent=path, how="attribute", key=name, of_script=are_of_script, depth=depth
                )
        for name, descriptor in kind.slots:
            try:
                held = descriptor.__get__(value)
            except AttributeError:
                continue  # the slot was never set
            self._visit(f"{path}.{name}", held, parent=path, how="slot", key=name, of_script=are_of_script, depth=depth)
        if kind.is_of_script:
            self._visit_class(type(value).__name__, type(value), depth)

    def _visit_elements(self, path: str, value: Any, *, of_script: bool, depth: int) -> None:
        self.objects[path] = value
        if _is_dict(value):
            sampled = container_sample(value)[:_MAX_ELEMENTS]
            pairs = [(key, element) for key, element in sampled if type(key) in (str, int)]
        elif base_of_container(value) in (set, frozenset):
            return
        else:
            pairs = list(enumerate(_first_elements(value)))
        for key, element in pairs:
            self._visit(f"{path}[{key!r}]", element, parent=path, how="item", key=key, of_script=of_script, depth=depth)

    def _visit_function(self, path: str, function: Any, depth: int) -> None:
        if is_library(function.__code__.co_filename):
            return
        self.objects[path] = function
        self._modules_ahead.append(str(function.__globals__.get("__name__")))
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        for name, cell in cells:
            if cell != CellType():
                self._visit(
                    f"{path}.{name}", cell.cell_contents, parent=path, how="cell", key=name, of_script=True, depth=depth
                )
        for name, held in list(vars(function).items()):
            if name != "__wrapped__":
                self._visit(f"{path}.{name}", held, parent=path, how="attribute", key=name, of_script=True, depth=depth)
        if function.__defaults__:
            self._visit(
                f"{path}.defaults",
                function.__defaults__,
                parent=path,
                how="defaults",
                key="defaults",
                of_script=True,
                depth=depth,
            )

    def _visit_class(self, path: str, kind: type, depth: int) -> None:
        name = vars(kind).get("__module__")
        if id(kind) in self._classes or issubclass(kind, Enum) or not is_script_module(name):
            return
        self._classes.add(id(kind))
        self._modules_ahead.append(str(name))
        self.objects[path] = kind
        for key, held in list(vars(kind).items()):
            if key[:2] != "__" and _is_data(held):
                self._visit(f"{path}.{key}", held, parent=path, how="class", key=key, of_script=True, depth=depth)

    def _visit_attributes_of_module(self, path: str, module: nn.Module, depth: int) -> None:
        """Visit the attributes of a module that the script or the module's class has made.

        Attributes that torch gives every module are passed by, and so are attributes that spectral_norm and weight_norm
        recreate before each pass.
        """
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
            return  # a module with get_extra_state() decides itself what is saved
        hooks = held.get("_forward_pre_hooks") or {}
        made_by_hooks = {instance_dict(hook).get("name") for hook in hooks.values()} if hooks else ()
        chosen = {
            name: value for name, value in held.items() if name not in _MODULE_ATTRIBUTES and name not in made_by_hooks
        }
        for name, value in chosen.items():
            self._visit(f"{path}.{name}", value, parent=path, how="attribute", key=name, of_script=True, depth=depth)
        if not is_torchs(kind):
            self._visit_class(kind.__name__, kind, depth)
        elif not hooks and all(type(value) in _CONSTANTS_OF_TORCH for value in chosen.values()):
            paths = [f"{path}.{name}" for name in chosen]
            self.known_modules[id(module)] = KnownModule(
                module=module,
                path=path,
                attributes=tuple(held.values()),
                reached={inner: self.reached[inner] for inner in paths if inner in self.reached},
            )

    def _visit_hooks(self, path: str, module: nn.Module) -> None:
        """Visit a module's hooks: the variables that these functions enclose also last from step to step."""
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
        self._visit(
            f"{path}.{name}",
            hook,
            parent=path,
            how="hook",
            key=name,
            of_script=is_function or kind.is_of_script,
            depth=_MAX_DEPTH - 2,
        )


def shown(path: str) -> str:
    """Return the name of a value for the user: the path without its function or module."""
    return path.rpartition(":")[2] if "[" not in path else _shown_before_keys(path)


def _shown_before_keys(path: str) -> str:
    front, bracket, keys = path.partition("[")
    return front.rpartition(":")[2] + bracket + keys


def modules_within(root: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and all modules within, each once, with their paths.

    Names that DistributedDataParallel and torch.compile insert are left out of the paths.
    """
    ahead = [(path, root)]
    seen = set[int]()
    while ahead:
        module_path, module = ahead.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module_path, module
        children = instance_dict(module).get("_modules")
        if not children or base_of_container(children) is not dict:
            continue
        wraps = is_wrapper(module)
        for name, child in reversed(list(dict.items(children))):
            if child is not None:
                is_inserted = wraps and name in ("module", "_orig_mod")
                ahead.append((module_path if is_inserted else f"{module_path}.{name}", child))


def _tensors_within(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for path, module in modules_within(root, ""):
        held = instance_dict(module)
        for group in ("_parameters", "_buffers"):
            for name, tensor in list((held.get(group) or {}).items()):
                if tensor is not None:
                    yield f"{path}.{name}".lstrip("."), tensor


def _first_elements(value: Any) -> list[Any]:
    """Return the first elements of a container, or the first values of a dict."""
    sampled = container_sample(value)[:_MAX_ELEMENTS]
    return [element for _, element in sampled] if _is_dict(value) else list(sampled)


def _is_dict(value: Any) -> bool:
    return base_of_container(value) is dict


def _is_data(value: Any) -> bool:
    """Return whether an attribute of a class is a value, and no method, property or other descriptor."""
    category = kind_of_type(type(value)).category
    if category in (Category.FUNCTION, Category.METHOD, Category.CLASS, Category.PYTHON_MODULE, Category.OPAQUE):
        return False
    return "__get__" not in vars(type(value))

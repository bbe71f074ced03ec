"""Classifies values by their types alone, without running any code of the values' classes.

The walk, the codec and the checks of loops call these functions. Results are remembered by type, for the process.
"""

from __future__ import annotations

import io
import sys
import sysconfig
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path, PurePath
from types import (
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ftlaunch_hooks.state.random_numbers.generators import kind_of_class

_STDLIB = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}
_OUR_PACKAGES = frozenset(("ftlaunch", "ftlaunch_contract", "ftlaunch_hooks", "ftlaunch_ray", "ftlaunch_mindspore"))
_OURS = str(Path(__file__).parents[2])

SCALARS: tuple[type, ...] = (bool, int, float, complex, str, bytes, type(None))
CONTAINERS: tuple[type, ...] = (list, tuple, dict, OrderedDict, defaultdict, Counter, deque, set, frozenset)
_PRINTED: tuple[type, ...] = (torch.dtype, torch.device, torch.Size, range, slice)
_STATEFUL_OF_TORCH = (  # torch's plain objects that carry state; its others hold streams, events, handles and caches
    "torch.nn.", "torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch.utils.data.dataset",
    "torch.utils.data.sampler", "torch.utils.data.distributed", "torch.distributions.", "torch.ao.",
)  # fmt: skip
_WRAPPERS = ("torch.distributed.", "torch._dynamo.", "torch.jit.", "torch.fx.", "torch.export.")
_SHOW_ONLY = frozenset((  # packages whose objects show or record the training, and feed nothing into it
    "tqdm", "rich", "matplotlib", "seaborn", "plotly", "wandb", "tensorboard", "tensorboardX", "mlflow", "comet_ml",
    "neptune", "clearml", "aim", "swanlab", "loguru", "structlog", "absl", "IPython", "ipywidgets", "ipykernel",
    "psutil", "pynvml", "sacred", "visdom", "dvclive", "prometheus_client", "progressbar", "alive_progress",
    "enlighten", "pytest", "_pytest", "pluggy",
))  # fmt: skip


class Category(Enum):
    """The ways to treat a value."""

    SCALAR = auto()
    """a number, a text, None, or another immutable value that its text describes completely"""
    ENUM = auto()
    TENSOR = auto()
    ARRAY = auto()
    GENERATOR = auto()
    """a generator of random numbers"""
    CONTAINER = auto()
    MODULE = auto()
    OBJECT = auto()
    """an object with attributes of its own"""
    FUNCTION = auto()
    METHOD = auto()
    CLASS = auto()
    PYTHON_MODULE = auto()
    LOADER = auto()
    OPTIMIZER = auto()
    ITERATOR = auto()
    """an object with a position that nobody can read"""
    OPAQUE = auto()
    """an object whose attributes are not read"""


@dataclass(frozen=True)
class Kind:
    """The properties that all instances of a type have."""

    category: Category
    name: str
    """qualified name of the type"""
    is_of_script: bool = False
    """whether the script has defined the type"""
    is_stateful: bool = False
    """whether the type has a load_state_dict(), or is a data set or a sampler of torch's"""
    is_subclass: bool = False
    """whether the type derives from a builtin, torch's or NumPy's type, so that its methods may be foreign"""
    read_dict: Callable[[Any], dict[str, Any]] | None = None
    """returns the attributes of an instance; None for a type whose instances have no plain `__dict__`"""
    slots: tuple[tuple[str, Any], ...] = ()
    """names and descriptors of the slots"""


_known: dict[int, tuple[type, Kind]] = {}  # by id: a metaclass may hash and compare as it likes


def kind_of_type(kind: type) -> Kind:
    """Classify a type, or return the result of an earlier call."""
    found = _known.get(id(kind))
    if found is None or found[0] is not kind:
        found = _known[id(kind)] = kind, _classify(kind)
    return found[1]


def is_ours(file: str) -> bool:
    """Return whether a file belongs to these hooks."""
    return file.startswith(_OURS)


def is_library(file: str | None) -> bool:
    """Return whether a file is Python's, an installed package's or ours. None, for code without a file, is."""
    if file is None or file.startswith("<frozen") or is_ours(file):
        return True
    return file.startswith(_STDLIB) or bool(_INSTALLED.intersection(Path(file).parts))


def is_script_module(name: object) -> bool:
    """Return whether the imported module of this name is the script, or a module that belongs to the script."""
    if not isinstance(name, str) or name.partition(".")[0] in _OUR_PACKAGES:
        return False
    module = sys.modules.get(name)
    if type(module) is not ModuleType:
        return False
    file = vars(module).get("__file__")
    return name == "__main__" or (isinstance(file, str) and not is_library(file))


def instance_dict(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance without running code of its class; {} where there are none."""
    read = kind_of_type(type(value)).read_dict
    return {} if read is None else read(value)


def _classify(kind: type) -> Kind:
    name = text_of(kind, "__qualname__")
    module = text_of(kind, "__module__")
    builtin = _builtin_category(kind)
    if builtin is not None:
        category, is_subclass = builtin
        return Kind(category, name, is_subclass=is_subclass, read_dict=_dict_reader(kind))
    is_script = kind in (SimpleNamespace, Namespace) or module == "__main__" or is_script_module(module)
    read = _dict_reader(kind)
    slots = _slots(kind)
    iterates = any("__next__" in vars(base) for base in kind.__mro__)
    has_attributes = read is not None or bool(slots)
    if module.startswith("torchdata.") and name.endswith("DataLoader"):
        return Kind(Category.LOADER, name, read_dict=read)
    if is_script and has_attributes:
        return Kind(Category.OBJECT, name, is_of_script=True, read_dict=read, slots=slots)
    if has_attributes and _carries_state(module):
        has_state = any("load_state_dict" in vars(base) for base in kind.__mro__)
        is_stateful = has_state or module.startswith("torch.utils.data.")
        return Kind(Category.OBJECT, name, is_stateful=is_stateful, read_dict=read, slots=slots)
    is_iterator = iterates and not _only_shows(module)
    return Kind(Category.ITERATOR if is_iterator else Category.OPAQUE, name, read_dict=read)


def _builtin_category(kind: type) -> tuple[Category, bool] | None:
    """Return the category of a type of Python, torch or NumPy, and False; or of a type that derives from one, and True.

    None is for all other types.
    """
    if kind in SCALARS or kind in _PRINTED:
        return Category.SCALAR, False
    if issubclass(kind, Enum):
        return Category.ENUM, False
    if kind_of_class(kind) is not None:
        return Category.GENERATOR, False
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray):
        return Category.ARRAY, kind is not numpy.ndarray
    if numpy is not None and issubclass(kind, numpy.generic):
        return Category.SCALAR, False
    for bases, category in _BY_BASE:
        if issubclass(kind, bases):
            return category, kind not in bases
    return None


_BY_BASE: tuple[tuple[tuple[type, ...], Category], ...] = (
    (SCALARS, Category.SCALAR),
    ((PurePath,), Category.SCALAR),
    ((Tensor,), Category.TENSOR),
    ((DistributedDataParallel, DataParallel), Category.MODULE),
    ((nn.Module,), Category.MODULE),
    ((Optimizer,), Category.OPTIMIZER),
    ((DataLoader,), Category.LOADER),
    (CONTAINERS, Category.CONTAINER),
    ((FunctionType,), Category.FUNCTION),
    ((MethodType,), Category.METHOD),
    ((type,), Category.CLASS),
    ((ModuleType,), Category.PYTHON_MODULE),
    ((io.IOBase,), Category.ITERATOR),
)


def _carries_state(module: str) -> bool:
    """Return whether to read the attributes of objects whose class an installed package defines in `module`."""
    if module.startswith("torch.") or module == "torch":
        return module.startswith(_STATEFUL_OF_TORCH)
    if _only_shows(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and not is_ours(file) and not _is_in_stdlib(file)


def _only_shows(module: str) -> bool:
    return module.partition(".")[0] in _SHOW_ONLY


def _is_in_stdlib(file: str) -> bool:
    """Return whether a file belongs to Python's own library, whose folder also has the installed packages."""
    return file.startswith(_STDLIB) and not _INSTALLED.intersection(Path(file).parts)


def own_class(module: nn.Module) -> type:
    """Return the class of a module without the class that FSDP2 puts in front."""
    for kind in type(module).__mro__:
        if not text_of(kind, "__module__").startswith("torch.distributed."):
            return kind
    return type(module)


def is_wrapper(module: nn.Module) -> bool:
    """Return whether a module only wraps another module, so that its own numbers belong to the wrapper's machinery."""
    if issubclass(type(module), (DistributedDataParallel, DataParallel)):
        return True
    return text_of(own_class(module), "__module__").startswith(_WRAPPERS)


def is_torchs(kind: type) -> bool:
    """Return whether a class is torch's own."""
    return text_of(kind, "__module__").startswith("torch.")


def text_of(kind: type, name: str) -> str:
    """Return an attribute of a class if it is a text, without running code of the metaclass; "" otherwise."""
    text = type.__getattribute__(kind, name)
    return text if isinstance(text, str) else ""


def _dict_reader(kind: type) -> Callable[[Any], dict[str, Any]] | None:
    """Return a function that reads the attributes of an instance; None for a class without a plain `__dict__`."""
    for base in kind.__mro__:
        descriptor = vars(base).get("__dict__")
        if descriptor is not None and base is not type:
            return descriptor.__get__ if type(descriptor) in (GetSetDescriptorType, MemberDescriptorType) else None
    return None


def _slots(kind: type) -> tuple[tuple[str, Any], ...]:
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if "__slots__" not in vars(base):
            continue  # members of a type that is written in C may be read-only
        for name, descriptor in vars(base).items():
            if type(descriptor) is MemberDescriptorType:
                found.setdefault(name, descriptor)
    return tuple(found.items())

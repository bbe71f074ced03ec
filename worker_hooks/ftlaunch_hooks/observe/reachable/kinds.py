"""What kind of thing a value is, told from its type alone: nothing of the value is run."""

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
_OF_TORCH = (  # torch's plain objects that carry state; its others hold streams, events, handles and caches
    "torch.nn.", "torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch.utils.data.dataset",
    "torch.utils.data.sampler",
    "torch.utils.data.distributed", "torch.distributions.", "torch.ao.",
)  # fmt: skip
_WRAPPERS = ("torch.distributed.", "torch._dynamo.", "torch.jit.", "torch.fx.", "torch.export.")
_SHOW_ONLY = frozenset(  # packages whose objects show or record the training, and feed nothing into it
    [
        "tqdm",
        "rich",
        "matplotlib",
        "seaborn",
        "plotly",
        "wandb",
        "tensorboard",
        "tensorboardX",
        "mlflow",
        "comet_ml",
        "neptune",
        "clearml",
        "aim",
        "swanlab",
        "loguru",
        "structlog",
        "absl",
        "IPython",
        "ipywidgets",
        "ipykernel",
        "psutil",
        "pynvml",
        "sacred",
        "visdom",
        "dvclive",
        "prometheus_client",
        "torchvision.utils",
        "progressbar",
        "alive_progress",
        "enlighten",
        "pytest",
        "_pytest",
        "pluggy",
    ]
)


class Category(Enum):
    """What can be done with a value."""

    SCALAR = auto()
    """a number, a text, None, or an immutable value whose text says all of it"""
    ENUM = auto()
    TENSOR = auto()
    ARRAY = auto()
    GENERATOR = auto()
    """of random numbers"""
    CONTAINER = auto()
    MODULE = auto()
    OBJECT = auto()
    """has attributes of its own"""
    FUNCTION = auto()
    METHOD = auto()
    CLASS = auto()
    PYTHON_MODULE = auto()
    LOADER = auto()
    OPTIMIZER = auto()
    ITERATOR = auto()
    """has a position that nobody can read"""
    OPAQUE = auto()
    """not looked into"""


@dataclass(frozen=True)
class Kind:
    """What a type says of its instances."""

    category: Category
    name: str
    is_of_script: bool = False
    is_stateful: bool = False
    """has a load_state_dict(), or is a data set or a sampler"""
    is_subclass: bool = False
    """of a container or a number: made by methods that may be foreign"""
    read_dict: Callable[[Any], dict[str, Any]] | None = None
    slots: tuple[tuple[str, Any], ...] = ()


_known: dict[int, tuple[type, Kind]] = {}  # by id: a metaclass may hash and compare as it likes


def kind_of_type(kind: type) -> Kind:
    """Classify a type; once for each."""
    found = _known.get(id(kind))
    if found is None or found[0] is not kind:
        found = _known[id(kind)] = kind, _classify(kind)
    return found[1]


def is_ours(file: str) -> bool:
    """Whether a file is one of the hooks'."""
    return file.startswith(_OURS)


def is_library(file: str | None) -> bool:
    """Whether a file is Python's, an installed package's or ours; what has no file is none of the script's."""
    if file is None or file.startswith("<frozen") or is_ours(file):
        return True
    return file.startswith(_STDLIB) or bool(_INSTALLED.intersection(Path(file).parts))


def is_script_module(name: object) -> bool:
    """Whether an imported module of that name is the script, or one that belongs to it."""
    if not isinstance(name, str) or name.partition(".")[0] in _OUR_PACKAGES:
        return False
    module = sys.modules.get(name)
    if type(module) is not ModuleType:
        return False
    file = vars(module).get("__file__")
    return name == "__main__" or (isinstance(file, str) and not is_library(file))


def instance_dict(value: Any) -> dict[str, Any]:
    """The attributes of an instance, read without its class; {} where there are none."""
    read = kind_of_type(type(value)).read_dict
    return {} if read is None else read(value)


def _classify(kind: type) -> Kind:
    name, module = text_of(kind, "__qualname__"), text_of(kind, "__module__")
    builtin = _builtin_category(kind)
    if builtin is not None:
        category, is_subclass = builtin
        return Kind(category, name, is_subclass=is_subclass, read_dict=_dict_reader(kind))
    is_script = kind in (SimpleNamespace, Namespace) or module == "__main__" or is_script_module(module)
    read, slots = _dict_reader(kind), _slots(kind)
    iterates = any("__next__" in vars(base) for base in kind.__mro__)
    has_attributes = read is not None or bool(slots)
    if is_script and has_attributes:
        return Kind(Category.OBJECT, name, is_of_script=True, read_dict=read, slots=slots)
    if has_attributes and _carries_state(module):
        stateful = any("load_state_dict" in vars(base) for base in kind.__mro__)
        stateful = stateful or module.startswith("torch.utils.data.")
        return Kind(Category.OBJECT, name, is_stateful=stateful, read_dict=read, slots=slots)
    return Kind(Category.ITERATOR if iterates and not _is_of_show(module) else Category.OPAQUE, name, read_dict=read)


def _builtin_category(kind: type) -> tuple[Category, bool] | None:
    """The category of a type that is Python's, torch's or NumPy's, or derives from one; and whether it derives."""
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
    """Whether objects of an installed package's class are looked into."""
    if module.startswith("torch.") or module == "torch":
        return module.startswith(_OF_TORCH)
    if _is_of_show(module):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and not is_ours(file) and not _is_of_python(file)


def _is_of_show(module: str) -> bool:
    return module.partition(".")[0] in _SHOW_ONLY or module in _SHOW_ONLY


def _is_of_python(file: str) -> bool:
    """Whether a file is of Python's own library; that lies above the installed packages."""
    return file.startswith(_STDLIB) and not _INSTALLED.intersection(Path(file).parts)


def own_class(module: nn.Module) -> type:
    """The class of a module without what FSDP2 puts in front of it."""
    for kind in type(module).__mro__:
        if not text_of(kind, "__module__").startswith("torch.distributed."):
            return kind
    return type(module)


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module only carries another one: its numbers are those of its machinery."""
    if issubclass(type(module), (DistributedDataParallel, DataParallel)):
        return True
    return text_of(own_class(module), "__module__").startswith(_WRAPPERS)


def is_torchs(kind: type) -> bool:
    """Whether a class is one of torch's own."""
    return text_of(kind, "__module__").startswith("torch.")


def text_of(kind: type, name: str) -> str:
    """An attribute of a class that is a text, read without the metaclass; "" for anything else."""
    text = type.__getattribute__(kind, name)
    return text if isinstance(text, str) else ""


def _dict_reader(kind: type) -> Callable[[Any], dict[str, Any]] | None:
    """What reads the attributes of an instance; None for a class without, or with a `__dict__` of its own making."""
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

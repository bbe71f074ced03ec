"""Turns a forked process into the process that `python -u script.py` or `python -u -m module` would have started.

https://docs.python.org/3/using/cmdline.html says what a script finds at its start, and the documentation of
sys.excepthook how a script ends. fork_server.py loads this module as a file: `see_modules`, `hide_torch` and
`show_torch` run in the fork server, `become` runs in each forked rank.
"""

from __future__ import annotations

import atexit
import builtins
import importlib
import importlib.abc
import importlib.util
import os
import re
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any


def see_modules(kind: str, target: str) -> None:
    """Put the rank's folder at the head of sys.path, as Python does.

    Args:
        kind: `script` or `module`.
        target: the script's path or the module's name.
    """
    if not getattr(sys.flags, "safe_path", False):
        folder = os.path.dirname(os.path.realpath(target)) if kind == "script" else os.getcwd()  # noqa: PTH109, PTH120
        sys.path.insert(0, folder)


def become(kind: str, target: str, args: Sequence[str], env: Mapping[str, str]) -> None:
    """Run the rank's script in this process to its end. The process then ends as Python does after this call.

    Args:
        kind: `script` or `module`.
        target: the script's path or the module's name.
        args: the script's arguments.
        env: the rank's whole environment.

    Raises:
        SystemExit: the script has raised it, or another exception, which was shown.
        KeyboardInterrupt: the script was interrupted, which was shown.
    """
    os.environ.clear()
    os.environ.update(env)
    _given.update(env)
    option = ["-m", target] if kind == "module" else [target]
    sys.orig_argv[:] = [sys.orig_argv[0], "-u", *option, *args]
    _sibling("shown_command").show_command(sys.orig_argv)
    sys.argv[:] = ["-m" if kind == "module" else target, *args]
    _reseed_generators()
    _hook_imports(env)
    main = ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    try:
        if kind == "module":
            runpy._run_module_as_main(target)  # type: ignore[attr-defined] # what Python itself calls
        else:
            exec(_code(target, main), main.__dict__)  # noqa: S102 - the user's script
        return
    except SystemExit as exits:
        if (hooks := sys.modules.get("ftlaunch_hooks.process.interpreter_end")) is not None:
            hooks.exits_with(exits.code)
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the script ends with
        uncaught = error.with_traceback(_without_own_frames(error.__traceback__))
    _show(uncaught)
    if isinstance(uncaught, KeyboardInterrupt):
        sys.excepthook = lambda *_: None  # the interrupt was shown above
        raise KeyboardInterrupt  # Python ends such a process by SIGINT
    raise SystemExit(1)


def _code(target: str, main: ModuleType) -> CodeType:
    """Compile the script, which is read now because it may have changed since the last attempt.

    Also give `main` the attributes that Python gives a script's module. If the script cannot be compiled, run a plain
    Python in this process, which reports what is wrong.
    """
    path = target if os.path.isabs(target) else f"{os.getcwd()}/{target}"  # noqa: PTH109, PTH117 - as Python makes it
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    try:
        return compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        os.execvp(sys.orig_argv[0], sys.orig_argv)  # noqa: S606 - this process, with its own arguments


def _show(error: BaseException) -> None:
    """Show an uncaught exception as Python does."""
    sys.last_type = type(error)
    sys.last_value = error
    sys.last_traceback = error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException as second:  # noqa: BLE001 - the hook may be the script's
        failed = second.with_traceback(_without_own_frames(second.__traceback__))
    else:
        return
    sys.stderr.write("Error in sys.excepthook:\n")
    sys.__excepthook__(type(failed), failed, failed.__traceback__)
    sys.stderr.write("\nOriginal exception was:\n")
    sys.__excepthook__(type(error), error, error.__traceback__)


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without this file's frames at its head."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _reseed_generators() -> None:
    """Give NumPy's and torch's generators new seeds, because forked ranks must not draw the same numbers.

    Python itself seeds `random` after a fork.
    """
    if (numpy := sys.modules.get("numpy.random")) is not None:
        numpy.seed()
    _generator[0].seed()
    if (processes := sys.modules.get("multiprocessing")) is not None:
        processes.current_process().authkey = os.urandom(32)


_generator: list[Any] = []  # torch's default generator
_deferred: list[DeferredPackage] = []
_given: dict[str, str] = {}  # the environment at the rank's start
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_READ_AT_IMPORT = re.compile(r"(?:OMP|MKL|KMP|GOMP|OPENBLAS|TORCH|PYTORCH)_")


def hide_torch() -> None:
    """Take torch and these hooks out of sys.modules, so that their effects at import happen at the script's import.

    This call touches every module, which takes milliseconds. Therefore it runs before an order arrives, and before the
    fork, where it copies no memory. The caches of the import system are emptied, so that the script finds new files.
    ftlaunch_contract stays in sys.modules: its import has no effect that a script could miss.
    """
    importlib.invalidate_caches()
    _generator[:] = [sys.modules["torch"].default_generator]
    hooks = sys.modules.get("ftlaunch_hooks")
    observe = sys.modules.get("ftlaunch_hooks.observe.optimizer_steps")
    observe_steps = observe.install if observe is not None else _do_nothing

    def imported() -> None:
        _apply_environment(sys.modules["torch"])
        _seed_torch(_given)
        observe_steps()

    _deferred.append(DeferredPackage("torch", imported))
    if hooks is not None:
        _deferred.append(DeferredPackage("ftlaunch_hooks", hooks.bootstrap.install))


def show_torch() -> None:
    """Put torch and the hooks back into sys.modules, until `hide_torch` is called again."""
    while _deferred:
        _deferred.pop().open()


def _apply_environment(torch: ModuleType) -> None:
    """Apply the variables that the script has set for torch's import: set the number of threads, warn of the others."""
    late = {name: value for name, value in os.environ.items() if _given.get(name) != value}
    if (threads := late.get(_THREADS[0], late.get(_THREADS[1], ""))).isdecimal() and int(threads):
        torch.set_num_threads(int(threads))
    lost = sorted(name for name in late if _READ_AT_IMPORT.match(name) and name not in _THREADS)
    if lost:
        sys.stderr.write(
            f"ftlaunch: {', '.join(lost)}, set by the script before it imports torch, may come too late: a warm process"
            " has imported it already; --no-warm starts plain ones\n"
        )


def _hook_imports(env: Mapping[str, str]) -> None:
    """Install the import hook, as early/sitecustomize.py does in a rank that is not forked."""
    early = str(Path(__file__).parent / "early")
    folders = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder not in ("", early)]
    os.environ.pop("PYTHONPATH", None)
    if folders:  # programs that the script starts must not run our sitecustomize.py
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)
    _sibling("import_hook").install(env, forked=True)


def _seed_torch(env: Mapping[str, str]) -> None:
    """Give torch the job's seed, as its import does in a rank that is not forked."""
    for name, seed in _sibling("unseeded_draws").calls(env, with_torch=True).items():
        if name == "torch":
            seed(sys.modules["torch"])


def _sibling(name: str) -> ModuleType:
    """Load a file from beside this one: a Python without these hooks cannot import it as part of a package."""
    spec = importlib.util.spec_from_file_location(f"_ftlaunch_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _do_nothing() -> None:
    """Observe no steps: this Python has no hooks."""


class DeferredPackage(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A package that is imported already, but appears in sys.modules only when the script imports it."""

    def __init__(self, package: str, imported: Callable[[], object]) -> None:
        """Take the package out of sys.modules.

        Args:
            package: the top-level package's name.
            imported: called when the script imports the package; repeats the package's effects at import.
        """
        self._package = package
        self._imported = imported
        names = [name for name in sys.modules if name.partition(".")[0] == package]
        self._modules = {name: sys.modules.pop(name) for name in names}
        self._spec = self._modules[package].__spec__
        sys.meta_path.insert(0, self)
        atexit.register(self.open)  # at exit Python cleans up only what is in sys.modules

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return a spec for the package itself only: Python asks for a package before any of its modules."""
        return ModuleSpec(name, self) if name == self._package else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Put the package back, and return its module, which is imported already."""
        self.open()
        return self._modules[self._package]

    def exec_module(self, module: ModuleType) -> None:
        """Repeat the package's effects at import. The module's code is not executed again."""
        module.__spec__ = self._spec
        self._imported()

    def open(self) -> None:
        """Put the package back into sys.modules."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.modules.update(self._modules)
            atexit.unregister(self.open)

"""Builds the extension of the simulated accelerator, once for each version of torch and of its sources."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import torch

NAME = "ftlaunch_simulated_accelerator"
_SOURCES = Path(__file__).parent / "csrc"
_FLAGS = ["-O1", "-Wall", "-Wno-unknown-pragmas"]


def missing_tool() -> str | None:
    """Return the name of a program that the build needs and this machine lacks; None where it has all."""
    return next((tool for tool in (os.environ.get("CXX", "g++"), "ninja") if shutil.which(tool) is None), None)


def directory() -> Path:
    """Return where the extension of these sources, for this torch and this Python, is or will be."""
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    tag = f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{digest.hexdigest()[:16]}"
    return cache / "ftlaunch" / "simulated-accelerator" / tag


def library() -> Path:
    """Return the path of the extension, and build it where it is not there. This takes about two minutes once.

    Processes that ask at once wait for the one that builds. A build that was killed is begun anew.

    Raises:
        RuntimeError: the compiler fails; what it says is on stderr.
    """
    place = directory()
    place.mkdir(parents=True, exist_ok=True)
    built = place / f"{NAME}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if built.exists():
        return built
    with (place / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            work = place / "work"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            from torch.utils import cpp_extension  # seconds to import

            cpp_extension.load(
                NAME,
                [str(path) for path in sorted(_SOURCES.glob("*.cpp"))],
                extra_cflags=_FLAGS,
                build_directory=str(work),
                is_python_module=False,
                is_standalone=False,
                verbose=True,
            )
            (work / f"{NAME}.so").rename(built)
            shutil.rmtree(work)
    return built


def load() -> ModuleType:
    """Return the extension as a module, after it has registered itself with torch. Raises what `library` raises."""
    path = str(library())
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_loader(NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    print(library())

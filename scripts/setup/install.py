"""Installs torch, then ftlaunch and its tools, into the environment whose Python runs this file; says how long it took.

    .venv/bin/python scripts/setup/install.py --torch auto --constraints constraints/cpu.txt

This file needs only the standard library, because it runs before anything is installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from torch_index import BUILDS, CPU_INDEX, choose, has_driver, users_indexes, why_unreachable

ROOT = Path(__file__).resolve().parents[2]
_ACCELERATORS = {"cuda": "CUDA", "hip": "ROCm", "xpu": "XPU"}  # variable in torch/version.py -> its name


def main() -> int:
    """Install torch, whose build is chosen first, and then the rest; return the exit code."""
    options = _parse()
    if options.torch not in BUILDS:
        sys.exit(f"cannot use TORCH={options.torch}: it must be one of {', '.join(BUILDS)}")
    limits = ["--constraint", options.constraints] if options.constraints else []
    users = users_indexes(options.constraints if options.own_constraints else "", os.environ)
    choice = choose(options.torch, driver=has_driver(), users=users, why_not=lambda: why_unreachable(CPU_INDEX))
    say(f"installing torch: {choice.reason}")
    before = installed_torch()
    upgrade = ["--upgrade"] if options.newest else []
    seconds = _pip("torch", *limits, *upgrade, *choice.arguments, torch_requirement())
    after = installed_torch()
    if after is None:
        sys.exit("cannot find torch in the environment that pip has just installed it into")
    version, build = after
    say(f"{'kept' if after == before else 'installed'} torch {version} ({build} build) in {seconds}")
    if options.torch != "auto" and (options.torch == "cpu") != (build == "CPU"):
        sys.exit(
            f"cannot give torch as TORCH={options.torch} asks: the environment has torch {version}, the {build} build; "
            "`make distclean` removes an environment made before, and without TORCH this build is taken"
        )
    say("installing ftlaunch, and what its tests, checks and example need")
    seconds = _pip("ftlaunch", *limits, "--editable", f"{ROOT}[torch,dev,example]")
    say(f"installed ftlaunch in {seconds}")
    return 0


def say(text: str) -> None:
    """Print a line that is seen at once, also in a pipe."""
    print(text, flush=True)


def duration(seconds: float) -> str:
    """Return seconds as people read them."""
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def torch_requirement() -> str:
    """Return what pyproject.toml requires of torch, without a parser of TOML, which Python 3.10 lacks."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'^torch = \[.*"(torch\b[^"]*)"\]$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def installed_torch() -> tuple[str, str] | None:
    """Return version and build of the installed torch, without importing it; None if there is none."""
    importlib.invalidate_caches()
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    return read_build(Path(found.origin).with_name("version.py").read_text(encoding="utf-8"))


def read_build(text: str) -> tuple[str, str]:
    """Return version and build (CPU, CUDA, ROCm or XPU) that a torch/version.py names."""
    values = dict(re.findall(r"^(\w+)(?:: [^=]*)? = '([^']*)'$", text, re.MULTILINE))
    return values["__version__"], next((name for key, name in _ACCELERATORS.items() if key in values), "CPU")


def _pip(what: str, *arguments: str) -> str:
    """Run `pip install`; return how long it took. The output of pip is shown only if something went wrong."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{done.stdout}cannot install {what}: pip ended with exit code {done.returncode}; its words are above")
    for line in done.stdout.splitlines():
        if line.startswith("ERROR"):  # pip reports a conflict, installs the packages anyway, and exits with 0
            say(line)
    return duration(time.monotonic() - begin)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default="auto", help=f"the build of torch: {', '.join(BUILDS)}")
    parser.add_argument("--constraints", default="", help="a file of pip's constraints; empty for none")
    parser.add_argument("--newest", action="store_true", help="another torch is replaced by the newest that pip finds")
    parser.add_argument("--own-constraints", action="store_true", help="the user named them, and so the build of torch")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Runs the tests on other versions of Python, as far as this machine has them.

    python scripts/setup/pythons.py all        `make test` on each, in an environment of its own: .venv-3.10 and so on
    python scripts/setup/pythons.py ends       a part of the tests, without torch, on the oldest and on the newest

--versions names others than all that are known. Exit codes: 0 all passed; 1 one failed; 2 the machine has none of them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
USAGE = 2

# Tests that need no torch, of what differs between Pythons: system calls, signals, tracebacks, subprocesses, the
# standard library. `make test-pythons` runs all tests; installing torch alone takes longer than this part may take.
PART = (
    "tests/unit/autopsy", "tests/unit/nodes/channel", "tests/unit/common", "tests/unit/policy", "tests/unit/ranks",
    "tests/unit/reporting", "tests/unit/system", "tests/proc/test_sleeping_threads.py",
    "tests/unit/hooks/observe/reachable/test_frame_locals.py", "tests/unit/hooks/observe/reachable/test_loop_names.py",
    "tests/faults/test_catalogue.py::test_the_verdicts[later]",
)  # fmt: skip
PART_NEEDS = ("hypothesis>=6.100", "pytest>=8.0", "pytest-timeout>=2.3", "pytest-xdist>=3.5")


@dataclass(frozen=True)
class Python:
    """An interpreter of this machine."""

    version: str  # such as 3.10
    path: str  # of the program

    def environment(self, kind: str = "") -> Path:
        """Return the folder of the virtual environment that is made of it. git and `make lint` ignore it."""
        return ROOT / f".venv-{kind}{self.version}"


def find_pythons(versions: Sequence[str]) -> list[Python]:
    """Return the Pythons of this machine that have one of these versions, in the order of `versions`."""
    found = []
    for version in versions:
        path = next((path for path in candidates(version) if can_be_used(path, version)), None)
        if path is not None:
            found.append(Python(version, path))
    return found


def candidates(version: str) -> Iterator[str]:
    """Yield where a Python of a version may lie: this program, a program on PATH, those of pyenv, those of uv."""
    name = f"python{version}"
    yield sys.executable
    if on_path := shutil.which(name):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or Path.home() / ".local/share/uv/python")
    for path in (*pyenv.glob(f"versions/{version}.*/bin/{name}"), *uv.glob(f"cpython-{version}.*/bin/{name}")):
        yield str(path)


def can_be_used(path: str, version: str) -> bool:
    """Return whether a program is a Python of a version with which environments can be made.

    pyenv's shims may not be.
    """
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.strip() == version


def run_all_tests(python: Python) -> bool:
    """Run `make test` with a Python; return whether all tests have passed."""
    say(f"Python {python.version} ({python.path})")
    make = ["make", f"PYTHON={python.path}", f"VENV={python.environment().name}", "test"]
    return subprocess.run(make, cwd=ROOT, check=False).returncode == 0


def run_part(python: Python) -> bool:
    """Run a part of the tests with a Python; return whether all of them have passed.

    The output is shown if one has not.
    """
    begin = time.monotonic()
    environment = python.environment("part-")
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    interpreter = str(environment / "bin/python")
    # The environment's own pip is used: an older pip may not run on a newer Python (Debian 12's 23.0 fails on 3.13).
    install = [interpreter, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check",
               "--editable", str(ROOT), *PART_NEEDS]  # fmt: skip
    commands = (
        [python.path, "-m", "venv", "--clear", str(environment)],
        install,
        [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *PART],
    )
    for command in commands:
        done = subprocess.run(
            command, cwd=ROOT, env=bare, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            say(f"{done.stdout}Python {python.version}: `{' '.join(command[:4])} ...` ended with {done.returncode}")
            return False
    last = done.stdout.strip().splitlines()[-1]
    say(f"Python {python.version}: {last.strip(' =')}; {time.monotonic() - begin:.0f} s with its environment")
    return True


def run(what: str, versions: Sequence[str]) -> int:
    """Run all tests, or a part, on the Pythons of these versions; return the exit code."""
    pythons = find_pythons(versions)
    if not pythons:
        say(f"cannot test other Pythons: this machine has none of {', '.join(versions)}")
        return USAGE
    if missing := [version for version in versions if version not in {python.version for python in pythons}]:
        say(f"not tested, because this machine has none: Python {', '.join(missing)}")
    if what == "all":
        passed = [run_all_tests(python) for python in pythons]
        for python, good in zip(pythons, passed, strict=True):
            say(f"Python {python.version}: {'passed' if good else 'failed'}")
    else:
        ends = {python.version: python for python in (pythons[0], pythons[-1])}.values()
        with ThreadPoolExecutor() as pool:
            passed = list(pool.map(run_part, ends))
    return 0 if all(passed) else 1


def say(text: str) -> None:
    """Print a line that is seen at once, also in a pipe."""
    print(text, flush=True)


def main() -> int:
    """Read the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("all", "ends"))
    parser.add_argument("--versions", default=" ".join(VERSIONS), help="with blanks between them, as in '3.10 3.13'")
    options = parser.parse_args()
    return run(options.what, options.versions.split())


if __name__ == "__main__":
    sys.exit(main())

"""Checks the wheel and the sdist of a folder: what each holds, and that it works, installed in a fresh environment.

    make check-dist

An environment gets everything that the package declares, except torch: ftlaunch itself needs no torch, the job that is
run here has none, and the CUDA build would be gigabytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PACKAGES = ("ftlaunch", "ftlaunch_contract", "ftlaunch_hooks", "ftlaunch_mindspore", "ftlaunch_ray")
INSTALLED = (*(f"{package}/py.typed" for package in PACKAGES), "ftlaunch/fault_rules.yaml")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/conftest.py", "docs/architecture.md",
           "configs/fault_rules.yaml", "constraints/cpu.txt", "scripts/demo.py")  # fmt: skip
NEVER = (".venv", "runs", "out", "dist", "build", ".git")  # at the top of an sdist

REQUIRED = """
from importlib.metadata import requires
needed = [one.replace(" ", "") for one in requires("ftlaunch") if ";" not in one]
print(*(one for one in needed if not one.startswith("torch")))
"""
FILES = """
from importlib.metadata import files
print(*files("ftlaunch"), sep="\\n")
"""
TINY = """
import os, pathlib
pathlib.Path(f"rank-{os.environ['RANK']}-of-{os.environ['WORLD_SIZE']}").touch()
"""


def main() -> None:
    """Check both; the first fault ends it with a sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds one wheel and one sdist")
    folder = parser.parse_args().folder.resolve()
    wheel, sdist = _only(folder, "*.whl"), _only(folder, "*.tar.gz")
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as opened:
        _refuse(wheel, installed_faults(opened.namelist()))
    with tarfile.open(sdist) as opened:
        names = [name.split("/", 1)[1] for name in opened.getnames()]
    _refuse(sdist, sdist_faults(names, _tracked()))
    with ThreadPoolExecutor() as both:
        for done in [both.submit(check_installed, archive, version) for archive in (wheel, sdist)]:
            print(done.result(), flush=True)


def installed_faults(names: Iterable[str]) -> list[str]:
    """What is wrong with a list of files that a wheel holds, or that an installation put into site-packages."""
    present = set(names)
    licences = [name for name in present if name.endswith(".dist-info/licenses/LICENSE")]
    missing = [name for name in INSTALLED if name not in present] + ([] if licences else ["LICENSE"])
    foreign = sorted({top for top in (name.split("/")[0] for name in present)
                      if top not in PACKAGES and not top.endswith(".dist-info")})  # fmt: skip
    return [*(f"{name} is missing" for name in missing), *(f"{top} does not belong there" for top in foreign)]


def sdist_faults(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """What is wrong with the list of files of an sdist. tracked: the files that git has, and so must the sdist."""
    present = set(names)
    missing = sorted({*SOURCES, *tracked} - present)
    foreign = sorted(name for name in present if name.split("/")[0] in NEVER or "__pycache__" in name)
    return [*(f"{name} is missing" for name in missing), *(f"{name} does not belong there" for name in foreign)]


def check_installed(archive: Path, version: str) -> str:
    """Install an archive into a fresh environment, and use it there. Returns what to say of how long both took."""
    with tempfile.TemporaryDirectory(prefix="ftlaunch-dist-") as folder:
        home, binaries = Path(folder), Path(folder, "venv/bin")
        begin = time.monotonic()
        install(archive, home, binaries)
        installed = time.monotonic()
        use(archive, version, home, binaries)
        seconds = installed - begin, time.monotonic() - installed
    return f"{archive.name}: installed in {seconds[0]:.1f} s, ran in {seconds[1]:.1f} s"


def install(archive: Path, home: Path, binaries: Path) -> None:
    """Make the environment, and install the archive and what it declares, except torch."""
    pip = (str(binaries / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(home, sys.executable, "-m", "venv", str(home / "venv"))
    run(home, *pip, "--no-deps", str(archive))
    run(home, *pip, *run(home, str(binaries / "python"), "-c", REQUIRED).split())


def use(archive: Path, version: str, home: Path, binaries: Path) -> None:
    """See what was installed, import it, and run its commands and a job of two ranks."""
    names = run(home, str(binaries / "python"), "-c", FILES).splitlines()
    _refuse(archive, installed_faults(name for name in names if not name.startswith("../")))  # the commands in bin/
    told = run(home, str(binaries / "ftlaunch"), "--version").strip()
    if version not in told.split():
        _refuse(archive, [f"`ftlaunch --version` says {told!r}, and not {version}"])
    run(home, str(binaries / "ftctl"), "--help")
    run(home, str(binaries / "python"), "-c", "import ftlaunch_hooks, ftlaunch_contract")
    (home / "tiny.py").write_text(TINY, encoding="utf-8")
    run(home, str(binaries / "ftlaunch"), "--nproc-per-node", "2", "tiny.py")
    ranks = sorted(path.name for path in home.glob("rank-*"))
    if ranks != ["rank-0-of-2", "rank-1-of-2"]:
        _refuse(archive, [f"a job of two ranks ended with 0 and left {', '.join(ranks) or 'nothing'}"])


def run(home: Path, *command: str) -> str:
    """Run a command in `home`, without this checkout's environment; returns what it prints. Its failure ends all."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = f"{done.stdout}{done.stderr}"
        sys.exit(
            f"{said}cannot go on: `{' '.join(command)}` ended with exit code {done.returncode}; its words are above"
        )
    return done.stdout


def _tracked() -> list[str]:
    """The files of this checkout that git tracks; none where it is no git checkout."""
    if not (Path(".git").exists() and shutil.which("git")):
        return []
    # A checkout that another user owns, as in some containers, is read all the same.
    listing = ["git", "-c", "safe.directory=*", "ls-files"]
    return subprocess.run(listing, capture_output=True, text=True, check=True).stdout.splitlines()


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"cannot check {folder}: it must hold one {pattern}, and holds {len(found)}; `make dist` builds both")
    return found[0]


def _refuse(archive: Path, faults: list[str]) -> None:
    if faults:
        sys.exit("\n".join(f"{archive.name}: {fault}" for fault in faults))


if __name__ == "__main__":
    main()

"""Checks the wheel and the sdist of a folder: what each holds, and that it works, installed in a fresh environment.

    make check-dist

An environment gets what the package declares, which includes no torch: the commands work, and the hooks say what is
missing. Then the environment gets the torch of the environment that runs this file, with what torch needs and nothing
else, and what the extra `torch` declares besides torch; a job is killed and resumes. With the wheel everything is typed
that docs/tutorial.md tells people to type, up to a survived kill and its report. Finally `pipx install` and `uv tool
install` of the wheel are tried, with a pipx and a uv that are installed for the check.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.support.console import Console  # noqa: E402

PACKAGES = ("ftlaunch", "ftlaunch_contract", "ftlaunch_hooks", "ftlaunch_mindspore", "ftlaunch_ray")
INSTALLED = (*(f"{package}/py.typed" for package in PACKAGES), "ftlaunch/fault_rules.yaml")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "Makefile", "tests/conftest.py", "docs/architecture.md",
           "configs/fault_rules.yaml", "constraints/cpu.txt", "scripts/demo.py")  # fmt: skip
NEVER = (".venv", "runs", "out", "dist", "build", ".git")  # must not lie at the top of an sdist

WITHOUT_TORCH = """
import ftlaunch_contract, ftlaunch_hooks
try:
    ftlaunch_hooks.attach
except ImportError as error:
    print(error)
"""
SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"
FILES = """
from importlib.metadata import files
print(*files("ftlaunch"), sep="\\n")
"""
IMPORTS_TORCH = "import torch\n"
TINY = """
import os, pathlib
pathlib.Path(f"rank-{os.environ['RANK']}-of-{os.environ['WORLD_SIZE']}").touch()
"""
TRAINS = """
import os, signal, sys
import torch
import ftlaunch_hooks as ft

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(20):
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    if step == 10 and os.environ["FTLAUNCH_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
print("trained in attempt", os.environ["FTLAUNCH_ATTEMPT"])
"""


def main() -> None:
    """Check both archives; the first fault ends the program with a sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="holds one wheel and one sdist")
    folder = parser.parse_args().folder.resolve()
    wheel = _only(folder, "*.whl")
    sdist = _only(folder, "*.tar.gz")
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as opened:
        _refuse(wheel, installed_faults(opened.namelist()))
    with tarfile.open(sdist) as opened:
        names = [name.split("/", 1)[1] for name in opened.getnames()]
    _refuse(sdist, sdist_faults(names, _tracked()))
    with ThreadPoolExecutor() as both:
        checks = [both.submit(check_installed, archive, version) for archive in (wheel, sdist)]
        for done in [*checks, both.submit(check_tools, wheel, version)]:
            print(done.result(), flush=True)


def installed_faults(names: Iterable[str]) -> list[str]:
    """Return what is wrong with the files that a wheel holds, or that an installation has put into site-packages."""
    present = set(names)
    licences = [name for name in present if name.endswith(".dist-info/licenses/LICENSE")]
    missing = [name for name in INSTALLED if name not in present] + ([] if licences else ["LICENSE"])
    foreign = sorted({top for top in (name.split("/")[0] for name in present)
                      if top not in PACKAGES and not top.endswith(".dist-info")})  # fmt: skip
    return [*(f"{name} is missing" for name in missing), *(f"{top} does not belong there" for top in foreign)]


def sdist_faults(names: Iterable[str], tracked: Iterable[str]) -> list[str]:
    """Return what is wrong with the files of an sdist, which must hold the files that git tracks."""
    present = set(names)
    missing = sorted({*SOURCES, *tracked} - present)
    foreign = sorted(name for name in present if name.split("/")[0] in NEVER or "__pycache__" in name)
    return [*(f"{name} is missing" for name in missing), *(f"{name} does not belong there" for name in foreign)]


def check_installed(archive: Path, version: str) -> str:
    """Install an archive into a fresh environment, and use it there; return a sentence with the time of both."""
    with tempfile.TemporaryDirectory(prefix="ftlaunch-dist-") as folder:
        home = Path(folder)
        binaries = home / "venv/bin"
        begin = time.monotonic()
        install(archive, home, binaries)
        installed = time.monotonic()
        use(archive, version, home, binaries)
        used = time.monotonic()
    return f"{archive.name}: installed in {installed - begin:.1f} s, ran in {used - installed:.1f} s"


def install(archive: Path, home: Path, binaries: Path) -> None:
    """Make the environment, and install the archive with what it declares."""
    run(home, sys.executable, "-m", "venv", str(home / "venv"))
    run(home, *_pip(binaries), str(archive))


def _pip(binaries: Path) -> tuple[str, ...]:
    return str(binaries / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"


def use(archive: Path, version: str, home: Path, binaries: Path) -> None:
    """Check what was installed, import it, and run its commands and jobs of two ranks, without torch and with torch."""
    python = str(binaries / "python")
    names = run(home, python, "-c", FILES).splitlines()
    # Files in `../` are the commands in bin/.
    _refuse(archive, installed_faults(name for name in names if not name.startswith("../")))
    printed = run(home, str(binaries / "ftlaunch"), "--version").strip()
    if version not in printed.split():
        _refuse(archive, [f"`ftlaunch --version` says {printed!r}, and not {version}"])
    run(home, str(binaries / "ftctl"), "--help")
    printed = run(home, python, "-c", WITHOUT_TORCH).strip()
    if "has no torch; install" not in printed:
        _refuse(archive, [f"without torch the hooks say {printed!r}"])
    (home / "imports.py").write_text(IMPORTS_TORCH, encoding="utf-8")
    printed = run(home, str(binaries / "ftlaunch"), "imports.py", code=1)
    if "pip install 'ftlaunch[torch]'`); giving up" not in printed:
        _refuse(archive, [f"a job whose script finds no torch is given up with {printed!r}"])
    (home / "tiny.py").write_text(TINY, encoding="utf-8")
    run(home, str(binaries / "ftlaunch"), "--nproc-per-node", "2", "tiny.py")
    ranks = sorted(path.name for path in home.glob("rank-*"))
    if ranks != ["rank-0-of-2", "rank-1-of-2"]:
        _refuse(archive, [f"a job of two ranks ended with 0 and left {', '.join(ranks) or 'nothing'}"])
    train(archive, home, binaries)


def train(archive: Path, home: Path, binaries: Path) -> None:
    """Check that a job with the hooks is killed and resumes, with the torch of the environment that runs this file.

    Everything that the extra `torch` declares besides torch is installed, too. Taken out: if the environment's other
    packages are visible, nobody notices that the hooks need NumPy, which torch does not install.
    """
    borrow_torch(Path(run(home, str(binaries / "python"), "-c", SITE).strip()))
    run(home, *_pip(binaries), f"{archive}[torch]")
    (home / "trains.py").write_text(TRAINS, encoding="utf-8")
    output = run(home, str(binaries / "ftlaunch"), "--nproc-per-node", "2", "--memory-interval", "1", "trains.py")
    if "trained in attempt 1" not in output:
        _refuse(archive, [f"a job that was killed once and has ended with 0 said {output!r}"])
    if archive.suffix == ".whl":
        follow_tutorial(archive, home / "tutorial", binaries)


def borrow_torch(site: Path) -> None:
    """Link torch, with everything that it declares to need, into another environment: an installation takes minutes.

    Args:
        site: the site-packages of that environment.
    """
    ahead = ["torch"]
    known: set[str] = set()
    while ahead:
        name = canonicalize_name(ahead.pop())
        if name in known:
            continue
        known.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            sys.exit(
                f"cannot check a job that trains: the Python that runs this has no {name}; `make setup` installs it"
            )
        for part in {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / part).exists():
                (site / part).symlink_to(str(found.locate_file(part)))
        needed = map(Requirement, found.requires or ())
        ahead += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]


def follow_tutorial(archive: Path, home: Path, binaries: Path) -> None:
    """Type what the tutorial tells people to type after the installation, and check that the report shows the kill."""
    home.mkdir()
    console = Console(home, f"FT_TEST={archive.name}-{os.getpid()}", binaries, _environment())
    try:
        console.follow(ROOT / "docs/tutorial.md")
        report = (console.work / "runs/tutorial-killed/report.html").read_text(encoding="utf-8")
    except AssertionError as error:
        _refuse(archive, [str(error)])
    finally:
        console.dispose()
    if "rank 1 was killed by SIGKILL" not in report:
        _refuse(archive, ["the report of the tutorial's job does not tell of the kill"])


def check_tools(wheel: Path, version: str) -> str:
    """Install the wheel as a tool with pipx and with uv, and check that `ftctl` works and no torch came along."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ftlaunch-tools-") as folder:
        home = Path(folder)
        binaries = home / "venv/bin"
        run(home, sys.executable, "-m", "venv", str(home / "venv"))
        run(home, str(binaries / "python"), "-m", "pip", "install", "--quiet", "pipx", "uv")
        for tool in ("pipx", "uv"):
            place = home / tool
            variables = {"PIPX_HOME": str(place), "PIPX_BIN_DIR": str(place / "bin"),
                         "PIPX_MAN_DIR": str(place / "man"), "UV_TOOL_DIR": str(place),
                         "UV_TOOL_BIN_DIR": str(place / "bin"),
                         "UV_CACHE_DIR": str(home / "cache"), "UV_SYSTEM_CERTS": "1"}  # fmt: skip
            words = ("tool", "install", "--python", sys.executable) if tool == "uv" else ("install",)
            run(home, str(binaries / tool), *words, str(wheel), variables=variables)
            printed = run(home, str(place / "bin/ftctl"), "--version").split()
            if version not in printed or list(place.rglob("site-packages/torch")):
                _refuse(
                    wheel, [f"installed with {tool}, ftctl --version says {' '.join(printed)!r}, or torch came along"]
                )
    return f"{wheel.name}: installed with pipx and with uv in {time.monotonic() - begin:.1f} s, both without torch"


def run(home: Path, *command: str, variables: Mapping[str, str] | None = None, code: int = 0) -> str:
    """Run a command in `home`, without this checkout's environment.

    Args:
        home: the working directory.
        command: the words of the command.
        variables: further variables of the environment.
        code: the required exit code; another one ends the program.

    Returns:
        Standard output, with standard error if `code` is not 0.
    """
    done = subprocess.run(
        command,
        cwd=home,
        env={**_environment(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    output = f"{done.stdout}{done.stderr}"
    if done.returncode != code:
        sys.exit(
            f"{output}cannot go on: `{' '.join(command)}` ended with exit code {done.returncode}; its words are above"
        )
    return output if code else done.stdout


def _environment() -> dict[str, str]:
    """Return the variables of this process, without those of its own Python environment."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def _tracked() -> list[str]:
    """Return the files of this checkout that git tracks; none if this is no git checkout."""
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

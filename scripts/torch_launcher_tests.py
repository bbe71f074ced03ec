"""Runs torch's own tests of torchrun (test/distributed/launcher/test_run.py) with ftlaunch in torchrun's place.

    python scripts/torch_launcher_tests.py --source DIR     DIR: a checkout of pytorch, of the installed version

Prints a line for each test: passed, failed, or left out and why. Exit codes: 0 all tests that were run have passed; 1
a test has failed; 2 the source cannot be used.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

LAUNCHER = Path("test/distributed/launcher")
FILE = "test_run.py"
PATIENCE = 120.0  # seconds for one launch
USAGE = 2  # exit code for what cannot be started

_CLASSES = "it replaces classes of torchrun inside this process, and ftlaunch has none of them"
_DEVICES = "it feigns GPUs inside this process, and ftlaunch asks the system in a process of its own"
LEFT_OUT = {
    "test_launch_elastic_agent_raise_exception": _CLASSES,
    "test_launch_elastic_worker_raise_exception": "it counts calls of torchrun's own `events.record`",
    "test_launch_shutdown": _CLASSES,
    "test_min_max_nodes_parse": "it calls a function of torchrun's own",
    "test_is_torchelastic_launched_with_logs_spec_defined": _CLASSES,
    "test_logs_logs_spec_entrypoint_must_be_defined": "`--logs-specs` names a class for torchrun's own log files",
    "test_nproc_gpu_launch_configurations": _DEVICES,
    "test_nproc_xpu_launch_configurations": _DEVICES,
    "test_is_not_torchelastic_launched": "it launches nothing",
}


class Unusable(Exception):
    """The source cannot be used; the message is a sentence."""


class Launcher(ModuleType):
    """The module that the tests call instead of torch.distributed.run."""

    def main(self, args: Sequence[str] | None = None) -> None:
        """Launch, and raise what torchrun would raise.

        Raises:
            ValueError: ftlaunch cannot be started with these arguments.
            ChildFailedError: ftlaunch has ended with another exit code than 0.
        """
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

        command = [sys.executable, "-m", "ftlaunch", *(args or ())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        if done.returncode == USAGE:
            raise ValueError(done.stderr.strip())
        if done.returncode:
            raise ChildFailedError(f"ftlaunch ended with {done.returncode}: {done.stderr.strip()}", {})


def load(source: Path) -> ModuleType:
    """Import the file of tests, with ftlaunch in torchrun's place. Raises Unusable."""
    file = next((path for path in (source / LAUNCHER / FILE, source / FILE) if path.is_file()), None)
    if file is None:
        raise Unusable(f"cannot run torch's tests: neither {source / LAUNCHER / FILE} nor {source / FILE} is a file")
    spec = importlib.util.spec_from_file_location("test_run", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise Unusable(f"cannot run torch's tests: {file} does not fit what is installed here: {error}") from error
    module.launch = Launcher("launch")  # type: ignore[attr-defined]
    return module


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """Yield the tests of a suite, one after another."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_of(test)
        else:
            yield test


@contextlib.contextmanager
def own_folder() -> Iterator[None]:
    """Use an own current directory, where run dirs will lie, and restore directory and environment afterwards."""
    before = Path.cwd()
    environ = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(environ)


def outcome(test: unittest.TestCase) -> tuple[str, str]:
    """Run a test; return what became of it, and what the test has to say."""
    result = unittest.TestResult()
    output = io.StringIO()
    with own_folder(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        test.run(result)
    if problems := result.failures + result.errors:
        return "failed", f"\n{output.getvalue()}\n{problems[0][1]}"
    if result.skipped:
        return "left out", f": torch's file skips it here: {result.skipped[0][1]}"
    return "passed", ""


def main() -> int:
    """Run the tests; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a checkout of pytorch, or the launcher tests in it")
    try:
        module = load(parser.parse_args().source.resolve())
    except Unusable as error:
        sys.stderr.write(f"{error}\n")
        return USAGE
    counts = dict.fromkeys(("passed", "failed", "left out"), 0)
    for test in tests_of(unittest.defaultTestLoader.loadTestsFromModule(module)):
        name = test.id().rpartition(".")[2]
        found, more = ("left out", f": {LEFT_OUT[name]}") if name in LEFT_OUT else outcome(test)
        counts[found] += 1
        print(f"{found:<8}  {name}{more}", flush=True)
    print(", ".join(f"{count} {found}" for found, count in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())

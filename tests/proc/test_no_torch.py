"""The supervisor stays small: nothing of it loads torch, or what only ranks need."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

MODULES = [
    "cli.launch", "cli.ctl", "engine.main", "checkpoints.saver", "notify.notifier", "notify.webhook",
    "autopsy.collector", "tools.preflight.checks", "tools.preflight.disk",
]  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_importing_loads_no_torch(module: str) -> None:
    code = (
        f"import sys, ftlaunch.{module}\n"
        "print(*sorted({'torch', 'numpy', 'safetensors', 'ftlaunch_hooks.job.job'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


def test_the_command_starts_without_psutil_and_as_a_module() -> None:
    code = "import sys; import ftlaunch.cli.launch; print(sorted({'torch', 'psutil', 'numpy'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
    for module in ("ftlaunch", "ftlaunch.cli.launch"):
        argv = [sys.executable, "-m", module, "--keep", "0", "x"]
        answer = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert answer.stderr == "ftlaunch: cannot use `--keep 0`: it must be a whole number, 1 or more\n"


def test_the_engine_starts_without_what_few_jobs_need() -> None:
    """Each of them takes a tenth of a MiB or more, which every supervisor would hold for as long as its job runs."""
    modules = {
        "concurrent.futures",
        "decimal",
        "difflib",
        "logging",
        "prometheus_client",
        "rich",
        "statistics",
        "zipfile",
    }
    code = f"import sys, ftlaunch.cli.launch, ftlaunch.engine.main; print(sorted({modules} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "[]\n"


def test_attach_can_be_imported_without_what_torch_imports_for_compiling() -> None:
    """A plain rank would wait a second for it. Tried: it fails where a module of the hooks makes an optimizer."""
    code = "import sys; import ftlaunch_hooks.job.attaching; print('torch._dynamo' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "False\n"


@pytest.mark.parametrize(("module", "how"), [("torch", "install the build"), ("numpy", "`pip install numpy`")])
def test_the_hooks_say_which_python_lacks_what_they_need(module: str, how: str) -> None:
    """`make check-dist` asks an environment that has none. Tried: without the sentence it is a ModuleNotFoundError."""
    code = f"import sys; sys.modules[{module!r}] = None; import ftlaunch_hooks; ftlaunch_hooks.attach"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    lacks = f"ImportError: cannot use ftlaunch_hooks.attach: {sys.executable} has no {module}; {how}"
    assert done.stderr.splitlines()[-1].startswith(lacks)

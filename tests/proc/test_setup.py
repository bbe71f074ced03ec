"""How the environment is set up: where pip looks for torch, which build it takes, what is said of it."""

from __future__ import annotations

import functools
import http.server
import importlib.metadata
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2] / "scripts/setup"))

import install
import torch_index
from torch_index import CPU_INDEX

ROOT = Path(__file__).parents[2]
CPU = ("--extra-index-url", CPU_INDEX)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, quietly, and notes what it is asked for."""

    asked: list[str]

    def log_message(self, *_: object) -> None:
        self.asked.append(f"{self.command} {self.path}")


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """A server of tmp_path on 127.0.0.1: its address, and what it was asked for."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    asked: list[str] = []
    handler = type("Noting", (Handler,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def bare_environment(**more: str) -> dict[str, str]:
    """The environment without what configures pip and make."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE", "MFLAGS"))}
    for name in ("CONSTRAINTS", "TORCH", "PYTHON", "VENV"):
        kept.pop(name, None)
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}


# ------------------------------------------------------------------------------------------------ the choice


@pytest.mark.parametrize(
    ("build", "driver", "users", "unreachable", "arguments", "said"),
    [
        ("auto", False, "", "", CPU, "because there is no NVIDIA driver"),
        ("auto", False, "", "HTTP status 403", (), f"because {CPU_INDEX} cannot be reached (HTTP status 403)"),
        ("auto", True, "", None, (), "because there is an NVIDIA driver"),
        ("auto", False, "PIP_NO_INDEX", None, (), "because PIP_NO_INDEX is given"),
        ("auto", True, "PIP_NO_INDEX", None, (), "because PIP_NO_INDEX is given"),
        ("cpu", False, "", "", CPU, "as TORCH=cpu asks"),
        ("cpu", True, "", "", CPU, "as TORCH=cpu asks"),
        ("cpu", True, "PIP_NO_INDEX", "", CPU, "as TORCH=cpu asks"),
        ("cpu", False, "", "timed out", (), "cannot be reached (timed out)"),
        ("cuda", False, "", None, (), "as TORCH=cuda asks"),
        ("cuda", True, "PIP_NO_INDEX", None, (), "as TORCH=cuda asks"),
    ],
)
def test_where_pip_looks_for_torch(
    build: str, driver: bool, users: str, unreachable: str | None, arguments: tuple[str, ...], said: str
) -> None:
    def why_not() -> str:
        assert unreachable is not None, "the index is asked although its answer does not matter"
        return unreachable

    choice = torch_index.choose(build, driver=driver, users=users, why_not=why_not)
    assert choice.arguments == arguments
    assert said in choice.reason
    assert "\n" not in choice.reason


@pytest.mark.parametrize("path", [None, "dev/nvidiactl", "proc/driver/nvidia", "bin/nvidia-smi"])
def test_a_driver_is_seen_by_any_of_its_traces(tmp_path: Path, path: str | None) -> None:
    if path is not None:
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch(mode=0o755)
    assert torch_index.has_driver(tmp_path, str(tmp_path / "bin")) == (path is not None)


@pytest.mark.parametrize(
    ("constraints", "environment", "expected"),
    [
        ("", {}, ""),
        ("", {"PIP_INDEX_URL": "https://mirror"}, ""),
        ("", {"PIP_EXTRA_INDEX_URL": ""}, ""),
        ("", {"PIP_EXTRA_INDEX_URL": "https://download.pytorch.org/whl/cu130"}, "PIP_EXTRA_INDEX_URL"),
        ("", {"PIP_NO_INDEX": "1"}, "PIP_NO_INDEX"),
        ("my.txt", {"PIP_NO_INDEX": "1"}, "CONSTRAINTS=my.txt"),
    ],
)
def test_what_the_user_says_of_indexes(constraints: str, environment: dict[str, str], expected: str) -> None:
    assert torch_index.users_indexes(constraints, environment) == expected


# ------------------------------------------------------------------------------------------------- the index


def test_an_index_that_answers_is_used(tmp_path: Path, served: tuple[str, list[str]]) -> None:
    (tmp_path / "torch").mkdir()
    assert torch_index.why_unreachable(served[0]) == ""
    assert served[1] == ["HEAD /torch/"]


def test_an_index_without_torch_is_not(served: tuple[str, list[str]]) -> None:
    assert torch_index.why_unreachable(served[0]) == "HTTP status 404"


def test_an_index_that_refuses_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert "Connection refused" in torch_index.why_unreachable(f"http://127.0.0.1:{port}")


def test_an_index_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:  # it takes connections, and never says a word
        cause = torch_index.why_unreachable(f"http://127.0.0.1:{listener.getsockname()[1]}", patience=0.5)
    assert cause in ("timed out", "no answer within 0.5 s")


def put_wheel(folder: Path, version: str) -> None:
    """A wheel of a torch that holds nothing, on the page of an index."""
    folder.mkdir(parents=True)
    about = f"torch-{version}.dist-info"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.long
@pytest.mark.parametrize(("index", "expected"), [("cpu", "2.13.0+cpu"), (None, "2.13.0")])
def test_pip_takes_the_cpu_build_from_an_index_beside_its_own(
    tmp_path: Path, served: tuple[str, list[str]], index: str | None, expected: str
) -> None:
    """Within our constraints; the indexes that pip is configured with are searched as well."""
    for name, version in (("plain", "2.13.0"), ("mirror", "2.13.0"), ("cpu", "2.13.0+cpu")):
        put_wheel(tmp_path / name / "torch", version)
    address, asked = served
    arguments = ["--extra-index-url", f"{address}/{index}"] if index else []
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(tmp_path / "got"), "--no-cache-dir",
         "--constraint", str(ROOT / "constraints/cpu.txt"), *arguments, install.torch_requirement()],
        env=bare_environment(PIP_INDEX_URL=f"{address}/plain", PIP_EXTRA_INDEX_URL=f"{address}/mirror"),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in (tmp_path / "got").iterdir()] == [f"torch-{expected}-py3-none-any.whl"]
    searched = {"plain", "mirror", *([index] if index else [])}
    assert {line.split("/")[1] for line in asked if line.endswith("/torch/")} == searched


# ------------------------------------------------------------------------------------------------ installing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", ("2.13.0+cpu", "CPU")),
        ("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", ("2.13.0", "CUDA")),
        ("__version__ = '2.13.0+rocm7'\ncuda = None\nhip = '7.0.1'\n", ("2.13.0+rocm7", "ROCm")),
    ],
)
def test_the_build_of_torch_is_read_without_importing_it(text: str, expected: tuple[str, str]) -> None:
    assert install.read_build(text) == expected


def test_the_torch_that_is_installed_is_told_of() -> None:
    """As torch says it: the wheel of a CUDA build that is called 2.13.0 says 2.13.0+cu130 once it is installed."""
    told = install.installed_torch()
    assert told is not None
    assert told[0] == torch.__version__


def test_torch_is_asked_for_as_the_project_declares_it() -> None:
    """As an extra: the tools need none (docs/decisions/109)."""
    asked = install.torch_requirement()
    declared = [one.replace('"', "'") for one in importlib.metadata.requires("ftlaunch") or []]
    assert f"{asked}; extra == 'torch'" in declared


def run_install(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/setup/install.py"), *arguments]
    return subprocess.run(
        command, env=bare_environment(**environment), capture_output=True, text=True, check=False, timeout=120
    )


def test_a_build_that_is_none_is_refused() -> None:
    done = run_install("--torch", "gpu")
    assert done.returncode == 1
    assert done.stderr == "cannot use TORCH=gpu: it must be one of auto, cpu, cuda\n"


def test_when_pip_cannot_its_words_are_shown(tmp_path: Path) -> None:
    """No torch has the version that the constraints allow, so that pip changes nothing here."""
    (tmp_path / "my.txt").write_text("torch==0.0.1\n")
    done = run_install("--constraints", str(tmp_path / "my.txt"), "--own-constraints", PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert f"because CONSTRAINTS={tmp_path}/my.txt is given" in done.stdout
    assert "ERROR: " in done.stderr
    assert done.stderr.endswith("cannot install torch: pip ended with exit code 1; its words are above\n")


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ([], '--torch "auto" --constraints "constraints/cpu.txt" '),
        (["TORCH=cuda"], '--torch "cuda" --constraints "constraints/cpu.txt" '),
        (["CONSTRAINTS="], '--torch "auto" --constraints "" --own-constraints'),
        (["CONSTRAINTS=LICENSE"], '--torch "auto" --constraints "LICENSE" --own-constraints'),
    ],
)
def test_make_hands_on_what_it_is_asked_for(tmp_path: Path, given: list[str], flags: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "setup", f"VENV={tmp_path}/venv", *given],
        cwd=ROOT, env=bare_environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/venv/bin/python scripts/setup/install.py {flags}\n" in done.stdout

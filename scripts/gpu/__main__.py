"""Runs all tests marked `gpu`, and measures: on any Python with torch 2.10 or newer and one GPU, without a network.

    make gpu                         # python scripts/gpu --device cuda
    make gpu DEVICE=cpu              # all but what only a GPU has, on the processor
    make gpu-wheels FOR=3.12         # beforehand, where there is a network: what the machine with the GPU may lack

Makes an environment of its own in build/ that sees the Python's torch, and installs ftlaunch and its few dependencies
there, from build/gpu-wheels if they are missing. Nothing is installed elsewhere. Writes build/gpu.json, and prints a
table for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
WHEELS = BUILD / "gpu-wheels"
_NAME = (
    "import json, sys, torch; "
    "name = torch.cuda.get_device_name() if sys.argv[1] == 'cuda' else 'the processor'; "
    "print(json.dumps([name, torch.__version__, sys.version.split()[0]]))"
)


def environment() -> Path:
    """Make an environment with torch, ftlaunch and what the tests need; return its Python."""
    home = BUILD / "gpu-venv"
    python = home / "bin" / "python"
    venv.create(home, system_site_packages=True, clear=True, with_pip=True)
    outer = [path for path in sys.path if path.endswith("site-packages")]  # this Python may be in an environment, too
    inner = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    Path(inner, "outer.pth").write_text("\n".join(outer) + "\n")
    source = ["--no-index", "--find-links", str(WHEELS)] if WHEELS.is_dir() else []
    needed = ["hatchling", "click", "psutil", "pyyaml", "safetensors", "xxhash", "nvidia-ml-py", "numpy"]
    tested = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis"]
    install = [str(python), "-m", "pip", "install", "--quiet", *source]
    subprocess.run([*install, *needed, *tested], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", str(ROOT)], check=True)
    return python


def tests(python: Path, device: str) -> dict[str, Any]:
    """Run the tests; return an exit code, the last line of each run of pytest, and the failures.

    A test that needs a share of the GPU's memory runs on its own.
    """
    alone = "tests/gpu/test_room.py"
    workers = "4" if device == "cuda" else "2"
    summaries: list[str] = []
    failed: list[str] = []
    code = 0
    for number, chosen in enumerate((["-n", workers, "tests/gpu", "--ignore", alone], [alone])):
        report = BUILD / f"gpu-tests-{number}.txt"
        command = [str(python), "-m", "pytest", "-q", "-m", "gpu", *chosen]
        with report.open("wb") as out:
            run = subprocess.run(command, cwd=ROOT, env=_env(device), stdout=out, stderr=out, check=False)
        code = code or run.returncode
        lines = report.read_text().splitlines()
        summaries.append(lines[-1].strip("= ") if lines else "no output")
        failed += [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"code": code, "summaries": summaries, "failed": failed}


def measured(python: Path, device: str) -> dict[str, Any]:
    """Return the figures of measure.py."""
    command = [str(python), str(ROOT / "scripts" / "gpu" / "measure.py"), device]
    run = subprocess.run(command, cwd=BUILD, env=_env(device), capture_output=True, text=True, check=False)
    if run.returncode:
        return {"failed": run.stderr[-4000:]}
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def _env(device: str) -> dict[str, str]:
    return {**os.environ, "FT_DEVICE": device, "PYTHONPATH": ""}


def main() -> None:
    """Run, write and print everything; exit with the tests' exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path, default=BUILD / "gpu.json")
    args = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    python = environment()
    asked = subprocess.run([python, "-c", _NAME, args.device], capture_output=True, text=True, check=False)
    if asked.returncode:
        sys.exit(
            f"cannot run on {args.device}: {asked.stderr.strip().splitlines()[-1]}; DEVICE=cpu runs on the processor"
        )
    name, torch, version = json.loads(asked.stdout)
    found = {"device": name, "torch": torch, "python": version, "date": time.strftime("%Y-%m-%d")}
    found |= {"tests": tests(python, args.device), "figures": measured(python, args.device)}
    args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{name}, torch {torch}, Python {version}, {found['date']}: {'; '.join(found['tests']['summaries'])}")
    print("\n".join(found["tests"]["failed"]))
    if "failed" in found["figures"]:
        sys.exit(f"cannot measure: {found['figures']['failed']}")
    print("| | median | least to most |\n| --- | --- | --- |")
    for figure, (unit, values) in found["figures"].items():
        print(f"| {figure} | {median(values):.3g} {unit} | {min(values):.3g} to {max(values):.3g} |")
    sys.exit(found["tests"]["code"])


if __name__ == "__main__":
    main()

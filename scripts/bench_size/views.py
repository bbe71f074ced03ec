"""Measures what it takes to look at a job of very many ranks: in a shell, in a browser, and by Prometheus."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import httpx
from trial import PATIENCE, Failed, Trial

from ftlaunch.system.control_socket import ask

sys.path.append(str(Path(__file__).parents[2]))

from tests.support.dashboards import Dashboard

Figures = dict[str, float]
"""the name of the row -> what was measured"""


def measure_views(trial: Trial, figures: Figures) -> None:
    """Look at a running job in every way that there is. Raises Failed."""
    _measure_status(trial, figures)
    _measure_command(trial, figures, "ftctl status", "status", str(trial.run_dir))
    _measure_top(trial, figures)
    _measure_scrape(trial, figures)
    _measure_dashboard(trial, figures)


def measure_report(trial: Trial, figures: Figures) -> None:
    """Write the report page of a job that has ended. Raises Failed."""
    page = trial.home / "page.html"
    _measure_command(trial, figures, "ftctl report --html", "report", str(trial.run_dir), "--html", str(page))
    figures["report page, size"] = page.stat().st_size
    figures["journal, size"] = sum(path.stat().st_size for path in trial.run_dir.glob("events*.jsonl"))


def _measure_status(trial: Trial, figures: Figures) -> None:
    """Ask the head itself, whose loop does nothing else in the meantime."""
    for name, request in (("with ranks", {"do": "status"}), ("without ranks", {"do": "status", "ranks": False})):
        began = time.monotonic()
        answer = ask(trial.socket, request, timeout=PATIENCE)
        figures[f"head's status {name}"] = time.monotonic() - began
        if answer["ranks"]:
            figures["head's status, size"] = len(json.dumps(answer))


def _measure_command(trial: Trial, figures: Figures, name: str, *words: str) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "ftlaunch.cli.ctl", *words], capture_output=True, timeout=PATIENCE, check=False
    )
    figures[name] = time.monotonic() - began
    if done.returncode:
        raise Failed(f"{name} has ended with {done.returncode}: {done.stderr.decode()[-1000:]}")
    if name == "ftctl status":
        figures[f"{name}, size"] = len(done.stdout)


def _measure_top(trial: Trial, figures: Figures) -> None:
    """Wait for the first line of `ftctl top --plain`."""
    began = time.monotonic()
    command = [sys.executable, "-m", "ftlaunch.cli.ctl", "top", str(trial.run_dir), "--plain"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as top:
        assert top.stdout is not None
        line = top.stdout.readline()
        figures["ftctl top, first line"] = time.monotonic() - began
        top.terminate()
    if not line:
        raise Failed("ftctl top has said nothing")


def _measure_scrape(trial: Trial, figures: Figures) -> None:
    """Request the metrics in Prometheus's own format."""
    asks = {"Accept": "application/openmetrics-text", "Accept-Encoding": "gzip"}
    request = urllib.request.Request(f"http://127.0.0.1:{trial.metrics_port}/metrics", headers=asks)
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        content = answer.read()
    figures["scrape of the metrics"] = time.monotonic() - began
    figures["scrape, size (compressed)"] = len(content)
    figures["scrape, size"] = len(gzip.decompress(content))


def _measure_dashboard(trial: Trial, figures: Figures) -> None:
    """Open a page of the dashboard, and wait for the first news."""
    if "http_proxy" in os.environ:
        del os.environ["http_proxy"]
    shown = Dashboard(trial.home, trial.run_dir)
    try:
        with httpx.Client(base_url=shown.at, timeout=PATIENCE, trust_env=False, follow_redirects=True) as client:
            client.get("", params={"token": shown.token})
            began = time.monotonic()
            with client.stream("GET", f"run/{trial.run_dir.name}/news") as response:
                lines = (line for line in response.iter_lines() if line.startswith("data: "))
                line = next(line for line in lines if "reading" not in line)
            figures["dashboard, first news"] = time.monotonic() - began
            figures["dashboard, size of the news"] = len(line)
    finally:
        shown.close()

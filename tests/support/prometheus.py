"""Jobs with metrics, and a real Prometheus server that scrapes them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.agents import free_port
from tests.support.harness import JOBS, TINY, FtJob
from tests.support.waiting import wait_for

PROMETHEUS = shutil.which("prometheus")
PROMTOOL = shutil.which("promtool")
NO_PROMETHEUS = "there is no Prometheus here (apt-get install prometheus)"
DASHBOARD = Path(__file__).parents[2] / "configs/grafana/ftlaunch.json"
BEATS = JOBS / "beats.py"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0"
Labels = dict[str, str]


def dashboard() -> dict[str, Any]:
    """Return the content of the Grafana dashboard."""
    content: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return content


def start(
    job: FtJob, metrics: dict[str, Any] | None, *options: str, script: Path = BEATS, args: tuple[str, ...] = (),
    more: dict[str, Any] | None = None, **env: str,
) -> None:  # fmt: skip
    """Start a job with metrics.

    Args:
        job: the job.
        metrics: the section `metrics` of the spec; a free port, unless it says otherwise.
        options: options of ftlaunch.
        script: the script; beats.py makes steps without torch.
        args: arguments of the script; empty for endless steps.
        more: further keys of the spec.
        env: variables in addition to the environment of the test.
    """
    asked = {"port": 0, "linger": "0s", **(metrics or {})}
    words = args
    if not words and script == BEATS:
        words = ("1000000", "0.01")
    elif not words:
        words = ("--out", str(job.out), "--steps", "1000000")
    spec = job.home / "job.yaml"
    spec.write_text(
        yaml.safe_dump(
            {
                "script": str(script),
                "backoff_first": "0s",
                "metrics": {name: setting for name, setting in asked.items() if setting is not None},
                **(more or {}),
            }
        )
    )
    job.start("--no-warm", *options, script=spec, args=words, env=env)


def train(job: FtJob, metrics: dict[str, Any] | None = None, *options: str, **env: str) -> None:
    """Start a job that trains with torch, and saves a checkpoint every 40 steps."""
    args = ("--out", str(job.out), "--steps", "1000000", "--step-time", "0.02")
    start(job, metrics, "--storage-interval", "40", *options, script=TINY, args=args, **env)


def url_of(job: FtJob, count: int = 1) -> str:
    """Wait until a job serves metrics for the `count`-th time; return their URL."""
    return str(job.wait_event("metrics_served", count)["url"])


def get(url: str, accept: str = "") -> tuple[str, str]:
    """Return content type and text of a page. Raises OSError."""
    request = urllib.request.Request(url, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.headers["Content-Type"]), answer.read().decode()


def samples(text: str) -> dict[str, list[tuple[Labels, float]]]:
    """Return the samples of a page by name, without the label `job_id`, which all have."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("job_id"), sample
            found.setdefault(sample.name, []).append((labels, sample.value))
    return found


def value(url: str, name: str, **labels: str) -> float | None:
    """Return the value of one sample; None if there is none, or if nobody answers."""
    try:
        page = samples(get(url)[1])
    except OSError:
        return None
    return next((number for having, number in page.get(name, []) if having == labels), None)


class Prometheus:
    """A server that scrapes some addresses several times a second, and keeps its data in `home`."""

    def __init__(self, home: Path, *urls: str) -> None:
        home.mkdir()
        targets = [urllib.parse.urlsplit(url).netloc for url in urls]
        rules = Path(__file__).parents[2] / "configs/prometheus/ftlaunch.rules.yml"
        config = {
            "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "500ms"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "ftlaunch", "static_configs": [{"targets": targets}]}],
        }
        (home / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        assert PROMETHEUS is not None
        command = [PROMETHEUS, f"--config.file={home}/prometheus.yml", f"--storage.tsdb.path={home}/data",
                   f"--web.listen-address={address}", "--log.level=warn"]  # fmt: skip
        with (home / "log").open("w") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_for(self._ready, "Prometheus")

    def _ready(self) -> bool:
        try:
            return bool(get(f"{self.url}/-/ready")[1])
        except OSError:
            return False

    def ask(self, path: str, **fields: str) -> Any:
        """Return the data of an answer of the server's API; fail with the server's message if it refuses the query."""
        where = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(fields)}"
        try:
            answer = json.loads(get(where)[1])
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{fields}: {error.read().decode()}") from None
        assert answer["status"] == "success"
        return answer["data"]

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """Return the samples that an expression yields now."""
        result = self.ask("query", query=expression)["result"]
        return [(entry["metric"], float(entry["value"][1])) for entry in result]

    def close(self) -> None:
        """End the server."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)

"""A CSVLogger's file is cut behind the lines that were there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ftlaunch_hooks.adapters.lightning.loggers import Loggers


class Writer:
    """As Lightning's: its file goes when it begins."""

    def __init__(self, folder: Path) -> None:
        self.metrics_file_path = str(folder / "metrics.csv")
        self.metrics: list[dict[str, float]] = []
        self.metrics_keys: list[str] = []
        Path(self.metrics_file_path).unlink(missing_ok=True)


class CSVLogger:
    def __init__(self, root: Path, version: int) -> None:
        self._root, self._version = root, version
        self._experiment: Writer | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def log_dir(self) -> str:
        return str(self._root / f"version_{self._version}")

    @property
    def experiment(self) -> Writer:
        Path(self.log_dir).mkdir(parents=True, exist_ok=True)
        self._experiment = self._experiment or Writer(Path(self.log_dir))
        return self._experiment


def loggers(logger: Any) -> Loggers:
    return Loggers(SimpleNamespace(loggers=[logger], is_global_zero=True))


def begun(root: Path, version: int, text: str, keys: list[str]) -> CSVLogger:
    logger = CSVLogger(root, version)
    logger.experiment.metrics_keys = keys
    Path(logger.experiment.metrics_file_path).write_bytes(text.encode())
    return logger


def test_lines_of_later_steps_go_and_a_new_version_goes(tmp_path: Path) -> None:
    logger = begun(tmp_path, 0, "loss,step\r\n0.5,1\r\n", ["loss", "step"])
    logger.experiment.metrics = [{"loss": 0.25, "step": 2}]
    kept = loggers(logger)
    saved = kept.state()
    path = tmp_path / "version_0/metrics.csv"
    path.write_bytes(b"loss,step\r\n0.5,1\r\n0.125,3\r\n")
    assert kept.state()[0]["lines"] == 3, "it has read what is new"
    after = begun(tmp_path, 1, "", [])
    Path(after.experiment.metrics_file_path).unlink()
    loggers(after).restore(saved, 1)
    assert path.read_bytes() == b"loss,step\r\n0.5,1\r\n"
    assert (after.experiment.metrics_keys, after.experiment.metrics) == (["loss", "step"], [{"loss": 0.25, "step": 2}])
    assert [folder.name for folder in tmp_path.iterdir()] == ["version_0"]


def test_a_column_that_came_later_goes(tmp_path: Path) -> None:
    logger = begun(tmp_path, 0, "loss,step\r\n0.5,1\r\n", ["loss", "step"])
    saved = loggers(logger).state()
    path = tmp_path / "version_0/metrics.csv"
    path.write_bytes(b"loss,step,val\r\n0.5,1,\r\n,1,0.25\r\n")
    loggers(CSVLogger(tmp_path, 0)).restore(saved, 1)
    assert path.read_bytes() == b"loss,step\r\n0.5,1\r\n"


def test_a_rank_that_was_killed_while_it_cut_has_lost_nothing(tmp_path: Path) -> None:
    logger = begun(tmp_path, 0, "loss,step\r\n0.5,1\r\n", ["loss", "step"])
    saved = loggers(logger).state()
    path = tmp_path / "version_0/metrics.csv"
    path.rename(path.with_name("metrics.csv.kept"))
    loggers(CSVLogger(tmp_path, 0)).restore(saved, 1)
    assert path.read_bytes() == b"loss,step\r\n0.5,1\r\n"


def test_a_boundary_before_the_first_line(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path, 0)
    saved = loggers(logger).state()
    path = Path(begun(tmp_path, 0, "loss,step\r\n0.5,1\r\n", ["loss", "step"]).experiment.metrics_file_path)
    loggers(CSVLogger(tmp_path, 0)).restore(saved, 0)
    assert not path.exists()

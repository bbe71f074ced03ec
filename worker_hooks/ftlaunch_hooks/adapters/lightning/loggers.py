"""Save and restore the positions of loggers.

A CSVLogger continues its file after the lines that the file had at the boundary. Other loggers get only their version
back, and log again what they logged since; the user is told so.
"""

from __future__ import annotations

import contextlib
import csv
from pathlib import Path
from typing import Any

from ftlaunch_hooks.adapters.refusal import check_members
from ftlaunch_hooks.process.say import say

_TWICE = (
    "{kind} keeps no place that it can be put back to: after a resume it logs again what it logged since step {step}"
)


class Loggers:
    """The loggers of one Trainer or Fabric, on the rank that writes."""

    def __init__(self, trainer: Any) -> None:
        """Check the loggers. Raises AttachError where this version's CSVLogger lacks a private part that is used."""
        self._loggers = list(trainer.loggers) if trainer.is_global_zero else []
        self._counts: dict[int, _Lines] = {}
        for logger in filter(_is_csv, self._loggers):
            check_members(logger, "version _version _experiment", "Lightning 2.6")

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each logger at a boundary."""
        return [self._state_of(number, logger) for number, logger in enumerate(self._loggers)]

    def _state_of(self, number: int, logger: Any) -> dict[str, Any]:
        if not _is_csv(logger):
            version = getattr(logger, "_version", None)
            return {"version": version if isinstance(version, (int, str)) else None}
        if logger._experiment is None:
            return {"version": logger.version, "lines": 0, "keys": [], "waiting": []}
        writer = logger._experiment
        lines = self._counts.setdefault(number, _Lines(Path(writer.metrics_file_path)))
        keys = list(writer.metrics_keys)
        return {"version": logger.version, "lines": lines.count(keys), "keys": keys, "waiting": list(writer.metrics)}

    def restore(self, saved: list[dict[str, Any]], step: int) -> None:
        """Restore the states that `state` returned at the boundary of `step`."""
        self._counts.clear()
        for logger, logger_state in zip(self._loggers, saved, strict=False):
            begun = logger.log_dir if _is_csv(logger) else ""
            if hasattr(logger, "_version") and logger_state["version"] is not None:
                logger._version = logger_state["version"]
            if _is_csv(logger):
                if begun != logger.log_dir:
                    with contextlib.suppress(OSError):  # the directory is not empty, and stays
                        Path(begun).rmdir()
                _restore_csv(logger, logger_state)
            else:
                say(_TWICE.format(kind=type(logger).__name__, step=step))


class _Lines:
    """Counts the lines of a CSV file that grows, by reading only what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: list[str] = []
        self._size = 0  # bytes of the file that were read
        self._count = 0  # lines in them

    def count(self, keys: list[str]) -> int:
        """Return the number of lines. A logger that gets another column rewrites its file, which is then read anew.

        Args:
            keys: the names of the present columns.
        """
        if keys != self._keys or not self._path.exists() or self._path.stat().st_size < self._size:
            self._keys = keys
            self._size = 0
            self._count = 0
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._size)
                new = file.read()
            self._size += len(new)
            self._count += new.count(b"\n")
        return self._count


def _is_csv(logger: Any) -> bool:
    return any(kind.__name__ == "CSVLogger" for kind in type(logger).__mro__)


def _restore_csv(logger: Any, saved: dict[str, Any]) -> None:
    """Cut a CSVLogger's file after the lines that it had, and give the logger its columns and unwritten rows.

    A logger that begins deletes its file, so the lines are kept in another file meanwhile. That file survives a kill.
    """
    path = Path(logger.log_dir) / "metrics.csv"
    aside = path.with_name("metrics.csv.kept")
    if not aside.exists() and path.exists():
        _write_lines(path, aside, saved)
    logger._experiment = None
    writer = logger.experiment
    if aside.exists():
        aside.replace(path)
        if saved["lines"] == 0:
            path.unlink()
    writer.metrics_keys = list(saved["keys"])
    writer.metrics = list(saved["waiting"])


def _write_lines(path: Path, aside: Path, saved: dict[str, Any]) -> None:
    """Write the lines that were saved, with the columns of that time, from `path` to `aside` atomically."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))[: max(saved["lines"] - 1, 0)]
    part = path.with_name("metrics.csv.part")
    with part.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=saved["keys"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    part.replace(aside)

"""Jobs of frameworks: each is run undisturbed and without us, then disturbed, and both must leave the same."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.harness import JOBS, FtJob

# One thread: several at work on as many cores as there are jobs wait for each other.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
WITH_TRAINER = ("--warm", "--preload", "transformers.trainer,accelerate,torch._dynamo")
"""a rank that is started again need not import the Trainer, which takes longer than most faults"""


class FrameworkJob:
    """A script of tests/jobs in both ways."""

    def __init__(self, script: str, job: FtJob, *words: str, ranks: int = 1) -> None:
        self.script, self.job, self.words, self.ranks = JOBS / script, job, words, ranks
        self.env: dict[str, str] = {}

    def undisturbed(self, *more: str) -> Path:
        """What the script leaves as its users run it; returns the folder."""
        home = self.job.home / "undisturbed"
        home.mkdir()
        plain = FtJob(home)
        try:
            self._start(plain, "", (*more, "plain=1"), ())
            assert plain.wait() == 0, plain.stderr
        finally:
            plain.dispose()
        return plain.out

    def start(self, fault: str = "", *options: str, more: tuple[str, ...] = ()) -> None:
        """Start the job with its faults, without waiting."""
        self._start(self.job, fault, more, options)

    def _start(self, job: FtJob, fault: str, more: tuple[str, ...], options: tuple[str, ...]) -> None:
        env = {**OFFLINE, **self.env, "FAULT": fault}
        env.pop("FAULT") if not fault else None
        words = (str(job.out), *self.words, *more)
        options = (*WITH_TRAINER, "--max-restarts", "6", *options)
        job.start(*options, script=self.script, args=words, env=env, ranks=self.ranks)

    def assert_same(self, undisturbed: Path) -> None:
        """Digests, logs and the number of steps are those of the undisturbed run."""
        names = sorted(path.name for path in undisturbed.glob("*_[0-9]"))
        assert len(names) == 3 * self.ranks, names
        for name in names:
            before, now = (undisturbed / name).read_text(), (self.job.out / name).read_text()
            if name.startswith("steps_"):  # the step in which it was killed is made twice
                assert sorted(set(now.split())) == sorted(before.split())
            else:
                assert now == before, name


def environment() -> dict[str, str]:
    """For a script that is run without a supervisor."""
    return {**os.environ, **OFFLINE}

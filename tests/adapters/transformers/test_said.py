"""What is not exact is said once, and what cannot be kept safe is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.adapters.kit import FrameworkJob, environment
from tests.adapters.versions import FSDP_ON_CPU
from tests.support.framework_results import logs
from tests.support.harness import JOBS, FtJob
from tests.support.packages import require

require("transformers", reason="Transformers is not installed (make frameworks)")
require("accelerate", reason="Accelerate is not installed (make frameworks)")

OFFLOADS = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}}


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The job without a supervisor."""
    command = [sys.executable, str(JOBS / "hf.py"), str(home / "out"), *words]
    env = {**environment(), "FTLAUNCH_CHECKPOINT_DIR": str(home / "checkpoints")}
    return subprocess.run(command, check=False, cwd=home, env=env, capture_output=True, text=True, timeout=150)


@pytest.mark.slow
def test_what_is_not_exact_is_said_once(tmp_path: Path) -> None:
    done = run(tmp_path, "said", "max_steps=10", "rows=8", "ignore_data_skip=true")
    assert done.returncode == 0, done.stderr
    for words in ("`Counts.seen` changes in training and is not saved", _NO_CHECKPOINT):
        assert done.stderr.count(words) == 1, (words, done.stderr)
    assert done.stderr.count("ignore_data_skip is set") == 2  # of two trainings
    kept, left, _ = done.stderr.partition("the train() before this one has not come to its end: of this one nothing")
    assert left
    assert "order of the data of a DataLoader" not in kept


_NO_CHECKPOINT = "yet: the training begins"
_PERSISTENT = ("dataloader_num_workers=1", "dataloader_persistent_workers=true")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stream", 'draws="torch"'), "drawn while batches are read from a data set without indices, and by training"),
        (("noisy", *_PERSISTENT), "random numbers are drawn in workers of the DataLoader that outlive an epoch"),
    ],
)
def test_numbers_that_cannot_be_drawn_again_are_said_once(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(tmp_path, *words, "max_steps=9", "rows=12")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(said) == 1, done.stderr


@pytest.mark.refused("Transformers", "`auto_find_batch_size`")
@pytest.mark.slow
def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    done = run(tmp_path, "plain", "auto_find_batch_size=true")
    assert done.returncode == 1
    assert "cannot keep this Trainer: its argument `auto_find_batch_size` is set" in done.stderr


@pytest.mark.long
@pytest.mark.refused("Transformers", "FSDP of version 1", "offload to disks")
@pytest.mark.parametrize(
    ("name", "plugin", "sentence"),
    [
        ("fsdp_plugin", {"fsdp_version": 1}, "it is given FSDP of version 1"),
        ("deepspeed_plugin", {"hf_ds_config": OFFLOADS}, "offload_optimizer is to nvme"),
    ],
)
def test_other_ways_to_share_a_model_are_refused(name: str, plugin: dict[str, Any], sentence: str) -> None:
    """Before the training begins: with --auto-attach the script runs as it is then.

    Accelerate makes neither plugin where there is no accelerator.
    """
    from accelerate.utils.deepspeed import HfDeepSpeedConfig

    from ftlaunch_hooks.adapters.transformers import inside

    if "hf_ds_config" in plugin:
        plugin = {"hf_ds_config": HfDeepSpeedConfig(plugin["hf_ds_config"])}
    state = SimpleNamespace(**{name: SimpleNamespace(**plugin)})
    with pytest.raises(RuntimeError, match=sentence):
        inside.check_sharding(SimpleNamespace(accelerator=SimpleNamespace(state=state)))


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), pytest.param(("fsdp=true",), marks=FSDP_ON_CPU)])
def test_another_number_of_ranks_is_told(job: FtJob, more: tuple[str, ...]) -> None:
    """It goes on from its step, and shares the data otherwise."""
    run = FrameworkJob("hf.py", job, "plain", "max_steps=20", "rows=24", *more, ranks=2)
    run.start(more=("nap=0.2",))
    job.wait_step(4)
    job.supervisor.send_signal(signal.SIGTERM)
    assert job.wait() == 75, job.stderr
    run.ranks = 1
    run.start()
    assert job.wait() == 0, job.stderr
    [resumed] = [event for event in job.events("resumed") if event["source"]]
    assert resumed["step"] >= 4
    assert logs(job).count("the job has 1 ranks now, and had 2") == 1
    job.assert_clean()

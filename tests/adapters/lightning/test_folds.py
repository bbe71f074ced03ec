"""Fits of one script with the same names and shapes, of which it leaves out those that are over."""

from __future__ import annotations

import pytest
from tests.support.harness import FtJob
from tests.support.lightning_jobs import OPTIONS

pytestmark = pytest.mark.long

SCRIPT = """
import os, pathlib, signal, sys, torch, lightning.pytorch as pl
import ftlaunch_hooks as ft

out, named = pathlib.Path(sys.argv[1]), sys.argv[2] == "named"
out.mkdir(exist_ok=True)

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 1)
    def training_step(self, batch, number):
        if fold == 1 and number == 4 and os.environ["FTLAUNCH_ATTEMPT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

for fold in range(3):
    if (out / f"fold{fold}.pt").exists():
        continue
    torch.manual_seed(fold)
    net, loader = Net(), torch.utils.data.DataLoader(torch.randn(24, 4), 4)
    callback = ft.lightning.Callback(training=f"fold {fold}" if named else "")
    trainer = pl.Trainer(default_root_dir=out / f"fold{fold}", max_epochs=1, callbacks=[callback], accelerator="cpu",
                         logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.fit(net, loader)
    torch.save(net.state_dict(), out / f"fold{fold}.pt")
"""


def start(job: FtJob, words: str) -> int:
    (job.home / "folds.py").write_text(SCRIPT)
    env = {"OMP_NUM_THREADS": "1"}
    job.start(
        *OPTIONS, "--max-restarts", "1", script=job.home / "folds.py", args=(str(job.out), words), ranks=1, env=env
    )
    return job.wait()


@pytest.mark.slow
def test_with_a_word_each_it_goes_on_in_the_right_one(job: FtJob) -> None:
    assert start(job, "named") == 0, job.stderr
    assert [event["step"] for event in job.events("resumed")] == [0, 11]
    assert len(list(job.out.glob("*.pt"))) == 3


def test_without_words_another_folder_is_another_training(job: FtJob) -> None:
    """Taken out: the second fold gets the weights of the first one, and the third those of the second."""
    assert start(job, "") == 1
    assert "training 2 of this process has no word of its own" in job.stdout
    first, second = ((job.out / f"fold{fold}") for fold in range(2))
    assert (
        f"the training that is over wrote to {first} as a Net, and this one writes to {second} as a Net" in job.stderr
    )

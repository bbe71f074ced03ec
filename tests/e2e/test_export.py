"""`ftctl checkpoints export`: what other programs read is what the script held."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.support.ctl import ftctl
from tests.support.harness import JOBS, FtJob

from ftlaunch_contract import progress
from ftlaunch_contract.checkpoint import layout

SCRIPT = """
import torch
import ftlaunch_hooks as ft
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4, bias=False))
model[2].weight = model[0].weight
optimizer = torch.optim.Adam(model.parameters())
job = ft.attach(model=model, optimizer=optimizer)
for step in job.steps(3):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
torch.save(model.state_dict(), "plain.pt")
"""


@pytest.fixture
def trained(job: FtJob) -> FtJob:
    """A job that has ended after three steps."""
    script = job.home / "train.py"
    script.write_text(SCRIPT)
    job.start(script=script, args=(), ranks=1)
    assert job.wait() == 0, job.stderr
    return job


def export(job: FtJob, *words: str) -> tuple[int, str]:
    code, out, err = ftctl("checkpoints", job.run_dir, "export", *words, cwd=job.home)
    return code, out + err


def read(path: Path, to: str) -> dict[str, torch.Tensor]:
    if to == "torch":
        loaded: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
        return loaded
    if to == "hf":
        safetensors = pytest.importorskip(
            "safetensors.torch", reason="safetensors is not installed (pip install safetensors)"
        )
        return dict(safetensors.load_file(path / "model.safetensors"))
    metadata = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    held = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in metadata.items()}
    dcp.load(held, checkpoint_id=path, no_dist=True)
    return held


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.slow
def test_every_format_holds_what_the_script_held(trained: FtJob) -> None:
    plain = torch.load(trained.home / "plain.pt", weights_only=True)
    for to in ("hf", "torch", "dcp"):
        # Not what standard error says: a slow machine makes it say how far the export has come.
        code, said, _ = ftctl(
            "checkpoints", trained.run_dir, "export", "3", "--to", to, f"weights_{to}", cwd=trained.home
        )
        assert (code, said) == (0, f"wrote {len(plain)} tensors of `model` to weights_{to}\n")
        assert same(read(trained.home / f"weights_{to}", to), plain), to
    trained.assert_clean()


@pytest.mark.long
def test_what_cannot_be_exported_is_said_in_a_sentence(trained: FtJob) -> None:
    (trained.home / "there").mkdir()
    for words, sentence in (
        (("3", "--to", "hf", "--object", "optimizer", "new"), "it holds no module `optimizer`; it holds model"),
        (("3", "--to", "torch", "there"), "there: it is there already"),
        (("7", "--to", "torch", "new"), "there is no checkpoint of step 7"),
    ):
        code, said = export(trained, *words)
        assert code == 1
        assert f"cannot export: {sentence}" in said, said
    [shard] = layout.iteration_dir(trained.run_dir / "checkpoints", 3).glob("*model*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    code, said = export(trained, "3", "--to", "torch", "new")
    assert code == 1
    assert "cannot export: the checkpoint of step 3 is damaged" in said
    assert not (trained.home / "new").exists()


@pytest.mark.slow
def test_shards_are_put_together(job: FtJob) -> None:
    job.start(script=JOBS / "shapes.py", args=("--kind", "fsdp", "--steps", "4", "--out", str(job.out)), ranks=2)
    assert job.wait() == 0, job.stderr
    code, said = export(job, "4", "--to", "torch", "weights")
    assert code == 0, said
    found = read(job.home / "weights", "torch")
    code, shown, _ = ftctl("checkpoints", job.run_dir, "show", "4", "--json", cwd=job.home)
    assert code == 0
    assert found
    assert all(f'"model.{name}"' in shown for name in found)
    job.assert_clean()


@pytest.mark.slow
def test_it_says_how_far_it_is(trained: FtJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that exports tells of the bytes that it has written."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "INTERVAL_SECONDS", 0.0)
    code, said = export(trained, "3", "--to", "torch", str(trained.home / "weights.pt"))
    assert code == 0, said
    lines = [line for line in said.splitlines() if line.startswith("exporting: ")]
    assert lines[-2].startswith("exporting: 432 of 432 B, ")
    assert lines[-1].startswith("exporting: 432 B in ")

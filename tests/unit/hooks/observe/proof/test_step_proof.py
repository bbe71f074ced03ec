"""Two lives of a rank in one directory: the second one proves that it makes the steps of the first one again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from ftlaunch_contract.pages.fingerprint_ring import CAPACITY, StepPart, read_copy, ring_path
from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_contract.pages.proof_record import Proof, ProofPart, ProofVerdict, read_proof
from ftlaunch_contract.protocol import Resume
from ftlaunch_hooks.observe.proof import seen_losses
from ftlaunch_hooks.observe.proof.parameter_samples import ParameterSamples
from ftlaunch_hooks.observe.proof.step_proof import StepProof


class Life:
    """One process of the rank: a model whose state is a function of the step, unless it is told to differ."""

    def __init__(
        self,
        directory: Path,
        step: int,
        kind: Resume,
        *,
        is_comparable: bool = True,
        restored_otherwise: Sequence[str] = (),
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.directory = directory
        self.step, self.ends = step, list[tuple[Proof, str]]()
        self.page = Page(directory / "page")
        self._set_state()
        self.proof = StepProof(
            {"model": self.model, "optimizer": self.optimizer},
            page=self.page,
            directory=directory,
            rank=0,
            on_end=lambda proof, name: self.ends.append((proof, name)),
        )
        self.proof.begin(
            step, kind, directory / "copy", is_comparable=is_comparable, restored_otherwise=restored_otherwise
        )

    def _set_state(self, *, extra: float = 0.0) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(self.step + 1.0 + extra)
        torch.manual_seed(self.step)

    def live(self, steps: int, *, extra: float = 0.0, loss: float | None = None, in_full: bool = True) -> Life:
        """Make steps. in_full: note each in full, however fast it is."""
        for _ in range(steps):
            self.step += 1
            self.proof.note_loss(self.step / 8 if loss is None else loss)
            self._set_state(extra=extra)
            self.proof.end_step(self.step, in_full=in_full)
        return self

    def noted_in_full(self) -> list[int]:
        """The steps, of those that the ring holds, whose parameters were noted."""
        samples = ParameterSamples({"model": self.model, "optimizer": self.optimizer})
        records = read_copy(
            ring_path(self.directory, 0), sample_bytes=samples.bytes_needed, names_checksum=samples.checksum
        )
        return sorted(step for step, record in records.items() if record.parts & StepPart.SAMPLES)

    def die(self) -> None:
        seen_losses.listen(None)
        self.page.close()

    @property
    def told(self) -> Proof:
        return read_proof(self.page)


class Clock:
    """In time.perf_counter's place: each look at it takes a moment, so that a note takes as long as the step before."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 2.0**-13
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    create_page(tmp_path / "page")
    yield tmp_path
    seen_losses.listen(None)


def first_life(directory: Path, steps: int = 10) -> None:
    life = Life(directory, 0, Resume.FRESH).live(steps)
    assert life.told.verdict is ProofVerdict.NONE
    life.die()


def test_steps_that_are_made_again_alike_prove_the_resume(directory: Path) -> None:
    first_life(directory)
    life = Life(directory, 6, Resume.MEMORY)
    assert (life.told.verdict, life.told.ahead) == (ProofVerdict.AHEAD, 4)
    life.live(3)
    assert (life.told.verdict, life.told.steps) == (ProofVerdict.AHEAD, 3)
    life.live(1)
    assert (life.told.verdict, life.told.step, life.told.steps) == (ProofVerdict.SAME, 10, 4)
    life.live(5)
    assert life.told.step == 10
    assert len(life.ends) == 1


def test_the_first_step_that_differs_is_told_at_once_with_the_parameter(directory: Path) -> None:
    first_life(directory)
    life = Life(directory, 6, Resume.MEMORY).live(1).live(1, extra=0.5)
    proof, name = life.ends[0]
    assert (proof.verdict, proof.step, proof.what) == (ProofVerdict.DIFFERENT, 8, ProofPart.PARAMETER)
    assert (name, proof.before, proof.now) == ("model.weight", 9.0, 9.5)
    assert life.told == proof
    life.live(3)
    assert len(life.ends) == 1


def test_a_step_under_way_at_the_kill_counts_by_its_loss(directory: Path) -> None:
    life = Life(directory, 0, Resume.FRESH).live(6)
    life.proof.note_loss(123.0)
    life.die()
    again = Life(directory, 6, Resume.MEMORY)
    assert again.told.ahead == 1
    again.live(1)
    assert (again.told.verdict, again.told.what) == (ProofVerdict.DIFFERENT, ProofPart.LOSS)
    assert (again.told.before, again.told.now) == (123.0, 7 / 8)


def test_where_no_step_is_made_again_nothing_is_verified(directory: Path) -> None:
    first_life(directory, 6)
    assert Life(directory, 6, Resume.MEMORY).told.verdict is ProofVerdict.UNVERIFIED


def test_a_life_that_dies_early_leaves_what_the_first_one_knew(directory: Path) -> None:
    first_life(directory)
    life = Life(directory, 4, Resume.MEMORY).live(2)
    life.die()
    again = Life(directory, 5, Resume.MEMORY).live(5)
    assert (again.told.verdict, again.told.step) == (ProofVerdict.SAME, 10)


def test_a_run_that_went_another_way_is_compared_with_itself_from_then_on(directory: Path) -> None:
    first_life(directory)
    life = Life(directory, 4, Resume.MEMORY).live(3, loss=5.0)
    assert life.told.verdict is ProofVerdict.DIFFERENT
    life.die()
    again = Life(directory, 6, Resume.MEMORY).live(1, loss=5.0).live(4)
    assert (again.told.verdict, again.told.step) == (ProofVerdict.SAME, 7)


@pytest.mark.parametrize("kind", [Resume.FRESH, Resume.WEIGHTS, Resume.LOADED])
def test_a_run_that_begins_is_compared_with_nothing(directory: Path, kind: Resume) -> None:
    first_life(directory)
    life = Life(directory, 0, kind).live(2, loss=9.0)
    assert life.told.verdict is ProofVerdict.NONE
    assert not life.ends


def test_a_run_that_is_to_go_another_way_is_compared_with_nothing(directory: Path) -> None:
    first_life(directory)
    life = Life(directory, 6, Resume.MEMORY, is_comparable=False).live(4, loss=9.0)
    assert life.told.verdict is ProofVerdict.UNVERIFIED


def test_after_a_stop_the_copy_beside_the_checkpoints_is_compared(directory: Path) -> None:
    life = Life(directory, 0, Resume.FRESH).live(7)
    life.proof.leave_copy(directory / "copy").join()
    life.die()
    ring_path(directory, 0).unlink()  # the memory of a job that was stopped is gone
    again = Life(directory, 6, Resume.STORAGE)
    assert again.told.verdict is ProofVerdict.AHEAD
    again.live(1)
    assert (again.told.verdict, again.told.steps) == (ProofVerdict.SAME, 1)


def test_a_copy_of_another_run_proves_nothing(directory: Path) -> None:
    life = Life(directory, 0, Resume.FRESH).live(5, extra=0.25).live(3, extra=0.25)
    life.proof.leave_copy(directory / "copy").join()
    life.die()
    ring_path(directory, 0).unlink()
    assert Life(directory, 6, Resume.STORAGE).told.verdict is ProofVerdict.UNVERIFIED


def test_an_object_that_was_not_put_back_as_it_was_is_told_at_once(directory: Path) -> None:
    first_life(directory)
    again = Life(directory, 6, Resume.MEMORY, restored_otherwise=["optimizer"])
    assert (again.told.verdict, again.told.step, again.told.what) == (ProofVerdict.DIFFERENT, 6, ProofPart.OBJECT)
    assert [name for _, name in again.ends] == ["optimizer"]
    again.live(4)
    assert len(again.ends) == 1, "nothing else is compared"


def test_a_copy_that_cannot_be_written_is_told_of(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    life = Life(directory, 0, Resume.FRESH).live(1)
    (directory / "file").touch()
    life.proof.leave_copy(directory / "file" / "copy").join()
    assert "cannot leave fingerprints" in "".join(capfd.readouterr())


def test_steps_that_are_too_short_are_not_all_noted_in_full(directory: Path, clock: Clock) -> None:
    """A note of a step may take 2 % of it, so of these every 50th is noted."""
    life = Life(directory, 0, Resume.FRESH).live(64)
    life.live(100, in_full=False)
    assert life.noted_in_full() == [150], "of 102 to 164, which the ring holds"
    for _ in range(64):
        clock.now += 0.05
        life.live(1)
    for _ in range(CAPACITY):
        clock.now += 0.05
        life.live(1, in_full=False)
    assert life.noted_in_full() == list(range(life.step - CAPACITY + 2, life.step + 1))


@pytest.mark.usefixtures("clock")
def test_of_a_step_that_is_not_noted_in_full_the_learning_rates_are(directory: Path) -> None:
    """Taken out: on a slow machine another learning rate was told a step late, as another loss."""
    life = Life(directory, 0, Resume.FRESH).live(6)
    life.live(4, in_full=False)
    assert life.noted_in_full() == list(range(7))
    life.die()
    again = Life(directory, 6, Resume.MEMORY)
    again.optimizer.param_groups[0]["lr"] = 0.2
    again.live(1)
    assert (again.told.verdict, again.told.what, again.told.step) == (ProofVerdict.DIFFERENT, ProofPart.RATES, 7)


@pytest.mark.parametrize("steps_behind", [2, 0])
def test_random_numbers_that_were_not_put_back_are_told_as_training_begins(directory: Path, steps_behind: int) -> None:
    """Taken out: without check_random_numbers() generators that the next steps do not use are never compared."""
    exact = ProofVerdict.AHEAD if steps_behind else ProofVerdict.UNVERIFIED
    for forgets, verdict in ((False, exact), (True, ProofVerdict.DIFFERENT)):
        life = Life(directory, 0, Resume.FRESH).live(6)
        random.seed(4)
        life.proof.note_snapshot(6)
        life.live(steps_behind)
        life.die()
        again = Life(directory, 6, Resume.MEMORY)
        random.seed(5 if forgets else 4)
        again.proof.check_random_numbers()
        assert again.told.verdict is verdict
        assert again.told.what is (ProofPart.RANDOM if forgets else ProofPart.NOTHING)
        again.die()


@pytest.mark.parametrize("notes", [True, False])
def test_a_life_that_makes_no_step_leaves_the_numbers_that_were_put_back(directory: Path, notes: bool) -> None:
    """Taken out: the numbers that the script had drawn before attach() were noted for every eighth step: a false alarm.

    notes: whether training began in that life; else nothing is compared in the next one.
    """
    life = Life(directory, 0, Resume.FRESH).live(8)
    random.seed(4)
    life.proof.note_snapshot(8)
    life.die()
    random.seed(99)
    between = Life(directory, 8, Resume.STORAGE)
    if notes:
        random.seed(4)
        between.proof.check_random_numbers()
    between.die()
    random.seed(98)
    again = Life(directory, 8, Resume.MEMORY)
    random.seed(4)
    again.proof.check_random_numbers()
    assert again.told.verdict is ProofVerdict.UNVERIFIED
    assert again.told.what is ProofPart.NOTHING

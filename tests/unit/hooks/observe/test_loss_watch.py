"""What counts as a bad loss, and what of it a rank's page says."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlaunch_contract.pages.loss_record import CALM, NO_SPAN, LossFault, SpikeRule, parse_rule, read_losses
from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_hooks.observe.loss_watch import LossWatch, Window


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    create_page(tmp_path / "page")
    page = Page(tmp_path / "page")
    page.begin(0, 1, 1)
    yield page
    page.close()


def tell(watch: LossWatch, losses: list[float], first: int = 1) -> None:
    for step, loss in enumerate(losses, first):
        watch.note(loss)
        watch.judge(step, 8 * (step - 1), 8 * step)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_finite_number(page: Page, value: float) -> None:
    watch = LossWatch(page, None)
    tell(watch, [1.0, 2.0])
    assert read_losses(page) == []
    assert watch.trouble == ""
    tell(watch, [value, 1.0, value, 1.0], first=3)
    (bad,) = read_losses(page)
    assert (bad.kind, bad.step, bad.begin, bad.end, bad.episodes) == (LossFault.NAN, 3, 16, 24, 1)
    assert math.isnan(bad.value) if math.isnan(value) else bad.value == value
    assert watch.trouble == f"the loss was {value:g} at step 3"


def test_an_episode_ends_after_calm_steps_and_the_next_is_counted(page: Page) -> None:
    watch = LossWatch(page, None)
    tell(watch, [math.nan] + [1.0] * (CALM - 1))
    assert watch.trouble
    tell(watch, [1.0, math.nan], first=CALM + 1)
    (bad,) = read_losses(page)
    assert (bad.step, bad.newest, bad.episodes) == (1, CALM + 2, 2)


def test_of_several_losses_of_a_step_one_that_is_no_number_counts(page: Page) -> None:
    watch = LossWatch(page, None)
    for loss in (1.0, math.nan, 2.0):
        watch.note(loss)
    watch.judge(7, *NO_SPAN)
    assert [bad.step for bad in read_losses(page)] == [7]


def test_a_step_that_tells_no_loss_is_not_judged(page: Page) -> None:
    watch = LossWatch(page, SpikeRule(7, 1))
    watch.judge(1, *NO_SPAN)
    assert read_losses(page) == []


def test_a_new_process_begins_with_nothing(page: Page) -> None:
    tell(LossWatch(page, None), [math.nan])
    page.begin(1, 2, 2)
    assert read_losses(page) == []


# --- spikes ---------------------------------------------------------------------------------------------------


def falling(count: int, seed: int = 3) -> list[float]:
    noise = random.Random(seed)
    return [4 / (1 + step / 200) + noise.gauss(0, 0.05) for step in range(count)]


def test_a_spike_of_three_steps(page: Page) -> None:
    watch = LossWatch(page, SpikeRule(7, 3))
    losses = falling(300)
    tell(watch, [*losses[:200], 6.0, 6.5, 5.0])
    (bad,) = read_losses(page)
    assert (bad.kind, bad.step, bad.value, bad.begin, bad.end) == (LossFault.SPIKE, 201, 6.0, 1600, 8 * 203)
    assert 2.0 < bad.limit < 6.0
    assert watch.trouble == "the loss was 6 at step 201"


@pytest.mark.parametrize("spike", [[6.0, 6.0], [6.0, 6.0, 2.0, 6.0, 6.0]])
def test_fewer_in_a_row_are_none(page: Page, spike: list[float]) -> None:
    tell(LossWatch(page, SpikeRule(7, 3)), [*falling(200), *spike, *falling(260)[200:]])
    assert read_losses(page) == []


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_noise_is_no_spike(page: Page, seed: int) -> None:
    tell(LossWatch(page, SpikeRule(7, 1)), falling(2000, seed))
    assert read_losses(page) == []


def test_there_is_none_before_there_is_something_to_measure_against(page: Page) -> None:
    tell(LossWatch(page, SpikeRule(7, 1)), [1.0] * 19 + [100.0])
    assert read_losses(page) == []


def test_where_losses_hardly_differ_a_little_more_is_no_spike() -> None:
    window = Window(7)
    for _ in range(100):
        window.add(2.0)
    assert window.add(2.001) == math.inf
    assert window.add(2.5) == pytest.approx(2.02)


def test_a_new_level_is_no_spike_in_the_long_run(page: Page) -> None:
    watch = LossWatch(page, SpikeRule(7, 3))
    tell(watch, [*falling(200), *[5.0] * 40])
    assert read_losses(page)[0].episodes == 1
    assert watch.trouble == ""


def test_the_rule_from_the_environment() -> None:
    assert parse_rule("") is None
    assert parse_rule("7.5 3") == SpikeRule(7.5, 3)

"""Budget, backoff and verdicts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftlaunch.diagnosis import Cause
from ftlaunch.policy import PORT_TRIES, Backoff, Budget, Verdict, judge

CRASH = Cause("signal", 1, 7, "rank 1 crashed after step 7", "signal:SIGSEGV")
PORT = Cause("port", 0, -1, "rank 0 found its port taken", "port:#")
BACKOFF = Backoff(first=1.0, most=60.0)
LAST = 1.0 - 2.0**-53  # the greatest number that random() gives


def ruling(
    cause: Cause = CRASH, budget: Budget | None = None, *, policy: str = "on-failure", progressed: bool = True,
    random: float = 0.5,
) -> Verdict:  # fmt: skip
    return judge(cause, budget or Budget(3), BACKOFF, policy=policy, progressed=progressed, random=random)


@pytest.mark.parametrize(
    ("in_a_row", "delay"), [(0, 0.0), (1, 0.0), (2, 1.0), (3, 2.0), (4, 4.0), (7, 32.0), (8, 60.0), (5000, 60.0)]
)
def test_delay_doubles_up_to_the_most(in_a_row: int, delay: float) -> None:
    assert BACKOFF.delay(in_a_row, 0.5) == delay


@pytest.mark.parametrize("in_a_row", range(2, 40))
@pytest.mark.parametrize("random", [0.0, 0.25, LAST])
def test_jitter_stays_within_a_quarter(in_a_row: int, random: float) -> None:
    middle = BACKOFF.delay(in_a_row, 0.5)
    assert 0.75 * middle <= BACKOFF.delay(in_a_row, random) <= 1.25 * middle


@pytest.mark.parametrize(
    ("budget", "progressed", "policy", "restart", "delay", "says"),
    [
        (Budget(3), True, "on-failure", True, 0.0, "restarting now, 2 of 3 restarts left"),
        (Budget(3, used=1, in_a_row=1), True, "on-failure", True, 0.0, "restarting now, 1 of 3"),
        (Budget(3, used=1, in_a_row=1), False, "on-failure", True, 1.0, "restarting in 1.0 s, 1 of 3"),
        (Budget(9, used=3, in_a_row=3), False, "on-failure", True, 4.0, "restarting in 4.0 s, 5 of 9"),
        (Budget(3, used=3, in_a_row=1), True, "on-failure", False, 0.0, "giving up: 3 of 3 restarts are used up"),
        (Budget(0), True, "on-failure", False, 0.0, "no restarts are allowed (--max-restarts 0)"),
        (Budget(3), True, "never", False, 0.0, "not restarting (restart policy: never)"),
    ],
)
def test_verdicts(budget: Budget, progressed: bool, policy: str, restart: bool, delay: float, says: str) -> None:
    verdict = ruling(budget=budget, progressed=progressed, policy=policy)
    assert (verdict.restart, verdict.delay) == (restart, delay)
    assert verdict.sentence.startswith(CRASH.sentence + "; ")
    assert verdict.sentence.endswith(says) or says in verdict.sentence
    assert verdict.budget.used == budget.used + restart


def test_a_crash_loop_spends_the_budget_with_growing_delays_and_ends() -> None:
    budget, delays = Budget(6), []
    while (verdict := ruling(budget=budget, progressed=not delays)).restart:
        assert 0 <= verdict.budget.left < budget.left
        delays.append(verdict.delay)
        budget = verdict.budget
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert budget.left == 0


def test_progress_makes_the_next_failure_the_first_again() -> None:
    budget = Budget(9, used=4, in_a_row=4)
    assert ruling(budget=budget, progressed=True).budget.in_a_row == 1
    assert ruling(budget=budget, progressed=False).budget.in_a_row == 5


def test_a_taken_port_costs_nothing_until_it_happens_too_often() -> None:
    budget = Budget(2)
    for _ in range(PORT_TRIES):
        verdict = ruling(PORT, budget)
        assert (verdict.restart, verdict.delay, verdict.budget.used) == (True, 0.0, 0)
        assert verdict.sentence.endswith("trying another port")
        budget = verdict.budget
    spent = ruling(PORT, budget).budget
    assert (spent.used, spent.port_tries) == (1, 0)


def test_budget_is_never_negative() -> None:
    for used in range(5):
        for kind in ("port", "signal", "hang"):
            verdict = ruling(replace(CRASH, kind=kind), Budget(4, used=used))
            assert verdict.budget.left >= 0
    assert ruling(budget=Budget(0)).budget.left == 0

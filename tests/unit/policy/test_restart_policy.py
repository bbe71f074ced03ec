"""Budget, backoff and verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftlaunch.policy.cause_kinds import EXCEPTION_AT_START
from ftlaunch.policy.failure_diagnosis import Cause
from ftlaunch.policy.restart_policy import PORT_TRIES, Backoff, Budget, RestartLimits, Verdict, judge

CRASH = Cause("signal", 1, 7, "rank 1 crashed after step 7", "signal:SIGSEGV")
HANG = Cause("hang", 1, 7, "rank 1 is hung", "hang")
PREEMPTED = Cause("preempted", 1, 7, "rank 1 was ended by SIGTERM", "preempted:SIGTERM")
PORT = Cause("port", 0, -1, "rank 0 found its port taken", "port:#")
START = Cause(
    EXCEPTION_AT_START, 0, -1, "rank 0 failed with NameError", "exception-at-start:NameError", action="give-up"
)
BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0)
LAST = 1.0 - 2.0**-53  # the greatest number that random() gives


def budget(most: int = 3, used: int = 0, in_a_row: int = 0, hangs: int = 0, **limits: Any) -> Budget:
    known: dict[str, Any] = {"hang_restarts": most, **limits}
    return Budget(RestartLimits(most, **known), (0.0,) * used, (0.0,) * hangs, used + hangs, in_a_row=in_a_row)


def ruling(
    cause: Cause = CRASH, spent: Budget | None = None, *, policy: str = "on-failure", progressed: bool = True,
    random: float = 0.5, now: float = 1.0, step: int = -1,
) -> Verdict:  # fmt: skip
    spent = budget() if spent is None else spent
    return judge(cause, spent, BACKOFF, policy=policy, progressed=progressed, random=random, now=now, step=step)


def until_the_end(cause: Cause, spent: Budget, most: int = 50, **how: Any) -> tuple[int, Verdict]:
    """How many restarts there are when `cause` comes over and over, the first time after progress; the last verdict."""
    for number in range(most):
        verdict = ruling(cause, spent, **{"progressed": number == 0, **how})
        if not verdict.restart:
            return number, verdict
        spent = verdict.budget
    raise AssertionError(f"no end after {most} restarts")


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
    assert 45.0 <= BACKOFF.longest(random) <= 75.0


@pytest.mark.parametrize(
    ("spent", "progressed", "policy", "restart", "delay", "says"),
    [
        (budget(), True, "on-failure", True, 0.0, "restarting now, 2 of 3 restarts left"),
        (budget(used=1, in_a_row=1), True, "on-failure", True, 0.0, "restarting now, 1 of 3 restarts left"),
        (budget(used=1, in_a_row=1), False, "on-failure", True, 1.0, "restarting in 1.0 s, 1 of 3 restarts left"),
        (budget(9, used=3, in_a_row=3), False, "on-failure", True, 4.0, "restarting in 4.0 s, 5 of 9 restarts left"),
        (budget(used=3, in_a_row=1), True, "on-failure", False, 0.0, "giving up: 3 of 3 restarts are used up"),
        (budget(0), True, "on-failure", False, 0.0, "giving up: no restarts are allowed (--max-restarts 0)"),
        (budget(), True, "never", False, 0.0, "not restarting (restart policy: never)"),
    ],
)
def test_verdicts(spent: Budget, progressed: bool, policy: str, restart: bool, delay: float, says: str) -> None:
    verdict = ruling(CRASH, spent, progressed=progressed, policy=policy)
    assert (verdict.restart, verdict.delay) == (restart, delay)
    assert verdict.sentence == f"{CRASH.sentence}; {says}"
    assert len(verdict.budget.failures) == len(spent.failures) + restart
    assert verdict.budget.restarts == spent.restarts + restart


def test_a_crash_loop_spends_the_budget_with_growing_delays_and_ends() -> None:
    spent, delays = budget(6), []
    while (verdict := ruling(CRASH, spent, progressed=not delays)).restart:
        assert 0 <= verdict.budget.left < spent.left
        delays.append(verdict.delay)
        spent = verdict.budget
    assert delays == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0]
    assert spent.left == 0


def test_progress_makes_the_next_failure_the_first_again() -> None:
    spent = budget(9, used=4, in_a_row=4)
    assert ruling(CRASH, spent, progressed=True).budget.in_a_row == 1
    assert ruling(CRASH, spent, progressed=False).budget.in_a_row == 5


def test_a_taken_port_costs_nothing_until_it_happens_too_often() -> None:
    spent = budget(2)
    for _ in range(PORT_TRIES):
        verdict = ruling(PORT, spent, policy="never")
        assert (verdict.restart, verdict.delay, verdict.budget.left) == (True, 0.0, 2)
        assert verdict.sentence.endswith("trying another port")
        spent = verdict.budget
    after = ruling(PORT, spent).budget
    assert (after.left, after.port_tries) == (1, 0)


@pytest.mark.parametrize("used", range(5))
@pytest.mark.parametrize("cause", [CRASH, HANG, PORT, PREEMPTED])
def test_budget_is_never_negative(used: int, cause: Cause) -> None:
    verdict = ruling(cause, budget(4, used=used, hangs=used))
    assert min(verdict.budget.left, verdict.budget.hangs_left) >= 0


# --- what counts ----------------------------------------------------------------------------------------------


def test_failures_and_hangs_share_one_budget() -> None:
    """AIMaster's words: a hang or an error, restarted three times at most."""
    spent = budget(3, hang_restarts=None)
    for cause in (CRASH, HANG, CRASH):
        verdict = ruling(cause, spent)
        assert verdict.restart
        spent = verdict.budget
        assert spent.left == spent.hangs_left
    assert verdict.sentence.endswith("0 of 3 restarts left")
    for cause, name in ((HANG, "rank 1 is hung"), (CRASH, CRASH.sentence)):
        verdict = ruling(cause, spent)
        assert not verdict.restart
        assert verdict.sentence == f"{name}; giving up: 3 of 3 restarts are used up"
    assert ruling(HANG, budget(0, hang_restarts=None)).sentence.endswith("no restarts are allowed (--max-restarts 0)")


def test_failures_and_hangs_are_counted_apart_where_hangs_have_a_budget_of_their_own() -> None:
    crashed = ruling(CRASH, budget(2, hang_restarts=1)).budget
    assert (crashed.left, crashed.hangs_left) == (1, 1)
    verdict = ruling(HANG, crashed)
    assert (verdict.budget.left, verdict.budget.hangs_left) == (1, 0)
    assert verdict.sentence == "rank 1 is hung; restarting now, 0 of 1 restarts after hangs left"
    verdict = ruling(HANG, verdict.budget)
    assert not verdict.restart
    assert verdict.sentence == "rank 1 is hung; giving up: 1 of 1 restarts after hangs are used up"
    assert ruling(CRASH, verdict.budget).restart


@pytest.mark.parametrize("most", [0, 3])
def test_no_hang_is_allowed(most: int) -> None:
    verdict = ruling(HANG, budget(most, hang_restarts=0))
    assert verdict.sentence.endswith("giving up: no restarts after hangs are allowed (--max-hang-restarts 0)")


def test_preemption_never_costs() -> None:
    for spent in (budget(), budget(0), budget(used=3)):
        verdict = ruling(PREEMPTED, spent)
        assert (verdict.restart, verdict.budget.left, verdict.budget.restarts) == (True, spent.left, spent.restarts + 1)
    assert ruling(PREEMPTED).sentence.endswith("restarting now, which does not count: 3 of 3 restarts left")
    assert until_the_end(PREEMPTED, budget(0))[0] == 9, "but that without progress, over and over, is no preemption"


def test_only_restarts_within_the_window_count() -> None:
    spent = budget(2, window=3600.0)
    for now in (0.0, 1000.0):
        spent = ruling(CRASH, spent, now=now).budget
    verdict = ruling(CRASH, spent, now=3599.0)
    assert verdict.sentence.endswith("giving up: 2 of 2 restarts within 1h are used up")
    verdict = ruling(CRASH, spent, now=3600.0)
    assert verdict.sentence.endswith("restarting now, 0 of 2 restarts within 1h left")
    assert verdict.budget.restarts == 3
    assert not ruling(CRASH, verdict.budget, now=4599.0).restart
    assert ruling(HANG, verdict.budget, now=4599.0).restart


def test_the_budget_is_full_again_after_so_many_steps() -> None:
    spent = budget(2, refill_after=100)
    for step in (50, 60):
        spent = ruling(CRASH, spent, step=step).budget
    assert not ruling(CRASH, spent, step=159).restart
    assert ruling(CRASH, spent, step=160).sentence.endswith("restarting now, 1 of 2 restarts left")
    assert not ruling(CRASH, replace(spent, limits=RestartLimits(2, 2)), step=10**6).restart, "off: never"


def test_preemptions_do_not_put_off_the_refill() -> None:
    spent = ruling(CRASH, budget(1, refill_after=100), step=0).budget
    spent = ruling(PREEMPTED, spent, step=90).budget
    assert ruling(CRASH, spent, step=100).restart


# --- what would fail again --------------------------------------------------------------------------------------


def test_the_same_error_too_often_without_a_new_step() -> None:
    restarts, verdict = until_the_end(CRASH, budget(1000))
    assert restarts == 9
    assert verdict.sentence.endswith(
        "giving up: 10 times in a row the same error without a new step (--max-same-error)"
    )
    assert until_the_end(CRASH, budget(1000, same_error=2))[0] == 1
    assert until_the_end(CRASH, budget(30, same_error=0))[0] == 30


def test_progress_or_another_error_begins_anew() -> None:
    spent = budget(1000)
    for number in range(100):
        signature = ("signal:SIGSEGV", "exit:3")[number % 2]
        spent = ruling(replace(CRASH, signature=signature), spent, progressed=False).budget
        assert spent.same == 1
    for step in range(100):
        verdict = ruling(CRASH, spent, progressed=True, step=step)
        assert verdict.restart
        spent = verdict.budget


@pytest.mark.parametrize(("step", "restarts"), [(7, 10), (-1, 50)])
def test_steps_made_again_are_no_progress(step: int, restarts: int) -> None:
    """Where steps are known: a script without hooks is believed when it has lived long."""
    spent = budget(1000, same_error=11)
    for number in range(50):
        verdict = ruling(CRASH, spent, progressed=True, step=step)
        assert verdict.restart == (number < restarts)
        spent = verdict.budget


def test_restarts_without_a_new_step() -> None:
    limits = {"without_progress": 2, "same_error": 0}
    restarts, verdict = until_the_end(CRASH, budget(1000, **limits))
    assert restarts == 2
    assert verdict.sentence.endswith("giving up: 2 restarts in a row without a new step (--max-without-progress)")
    assert until_the_end(CRASH, budget(30, **(limits | {"without_progress": 0})))[0] == 30


@pytest.mark.parametrize("policy", ["on-failure", "by-cause"])
def test_an_error_of_the_script_before_the_first_step_is_tried_once_more_at_most(policy: str) -> None:
    restarts, verdict = until_the_end(START, budget(), policy=policy)
    assert restarts == {"on-failure": 1, "by-cause": 0}[policy]
    if policy == "on-failure":
        assert verdict.sentence.endswith("; giving up: twice the same error before the first step")
    other = ruling(replace(START, signature="another"), ruling(START).budget, progressed=False)
    assert other.restart, "another error is another matter"


# --- by cause -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "restart", "delay", "says"),
    [
        ("restart", True, 0.0, "restarting now, 2 of 3 restarts left"),
        ("wait", True, 60.0, "restarting in 60.0 s, 2 of 3 restarts left"),
        ("give-up", False, 0.0, "not restarting (restart policy: by-cause, and the rule for signal says give-up)"),
    ],
)
def test_the_rule_decides_by_cause_and_only_then(action: str, restart: bool, delay: float, says: str) -> None:
    cause = replace(CRASH, action=action)
    verdict = ruling(cause, policy="by-cause")
    assert (verdict.restart, verdict.delay, verdict.sentence) == (restart, delay, f"{CRASH.sentence}; {says}")
    assert ruling(cause) == ruling(CRASH)


def test_an_error_that_would_come_again_is_not_tried_again() -> None:
    verdict = ruling(replace(START, final=True), budget(9))
    assert (verdict.restart, verdict.budget.left) == (False, 9)
    assert verdict.sentence == "rank 0 failed with NameError; giving up: it would come again in every attempt"


@pytest.mark.parametrize(
    ("cause", "spent", "is_permanent"),
    [
        (replace(START, final=True), budget(9), True),
        (START, ruling(START).budget, True),
        (CRASH, budget(9, same_error=1), True),
        (CRASH, budget(3, used=3), False),  # these restarts were spent here: elsewhere it may run
        (HANG, budget(9, same_error=1), False),
        (replace(CRASH, kind="gpu"), budget(9, same_error=1), False),
        (replace(CRASH, kind="killed"), budget(0), False),
    ],
)
def test_what_comes_again_is_told_from_what_another_machine_may_mend(
    cause: Cause, spent: Budget, is_permanent: bool
) -> None:
    verdict = ruling(cause, spent, progressed=False)
    assert (verdict.restart, verdict.is_permanent) == (False, is_permanent)


def test_a_policy_that_never_restarts_says_nothing_about_another_start() -> None:
    assert not ruling(CRASH, policy="never").is_permanent
